"""Many dependencies: no call does more for each of them than for the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.stores.actions import OUTCOMES, Worker, add, settlement_of, state_of
from tests.stores.test_dependencies import AFTER, add_after, chain

from synergon.model.dependencies import Need
from synergon.model.lifecycle import State
from synergon.model.outcomes import Succeeded
from synergon.model.tasks import NewTask
from synergon.stores.base import Store
from synergon.stores.sqlite import SqliteStore

MANY = 10_000
LONG = 5_000


async def many(store: Store, number: int) -> list[int]:
    return [insertion.id for insertion in await store.insert([NewTask(kind="work")] * number)]


async def test_one_depends_on_ten_thousand(store: Store, worker: Worker) -> None:
    needs = await many(store, MANY)
    after = await add_after(store, *needs)
    claims = await worker.claim(limit=MANY, kind_request=MANY)
    for start in range(0, MANY - 1, 500):
        await store.finish(
            [settlement_of(claim, Succeeded()) for claim in claims[start : start + 500][: MANY - 1 - start]]
        )
    assert await state_of(store, after) is State.WAITING
    await worker.finish(claims[-1], Succeeded())
    assert await state_of(store, after) is State.READY


async def test_ten_thousand_depend_on_one(store: Store, worker: Worker) -> None:
    needed = await add(store)
    await store.insert([replace(AFTER, after=(Need(task_id=needed),))] * MANY)
    verdict = await worker.run(Succeeded())
    assert len(verdict.released) == MANY
    assert await store.counts() == {("default", "after", State.READY): MANY, ("default", "work", State.SUCCEEDED): 1}


async def test_a_chain_of_five_thousand_is_cancelled_and_brought_back(store: Store, worker: Worker) -> None:
    ids = await chain(store, LONG)
    verdict = await worker.run(OUTCOMES["failed"])
    assert len(verdict.ended) == LONG - 1
    await store.retry(ids[:1])
    assert (await store.counts())["default", "work", State.WAITING] == LONG - 1
    for _ in range(3):
        await worker.run(Succeeded())
    assert await state_of(store, ids[3]) is State.READY


# ---------------------------------------------------------------- work of SQLite, which does not depend on the machine


class Work:
    """Counts what SQLite does for a store, in hundreds of instructions."""

    def __init__(self, store: SqliteStore) -> None:
        assert store._writer is not None
        self._connection = store._writer.connection
        self.done = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.done = 0
        self._connection.set_progress_handler(self._count, 100)
        try:
            yield
        finally:
            self._connection.set_progress_handler(None, 0)

    def _count(self) -> int:
        self.done += 1
        return 0


async def open_store(folder: Path, name: object) -> tuple[SqliteStore, Worker, Work]:
    store = SqliteStore(f"sqlite:///{folder}/{name}.db")
    await store.open()
    return store, await Worker.start(store), Work(store)


async def work_of_one_end(folder: Path, number: int) -> int:
    """What the end of one of so many dependencies takes."""
    store, worker, work = await open_store(folder, number)
    await add_after(store, *await many(store, number))
    first, second, *_ = await worker.claim(limit=2)
    await worker.finish(first, Succeeded())
    with work.counted():
        await worker.finish(second, Succeeded())
    await store.close()
    return work.done


async def work_of_dependents(folder: Path, number: int) -> int:
    """What the end of the one dependency of so many tasks takes."""
    store, worker, work = await open_store(folder, number)
    needed = await add(store)
    await store.insert([replace(AFTER, after=(Need(task_id=needed),))] * number)
    claim = await worker.claim_one()
    with work.counted():
        await worker.finish(claim, Succeeded())
    await store.close()
    return work.done


async def work_of_chain(folder: Path, number: int) -> int:
    """What the failure of the first step of so many takes, and its retry."""
    store, worker, work = await open_store(folder, number)
    ids = await chain(store, number)
    claim = await worker.claim_one()
    with work.counted():
        await worker.finish(claim, OUTCOMES["failed"])
        await store.retry(ids[:1])
    await store.close()
    return work.done


async def test_an_end_does_not_read_the_other_dependencies(tmp_path: Path) -> None:
    few, much = await work_of_one_end(tmp_path, 50), await work_of_one_end(tmp_path, 4000)
    assert much <= few + 5


@pytest.mark.parametrize("measure", [work_of_dependents, work_of_chain])
async def test_the_work_grows_with_the_number_and_not_with_its_square(tmp_path: Path, measure: object) -> None:
    assert callable(measure)
    few, much = await measure(tmp_path, 250), await measure(tmp_path, 2000)
    assert much <= 8 * few * 1.5
