"""Thumbnails for the customers of a shop: a large customer cannot keep the others waiting, and paying ones get more.

`acme` uploads 300 pictures at once. A moment later `bolt` uploads three, and `coil`, which pays for three shares,
uploads 60. One worker makes them all. Ends after a second.
"""

import asyncio
from collections import Counter

from synergon import Engine

PLANS = {"coil": "premium"}
WEIGHTS = {"premium": 3.0, "basic": 1.0}

engine = Engine("memory://")
started: list[str] = []


def weight_of(customer: str) -> float:
    """Called by `enqueue`, with what `fair_by` makes of the arguments."""
    return WEIGHTS[PLANS.get(customer, "basic")]


@engine.task(fair_by="{customer}", weight=weight_of)
async def make_thumbnail(customer: str, picture: int) -> None:
    started.append(customer)
    await asyncio.sleep(0.001 + picture % 3 / 1000)  # the work


async def main() -> None:
    async with engine:
        await make_thumbnail.enqueue_many([("acme", number) for number in range(300)])
        await make_thumbnail.enqueue_many([("bolt", number) for number in range(3)])
        await make_thumbnail.enqueue_many([("coil", number) for number in range(60)])
        async with engine.worker(concurrency=4, drain=True):
            pass
    places = [number for number, customer in enumerate(started, 1) if customer == "bolt"]
    print(f"bolt's three pictures were started as number {', '.join(map(str, places))} of {len(started)}")
    print(f"of the first 80 starts: {dict(Counter(started[:80]))}")


asyncio.run(main())
