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
from typing import Any

from tests.chaos import app
from tests.chaos.journal import ACCEPTED, append

from synergon import Call
from synergon.errors import StoreError

BATCH = 10


def any_call(chance: random.Random, longest: float) -> Call[Any]:
    """A task of any sort, most of them short."""
    seconds = longest * chance.random() ** 3
    match chance.choices(range(8), weights=[20, 10, 6, 4, 1.5, 5, 1, 6])[0]:
        case 0:
            return app.quick.call()
        case 1:
            return app.slow.call(seconds)
        case 2:
            return app.retrying.call(seconds / 4, chance.choice([0, 1, 2, 4]))
        case 3:
            return app.in_thread.call(seconds)
        case 4:
            return app.in_process.call(seconds)
        case 5:
            return app.parent.call(seconds / 2, chance.choice([0, 0, 1, 4]), chance.randrange(4))
        case 6:
            return app.slow.with_options(delay=chance.random() * 3).call(seconds)
        case _:
            return app.ledger.call(seconds / 2)


async def produce(seed: int, a_second: float, longest: float, most: int | None = None) -> None:
    """Enqueue until there are so many."""
    chance = random.Random(seed)
    stored = 0
    async with app.engine:
        while most is None or stored < most:
            calls = [any_call(chance, longest) for _ in range(chance.randint(1, BATCH))]
            try:
                handles = await app.engine.enqueue(calls)
            except StoreError as error:  # whether they were stored is not known, so nobody may count on it
                logging.info("not accepted: %s", error)
                await asyncio.sleep(0.2)
                continue
            append(ACCEPTED, *(handle.id for handle in handles), sync=True)
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
