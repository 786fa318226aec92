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
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from tests.chaos import app
from tests.chaos.journal import mend, note_accepted, note_retried

from synergon import Call, FlowRun
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
    "batched": 8,
    "flow": 3,
    "ledger": 6,
}
"""How many of each sort there are."""


def any_call(chance: random.Random, longest: float, sort: str) -> Call[Any]:
    """A task of this sort, most of them short."""
    seconds = longest * chance.random() ** 3
    match sort:
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
        case "batched":
            return app.batched.call(app.Item(seconds / 2, uuid.uuid4().hex))
        case _:
            return app.ledger.call(seconds / 2)


async def enqueue_flow(chance: random.Random, longest: float) -> None:
    """A flow whose first step may fail for good. In some flows another step fails until it is mended."""
    label, needs_mending = uuid.uuid4().hex, chance.random() < 0.4
    run = await app.new_flow(
        label,
        longest * chance.random() ** 3 / 4,
        chance.choice([0, 0, 1, 2, 4]),
        chance.randrange(5),
        chance.choice(["cancel", "run"]),
        needs_mending=needs_mending,
    ).enqueue()
    note_accepted(handle.id for handle in run.handles)
    if needs_mending:
        mending = asyncio.create_task(mend_and_retry(run, label))
        menders.add(mending)
        mending.add_done_callback(menders.discard)


menders: Final[set[asyncio.Task[None]]] = set()


async def mend_and_retry(run: FlowRun, label: str) -> None:
    """Mend the step of a flow that has failed for good, and retry the flow."""
    await until_served(run.wait)
    mend(label)
    await until_served(run.retry)
    note_retried(label)


async def until_served(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call through outages. Its effect may be there although the answer is lost."""
    while True:
        try:
            await call()
        except StoreError as error:
            logging.info("not served: %s", error)
            await asyncio.sleep(0.2)
        else:
            return


async def produce(
    seed: int, a_second: float, longest: float, most: int | None = None, kinds: Sequence[str] = tuple(SHARES)
) -> None:
    """Enqueue until there are so many."""
    chance = random.Random(seed)
    stored = 0
    async with app.engine:
        while most is None or stored < most:
            number = chance.randint(1, BATCH if most is None else min(BATCH, most - stored))
            sorts = chance.choices(kinds, weights=[SHARES[kind] for kind in kinds], k=number)
            calls = [any_call(chance, longest, sort) for sort in sorts if sort != "flow"]
            try:
                if calls:
                    note_accepted(handle.id for handle in await app.engine.enqueue(calls))
                for _ in range(sorts.count("flow")):
                    await enqueue_flow(chance, longest)
            except StoreError as error:  # whether they were stored is not known, so nobody may count on it
                logging.info("not accepted: %s", error)
                await asyncio.sleep(0.2)
                continue
            stored += number
            await asyncio.sleep(number / a_second)


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
