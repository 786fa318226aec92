"""Middleware around every function, events of this node, and a bill that is written from the stream of all ends."""

import asyncio
from collections import Counter
from typing import Any

from synergon import CallNext, Context, Discard, Engine, Event

engine = Engine("memory://")
heard: Counter[str] = Counter()


@engine.middleware
async def announced(ctx: Context, call_next: CallNext) -> Any:
    print(f"task {ctx.task_id} ({ctx.kind}) begins")
    try:
        return await call_next()
    except Exception as error:
        print(f"task {ctx.task_id} did not work: {error}")
        raise


@engine.on_event
def count(event: Event) -> None:
    heard[event.name] += 1


@engine.task
def charge(amount: int) -> int:
    if amount < 0:
        raise Discard("nobody is paid here")
    return amount


async def bill(after: str | None, number: int) -> tuple[int, str | None]:
    """The sum of the next charges, and where to go on."""
    total = 0
    async for event in engine.events(after, kinds="charge", states="succeeded"):
        total += (await engine.get(event.task_id)).result
        after, number = event.cursor, number - 1
        if not number:
            break
    return total, after


async def main() -> None:
    async with engine:
        async with engine.worker(drain=True):
            await charge.enqueue_many([(10,), (-5,), (20,), (30,)])
        first, cursor = await bill(None, 2)
        second, _ = await bill(cursor, 1)
    print(f"two bills: {first} and {second}")
    assert first + second == 60
    assert heard == {"started": 4, "succeeded": 3, "failed": 1}, heard


if __name__ == "__main__":
    asyncio.run(main())
