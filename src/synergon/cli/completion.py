"""Names that a shell completes: of kinds, queues, nodes, schedules and limits.

They come from the code of the app and from the database that the command line names so far. If an error occurs there, a
completion offers nothing and prints nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import typer

from synergon.cli.database import run_connected
from synergon.engine import Engine

PATIENCE_SECONDS: Final = 2.0
"""A person waits for the answer. A database that is slower than this offers nothing."""

Complete = Callable[[typer.Context, str], list[str]]


def _complete(read: Callable[[Engine], Coroutine[Any, Any, Iterable[str]]]) -> Complete:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        async def read_soon(engine: Engine) -> Iterable[str]:
            return await asyncio.wait_for(read(engine), PATIENCE_SECONDS)

        try:
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                logging.disable()
                names = run_connected(ctx.params.get("app"), ctx.params.get("url"), read_soon)
        except Exception:  # noqa: BLE001  a shell would print it between the words of the user
            return []
        return sorted({name for name in names if name.startswith(incomplete)})

    return complete


async def _kinds(engine: Engine) -> Iterable[str]:
    return {*engine.kinds, *(kind for node in await engine.nodes() for kind in node.kinds)}


async def _queues(engine: Engine) -> Iterable[str]:
    return [queue.name for queue in await engine.queues()]


async def _nodes(engine: Engine) -> Iterable[str]:
    return [node.name for node in await engine.nodes() if node.concurrency]


async def _schedules(engine: Engine) -> Iterable[str]:
    return [schedule.name for schedule in await engine.schedules.list()]


async def _limits(engine: Engine) -> Iterable[str]:
    return [limit.name for limit in await engine.limits()]


kinds: Final = _complete(_kinds)
queues: Final = _complete(_queues)
nodes: Final = _complete(_nodes)
schedules: Final = _complete(_schedules)
limits: Final = _complete(_limits)
