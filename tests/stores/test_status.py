"""The status of a store: ages by queue and kind, failures, overdue tasks."""

from __future__ import annotations

from tests.stores.actions import HOUR, MILLISECOND, OUTCOMES, Worker, add, add_many, pass_time

from synergon.model.outcomes import Report
from synergon.stores.base import Store


async def ages(store: Store) -> dict[str, list[str]]:
    found = (await store.status()).queues
    return {queue.name: [age.kind for age in queue.kinds] for queue in found}


async def test_an_empty_store_has_no_queues_and_no_failures(store: Store) -> None:
    found = await store.status()
    assert (found.queues, found.failures_last_hour, found.overdue, found.suspended_servers) == ((), {}, 0, ())
    assert await store.ready_kinds() == set()


async def test_the_oldest_ready_task_of_each_queue_and_kind_has_an_age(store: Store) -> None:
    await add(store, kind="b", queue="mail")
    await pass_time(store, 20 * MILLISECOND)
    await add(store, kind="a", queue="mail")
    await add(store, kind="a", queue="other")
    await add(store, kind="later", queue="mail", delay=HOUR)
    assert await ages(store) == {"mail": ["b", "a"], "other": ["a"]}
    assert await store.ready_kinds() == {"a", "b"}
    (mail, _) = (await store.status()).queues
    assert mail.oldest_ready_seconds is not None
    assert mail.oldest_ready_seconds >= 0.02
    assert mail.kinds[1].oldest_ready_seconds < mail.oldest_ready_seconds


async def test_an_old_task_of_a_low_priority_is_found_behind_young_ones(store: Store) -> None:
    await add(store, priority=-5)
    await pass_time(store, 50 * MILLISECOND)
    for priority in (10, 3, 0):
        await add_many(store, 3, priority=priority)
    (queue,) = (await store.status()).queues
    assert queue.oldest_ready_seconds is not None
    assert queue.oldest_ready_seconds >= 0.05


async def test_failures_are_counted_by_kind(store: Store, worker: Worker) -> None:
    for outcome in ("failed", "failed", "succeeded"):
        await add(store)
        await worker.run(OUTCOMES[outcome])
    assert list((await store.status()).failures_last_hour.values()) == [2]


async def test_overdue_tasks_are_counted(store: Store, worker: Worker) -> None:
    await add_many(store, 2)
    first, _ = await worker.claim(limit=2)
    await store.report([Report(id=first.id, claim_no=first.claim_no, overdue=True)])
    assert (await store.status()).overdue == 1
