"""A body for child processes, which import this module by its name: `on(pool, "process")`."""

from __future__ import annotations

import os
from typing import Any

from synergon import Context, Engine, Provider, Server, ServerFailed, TaskType
from synergon.options.overrides import RunsIn

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


def leave(server: Server) -> str:
    """Run on `b` only."""
    if server.address == "a":
        raise NoAnswer("no answer")
    return server.address


class NoAnswer(ServerFailed):
    """An application's own word for it."""


def blames(target: Provider) -> TaskType[..., ..., Any, str]:
    """A function that blames the server `a`, in a child process."""
    registered: TaskType[..., ..., Any, str] = target.task(runs_in="process")(leave)
    return registered


blames(pool)
