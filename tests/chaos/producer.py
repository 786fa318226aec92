"""A producer as a program: enqueues on and on, through any outage, and writes down every id that it was given.

`python -m tests.chaos.producer '{"seed": 1, "a_second": 50, "longest": 2.0}'`, until its standard input says something.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
from collections.abc import Sequence
from typing import Any, Final

from tests.chaos import app
from tests.chaos.journal import note_accepted

from synergon import Call
from synergon.errors import StoreError

BATCH: Final = 10
SHARES: Final[dict[str, float]] = {
    "quick": 20,
    "slow": 8,
    "later": 2,
    "retrying": 6,
    "in_thread": 4,
    "in_process": 1.5,
    "parent": 5,
    "ledger": 6,
}
"""How many of each sort there are."""


def any_call(chance: random.Random, longest: float, kinds: Sequence[str]) -> Call[Any]:
    """A task of any sort, most of them short."""
    seconds = longest * chance.random() ** 3
    match chance.choices(kinds, weights=[SHARES[kind] for kind in kinds])[0]:
        case "quick":
            return app.quick.call()
        case "slow":
            return app.slow.call(longest * chance.random())
        case "later":
            return app.slow.with_options(delay=chance.random() * 3).call(seconds)
        case "retrying":
            return app.retrying.call(seconds / 4, chance.choice([0, 1, 2, 4]))
        case "in_thread":
            return app.in_thread.call(seconds)
        case "in_process":
            return app.in_process.call(seconds)
        case "parent":
            return app.parent.call(seconds / 2, chance.choice([0, 0, 1, 4]), chance.randrange(4))
        case _:
            return app.ledger.call(seconds / 2)


async def produce(
    seed: int, a_second: float, longest: float, most: int | None = None, kinds: Sequence[str] = tuple(SHARES)
) -> None:
    """Enqueue until there are so many."""
    chance = random.Random(seed)
    stored = 0
    async with app.engine:
        while most is None or stored < most:
            number = chance.randint(1, BATCH if most is None else min(BATCH, most - stored))
            calls = [any_call(chance, longest, kinds) for _ in range(number)]
            try:
                handles = await app.engine.enqueue(calls)
            except StoreError as error:  # whether they were stored is not known, so nobody may count on it
                logging.info("not accepted: %s", error)
                await asyncio.sleep(0.2)
                continue
            note_accepted(handle.id for handle in handles)
            stored += len(handles)
            await asyncio.sleep(len(calls) / a_second)


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    producing = asyncio.create_task(produce(**json.loads(sys.argv[1])))
    told_to_end = asyncio.create_task(asyncio.to_thread(sys.stdin.read, 1))
    await asyncio.wait([producing, told_to_end], return_when=asyncio.FIRST_COMPLETED)
    if not producing.done():
        producing.cancel()
        await asyncio.wait([producing])
    elif (error := producing.exception()) is not None:
        logging.error("the producer gives up", exc_info=error)
    os._exit(0 if producing.cancelled() or producing.exception() is None else 1)  # the thread still reads


if __name__ == "__main__":
    asyncio.run(main())
