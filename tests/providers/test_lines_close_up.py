"""Tasks of many lines that end together pass their places on together, on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.support import PATIENCE_SECONDS, make_troubled

from synergon import Engine
from synergon.errors import StoreUnavailable
from synergon.model.claims import Claim

CUSTOMERS: Final = 8
ROUNDS: Final = 6
TASKS: Final = CUSTOMERS * ROUNDS


class Shop:
    """Bodies that end together: each round of customers lets go of itself."""

    def __init__(self) -> None:
        self.inside: Counter[int] = Counter()
        self.most = 0
        self._barrier = asyncio.Barrier(CUSTOMERS)

    async def serve(self, number: int) -> int:
        customer = number % CUSTOMERS
        self.inside[customer] += 1
        self.most = max(self.most, self.inside[customer])
        await self._barrier.wait()
        self.inside[customer] -= 1
        return number


async def run(url: str, hear: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> tuple[list[int], Shop]:
    """The results of all tasks; `hear` stands between the node and the store."""
    engine, shop = Engine(url), Shop()
    made = make_troubled(engine)
    task = engine.task(name="serve", limit_by=lambda number: str(number % CUSTOMERS), limit=1)(shop.serve)
    async with engine:
        made[-1].cause("pass_all_on", hear)
        handles = await task.enqueue_many((number,) for number in range(TASKS))
        async with engine.worker():
            return [await handle.result(timeout=PATIENCE_SECONDS) for handle in handles], shop


async def test_the_next_of_each_line_start_with_the_commit_that_ends_those_before(postgres_url: str) -> None:
    passed: list[Claim] = []

    async def note(call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await call()
        passed.extend(answer[1] if answer is not None else ())
        return answer

    results, shop = await run(postgres_url, note)
    assert (results, shop.most) == (list(range(TASKS)), 1)
    assert len(passed) >= CUSTOMERS, "nearly all of them; but claims may come between"


async def test_those_who_started_unheard_run_all_the_same(postgres_url: str) -> None:
    """The store has passed places on, and its answer is lost: nobody here knows of the tasks that run now."""
    lost: list[Claim] = []

    async def lose_the_answer(call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await call()
        if answer is None or lost:
            return answer
        lost.extend(answer[1])
        raise StoreUnavailable("the answer is lost")

    results, shop = await run(postgres_url, lose_the_answer)
    assert (results, shop.most) == (list(range(TASKS)), 1)
    assert lost
