"""Tasks of every sort, each of which writes down what it does. Their ends can be told from their arguments.

`fails` is how many attempts raise before one succeeds, `seconds` how long an attempt takes.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Final

from tests.chaos.evidence import Event
from tests.chaos.journal import is_mended, note, note_batch, recorded

from synergon import Batch, Context, Engine, Flow, Retry
from synergon.options.dependency_options import IfDependencyFails

engine = Engine()

TICK_SECONDS: Final = 0.1
PATIENT: Final = Retry(attempts=4, first=0.1, cap=0.4)
MENDED: Final = Retry(attempts=2, first=0.1)
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


@engine.task(retry=PATIENT, fair_by="{fails}")
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


@engine.task(fair_by="{number}")
async def child(ctx: Context, parent_id: int, number: int) -> None:
    with recorded(ctx):
        pass


@dataclass
class Item:
    """An item of a batch. A batch takes as long as its longest item."""

    seconds: float
    token: str
    """Which no other item has."""


@engine.task(batch=Batch(size=5, wait=0.3))
async def batched(ctx: Context, items: list[Item]) -> list[str]:
    """Writes down which items the batch has, and what becomes of the task that leads it."""
    note_batch(ctx, [item.token for item in items])
    with recorded(ctx):
        await _work(ctx, max(item.seconds for item in items), 0)
        return [item.token for item in items]


# ------------------------------------------------------------ flows


@engine.task(retry=PATIENT)
async def listed(ctx: Context, seconds: float, fails: int, count: int) -> list[int]:
    """The first step of a flow: a list of so many numbers."""
    with recorded(ctx):
        await _work(ctx, seconds, fails)
        return list(range(count))


@engine.task
async def doubled(ctx: Context, number: int) -> int:
    """A task for each number of the list."""
    with recorded(ctx):
        await _work(ctx, TICK_SECONDS / 10, 0)
        return 2 * number


@engine.task(retry=MENDED)
async def mended(ctx: Context, label: str, fails: int) -> None:
    """Fails for good, until the cause is mended and the task is retried."""
    with recorded(ctx):
        await _work(ctx, 0, 0 if is_mended(label) else fails)


@engine.task
async def summed(ctx: Context, numbers: list[int], if_fails: IfDependencyFails) -> int:
    """The last step of a flow."""
    with recorded(ctx):
        return sum(numbers)


def new_flow(
    label: str, seconds: float, fails: int, count: int, if_fails: IfDependencyFails, *, needs_mending: bool
) -> Flow:
    """A list, a task for each of its items, and their sum; and a step that has to be mended, if that is wanted."""
    flow = engine.flow(f"flow {label}")
    numbers = flow.add(listed.call(seconds, fails, count))
    doubles = flow.map(doubled, over=numbers)
    others = [flow.add(mended.call(label, MENDED.attempts))] if needs_mending else []
    flow.add(summed.call(doubles.results, if_fails), after=others, if_dependency_fails=if_fails)
    return flow


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
