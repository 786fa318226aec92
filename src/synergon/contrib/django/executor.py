"""The executor of a Django project: closes connections after each task, and sets up Django in child processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from synergon.contrib.django.connections import call_with_fresh_connections
from synergon.node.processes.executors import LocalExecutor


class DjangoExecutor(LocalExecutor):
    """Runs task functions in threads and child processes in which Django works."""

    child_entry = "synergon.contrib.django.child:run_attempt"

    async def run_in_thread(self, function: Callable[[], Any], *, is_command: bool = False) -> Any:
        """Run `function` in a thread without stale connections, and return its value."""
        return await super().run_in_thread(partial(call_with_fresh_connections, function), is_command=is_command)
