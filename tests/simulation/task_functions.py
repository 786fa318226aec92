"""The kinds of the simulated workload. What a body does is written in its payload."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from tests.simulation.executor import IN_CHILD, ChildDies
from tests.simulation.virtual_loop import OWNER

from synergon import Cancel, Context, Discard, Engine, Retry, RetryAfter, Snooze

RETRY: Final = Retry(attempts=3, first=0.3, factor=2, cap=2, jitter=0.5)


class Script(msgspec.Struct, frozen=True):
    """What one body does."""

    seconds: float = 0.0
    end: str = "return"
    children: int = 0
    failures: int = 0
    """How many attempts go wrong before one ends as `end` says."""


engine: Final = Engine("memory://", name="simulated")


@engine.task(retry=RETRY, timeout=4)
async def polite(script: Script, ctx: Context) -> int:
    """A coroutine that ends when it is cancelled."""
    return await perform(script, ctx)


@engine.task(retry=RETRY, timeout=3, max_running=1)
async def narrow(script: Script, ctx: Context) -> int:
    """One at a time on each node."""
    return await perform(script, ctx)


@engine.task(retry=RETRY, timeout=2)
def stubborn(script: Script, ctx: Context) -> Any:
    """A thread, which nobody can end."""
    return perform(script, ctx)


@engine.task(retry=2, timeout=20)
async def patient(script: Script, ctx: Context) -> int:
    """A coroutine that outlives a lease."""
    return await perform(_long(script), ctx)


@engine.task(retry=2, timeout=20)
def heavy(script: Script, ctx: Context) -> Any:
    """A thread that outlives a lease."""
    return perform(_long(script), ctx)


@engine.task(retry=2, timeout=3, runs_in="process")
async def remote(script: Script, ctx: Context) -> int:
    """A child process."""
    return await perform(script, ctx)


@engine.task(timeout=5, queue="side", max_running=2)
async def single(script: Script, ctx: Context) -> int:
    """No second attempt, and a queue of its own."""
    return await perform(script, ctx)


def _long(script: Script) -> Script:
    return msgspec.structs.replace(script, seconds=2 * script.seconds + 2)


async def perform(script: Script, ctx: Context) -> int:
    """Do what the script says, and be seen doing it."""
    process: Any = OWNER.get()
    with process.world.executions.of(process, ctx):
        await asyncio.sleep(script.seconds)
        if ctx.attempt <= script.failures:
            raise ValueError("this attempt fails")
        return await _end(script, ctx, process)


async def _end(script: Script, ctx: Context, process: Any) -> int:
    match script.end:
        case "fail":
            raise ValueError("it always fails")
        case "snooze" if ctx.claim_no < 4:
            raise Snooze(0.5)
        case "retry_after" if ctx.attempt == 1:
            raise RetryAfter(0.7)
        case "discard":
            raise Discard("not worth it")
        case "cancel":
            raise Cancel("it thinks so itself")
        case "crash":
            if IN_CHILD.get():
                raise ChildDies
            process.die("was taken down by a body")
            await asyncio.sleep(0)
    for number in range(script.children):
        await ctx.enqueue(engine.call("polite", script=Script(seconds=0.1 * number)))
    return ctx.attempt
