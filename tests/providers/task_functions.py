"""A body for child processes, which import this module by its name: `on(pool, "process")`."""

from __future__ import annotations

import os
from typing import Any

from synergon import Context, Engine, Provider, Server, TaskType
from synergon.options.options import RunsIn

engine = Engine("memory://")
pool = engine.provider("pool", servers=["a"])


def where(number: int, server: Server, ctx: Context) -> tuple[str, str, int, int]:
    """On which server it runs, as it is told by both."""
    assert ctx.server is not None
    assert ctx.server.address == server.address
    return server.address, server.provider, number, os.getpid()


def on(target: Provider, runs_in: RunsIn) -> TaskType[..., ..., Any, tuple[str, str, int, int]]:
    """The same function as a kind of another provider."""
    registered: TaskType[..., ..., Any, tuple[str, str, int, int]] = target.task(runs_in=runs_in)(where)
    return registered


on(pool, "process")
