"""Tasks of every sort, each of which writes down what it does. Their ends can be told from their arguments.

`fails` is how many attempts raise before one succeeds, `seconds` how long an attempt takes.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from tests.chaos.evidence import Event
from tests.chaos.journal import note, recorded

from synergon import Context, Engine, Retry

engine = Engine()

TICK_SECONDS: Final = 0.1
PATIENT: Final = Retry(attempts=4, first=0.1, cap=0.4)
VERY_PATIENT: Final = Retry(attempts=30, first=0.2, cap=1)
"""For bodies that use the database themselves: each of its outages costs them an attempt."""


class Wanted(Exception):
    """The failure that the arguments asked for."""


async def _work(ctx: Context, seconds: float, fails: int) -> None:
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        await asyncio.sleep(min(left, TICK_SECONDS))
        note(Event.LIVES, ctx)
    if ctx.attempt <= fails:
        raise Wanted(f"attempt {ctx.attempt} of {fails} that fail")


def _work_in_thread(ctx: Context, seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        if ctx.cancel_requested:
            raise SystemExit("asked to end")
        time.sleep(min(left, TICK_SECONDS))
        note(Event.LIVES, ctx)


@engine.task
async def quick(ctx: Context) -> None:
    with recorded(ctx):
        pass


@engine.task
async def slow(ctx: Context, seconds: float) -> None:
    with recorded(ctx):
        await _work(ctx, seconds, 0)


@engine.task(retry=PATIENT)
async def retrying(ctx: Context, seconds: float, fails: int) -> None:
    with recorded(ctx):
        await _work(ctx, seconds, fails)


@engine.task
def in_thread(ctx: Context, seconds: float) -> None:
    with recorded(ctx):
        _work_in_thread(ctx, seconds)


@engine.task(runs_in="process")
def in_process(ctx: Context, seconds: float) -> None:
    with recorded(ctx):
        _work_in_thread(ctx, seconds)


@engine.task(retry=PATIENT)
async def parent(ctx: Context, seconds: float, fails: int, children: int) -> None:
    with recorded(ctx):
        ctx.enqueue(*(child.call(ctx.task_id, number) for number in range(children)))
        await _work(ctx, seconds, fails)


@engine.task
async def child(ctx: Context, parent_id: int, number: int) -> None:
    with recorded(ctx):
        pass


@engine.task(retry=VERY_PATIENT)
async def ledger(ctx: Context, seconds: float) -> None:
    """Writes a row that is there if and only if the task has succeeded."""
    with recorded(ctx):
        await _work(ctx, seconds, 0)
        async with ctx.transaction() as connection:
            answer = connection.execute(f"INSERT INTO chaos_effect VALUES ({ctx.task_id}, {ctx.claim_no})")
            if asyncio.iscoroutine(answer):  # asyncpg; sqlite3 has done it
                await answer


@engine.task(retry=VERY_PATIENT)
async def holding(ctx: Context, on_node: int) -> None:
    """Locks a row in its transaction, and on that node does not let go of it. For PostgreSQL."""
    with recorded(ctx):
        async with ctx.transaction() as connection:
            await connection.execute("UPDATE chaos_lock SET holder = $1", ctx.claim_no)
            note(Event.LIVES, ctx)
            await asyncio.sleep(60 if os.getpid() == on_node else 0)
