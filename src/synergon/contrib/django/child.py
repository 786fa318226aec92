"""The entry of child processes: its import sets up Django, so that modules with models can be imported afterwards."""

from __future__ import annotations

from asgiref.sync import SyncToAsync

import synergon.contrib.django.project  # noqa: F401  sets up Django
from synergon.contrib.django.connections import call_with_fresh_connections, close_stale
from synergon.node.processes import child_job
from synergon.node.processes.child_main import ChildChannel


def run_attempt(payload: bytes, channel: ChildChannel) -> bytes:
    """Run the job of the parent, and close stale connections: those of this thread, and those of the thread in which
    coroutines use the database."""
    try:
        return call_with_fresh_connections(lambda: child_job.run_attempt(payload, channel))
    finally:
        SyncToAsync.single_thread_executor.submit(close_stale).result()
