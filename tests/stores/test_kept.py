"""`keep_for`: ended tasks that remain in the history for longer or shorter than the retention says."""

from __future__ import annotations

import pytest
from tests.stores.actions import HOUR, MILLISECOND, OUTCOMES, Worker, add, add_many, listed, pass_time

from synergon.model.lifecycle import State
from synergon.model.tasks import Cutoffs
from synergon.stores.base import Store

SECOND = 1000 * MILLISECOND
EVERYTHING = Cutoffs(succeeded=0, failed=0, cancelled=0)
NOTHING = Cutoffs()


async def run_all(worker: Worker, outcome: str = "succeeded") -> None:
    for claim in await worker.claim(limit=100):
        await worker.finish(claim, OUTCOMES[outcome])


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
async def test_a_task_is_deleted_at_its_own_age(store: Store, worker: Worker, outcome: str) -> None:
    short = await add(store, keep_for=0)
    long = await add(store, keep_for=HOUR)
    plain = await add(store)
    await run_all(worker, outcome)
    await pass_time(store, MILLISECOND)
    assert await store.prune(NOTHING, 100) == 1
    assert await listed(store) == [plain, long]
    assert short not in await listed(store)


async def test_the_retention_does_not_apply_to_a_task_with_an_age_of_its_own(store: Store, worker: Worker) -> None:
    kept = await add(store, keep_for=HOUR)
    await add(store)
    await run_all(worker)
    await pass_time(store, MILLISECOND)
    assert await store.prune(EVERYTHING, 100) == 1
    assert await listed(store) == [kept]


async def test_old_tasks_are_found_behind_many_that_are_kept(store: Store, worker: Worker) -> None:
    await add_many(store, 30, keep_for=HOUR)
    await add(store)
    await run_all(worker)
    await pass_time(store, MILLISECOND)
    assert await store.prune(EVERYTHING, 2) == 1


async def test_no_more_than_the_limit_are_deleted_at_once(store: Store, worker: Worker) -> None:
    for keep_for in (0, 1, 2):
        await add_many(store, 2, keep_for=keep_for)
    await run_all(worker)
    await pass_time(store, MILLISECOND)
    assert [await store.prune(NOTHING, 4), await store.prune(NOTHING, 4), await store.prune(NOTHING, 4)] == [4, 2, 0]
    assert await store.counts() == {}


async def test_a_task_that_is_retried_retains_its_age(store: Store, worker: Worker) -> None:
    task_id = await add(store, keep_for=0)
    await run_all(worker, "failed")
    await store.retry([task_id])
    await pass_time(store, MILLISECOND)
    assert await store.prune(NOTHING, 100) == 0
    await run_all(worker)
    assert [record.state for record in await store.get([task_id]) if record is not None] == [State.SUCCEEDED]
    await pass_time(store, MILLISECOND)
    assert await store.prune(NOTHING, 100) == 1


async def test_a_replaced_task_has_the_age_of_the_new_one(store: Store, worker: Worker) -> None:
    await add(store, key="a", keep_for=HOUR)
    await add(store, key="a", keep_for=0, on_conflict="replace")
    await run_all(worker)
    await pass_time(store, MILLISECOND)
    assert await store.prune(NOTHING, 100) == 1
