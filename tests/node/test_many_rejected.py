"""Those that were refused do not slow the one that fits: by counting what is looked at, not by the clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.conftest import NewEngine
from tests.node.counted_functions import node_of
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, until

from synergon import Candidate, Engine, Resources
from synergon.model.claims import CandidateQuery
from synergon.model.task_records import TaskRecord
from synergon.node.capacity import candidate_cursor
from synergon.task import AnyTask

MANY = 1000


class Choosy:
    """A node that takes what has a positive number, and counts what it looks at and what it is asked about."""

    def __init__(self, engine: Engine, *, holds_for: float = 600) -> None:
        self.engine = engine
        self.looks: list[int] = []
        self.asked: list[int] = []
        self.kind = self._registered(holds_for)

    def _registered(self, holds_for: float) -> AnyTask:
        @self.engine.task
        async def note(number: int) -> int:
            return number

        @note.can_accept(holds_for=holds_for)
        async def positive(candidates: list[Candidate]) -> list[Candidate]:
            self.asked += [candidate.arguments["number"] for candidate in candidates]
            return [candidate for candidate in candidates if candidate.arguments["number"] > 0]

        return note

    def count_looks(self) -> None:
        store = self.engine._store
        look: Callable[[CandidateQuery], Awaitable[list[TaskRecord]]] = store.read_candidates

        async def counted(wanted: CandidateQuery) -> list[TaskRecord]:
            found = await look(wanted)
            self.looks.append(len(found))
            return found

        store.read_candidates = counted  # type: ignore[assignment, method-assign]  # put in its place

    async def refuse_many(self, count: int, priority: int = 0) -> None:
        before = len(self.asked)
        await self.kind.with_options(priority=priority).enqueue_many([(-number,) for number in range(count)])
        await until(lambda: len(self.asked) == before + count)

    async def take(self, number: int, priority: int = 0) -> None:
        handle = await self.kind.with_options(priority=priority).enqueue(number)
        assert await handle.result(PATIENCE_SECONDS) == number


@pytest.fixture
def no_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes through all of them again, however much time there is."""
    monkeypatch.setattr(candidate_cursor, "PASS_SHARE", 1e-9)


@pytest.mark.usefixtures("no_walks")
async def test_a_thousand_refused_are_not_looked_at_again_for_each_that_fits(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=60)
    choosy = Choosy(engine)
    async with engine, engine.worker():
        await choosy.refuse_many(MANY)
        await choosy.take(1)
        choosy.count_looks()
        choosy.asked.clear()
        for number in range(1, 6):
            await choosy.take(number)
    assert choosy.asked == [1, 2, 3, 4, 5]
    assert sum(choosy.looks) <= 5 * 3 * 10, "rows"
    assert len(choosy.looks) <= 5 * 3 * 2, "looks, for news of the beginning and of the end of a task"


@pytest.mark.usefixtures("no_walks")
async def test_one_that_fits_is_found_at_once_wherever_it_stands(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, sweep=60)
    choosy = Choosy(engine)
    async with engine, engine.worker():
        for priority in (5, 0):
            await choosy.refuse_many(MANY, priority)
        choosy.count_looks()
        for number, priority in enumerate((9, 5, 3, 0, -1, 0, 3, 5, 9), start=1):
            await choosy.take(number, priority=priority)
        burst = await choosy.kind.with_options(priority=5).enqueue_many([(100 + number,) for number in range(50)])
        for handle in burst:
            await handle.result(PATIENCE_SECONDS)
    assert sorted(set(choosy.asked)) == sorted([*range(1 - MANY, 1), *range(1, 10), *range(100, 150)])


async def test_one_that_comes_back_into_their_midst_is_found_before_a_verdict_expires(
    new_engine: NewEngine, memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate_cursor, "PASS_SHARE", 1e-9)
    engine = new_engine(memory_url, sweep=60)
    choosy = Choosy(engine)
    async with engine, engine.worker():
        await choosy.refuse_many(MANY // 2)
        early = await choosy.kind.with_options(delay=0.5).enqueue(1)
        await choosy.refuse_many(MANY // 2)
        found = node_of(engine).acceptance._polls["note"]._cursor
        monkeypatch.setattr(
            candidate_cursor, "PASS_SHARE", found._spent_seconds / 1.5
        )  # a second and a half after the first
        assert await early.result(PATIENCE_SECONDS) == 1


async def test_a_thousand_that_do_not_fit_are_not_looked_at_either(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=60, resources=Resources(cpu=1))
    choosy = Choosy(engine)
    async with engine, engine.worker():
        choosy.count_looks()
        too_large = choosy.kind.with_options(cost=Resources(cpu=2), priority=9)
        await too_large.enqueue_many([(number,) for number in range(1000, 1000 + MANY)])
        for number in range(1, 6):
            await choosy.take(number)
    assert choosy.asked == [1, 2, 3, 4, 5]
    assert sum(choosy.looks) <= 10
