"""Queues: pausing, resuming, and which there are."""

from __future__ import annotations

from tests.stores.actions import HOUR, OUTCOMES, Worker, add, add_many

from synergon.model.lifecycle import State
from synergon.model.outcomes import Succeeded
from synergon.model.record import from_datetime
from synergon.model.task_records import QueueRecord
from synergon.model.tasks import Cutoffs, NewTask
from synergon.stores.base import Store


async def _names(store: Store) -> list[str]:
    return [queue.name for queue in await store.queues()]


async def test_there_are_no_queues_at_first(store: Store) -> None:
    assert await store.queues() == []


async def test_a_queue_is_known_from_its_first_task_on(store: Store) -> None:
    await add(store, queue="b")
    await add(store, queue="a")
    assert await store.queues() == [
        QueueRecord(name="a", counts={State.READY: 1}),
        QueueRecord(name="b", counts={State.READY: 1}),
    ]


async def test_the_numbers_of_a_queue_are_over_all_its_kinds(store: Store, worker: Worker) -> None:
    await add_many(store, 2, kind="one")
    await add(store, kind="two")
    await add(store, kind="two", delay=HOUR)
    claims = await worker.claim("one")
    await worker.finish(claims[0], OUTCOMES["succeeded"])
    (queue,) = await store.queues()
    assert queue.counts == {State.READY: 1, State.SCHEDULED: 1, State.RUNNING: 1, State.SUCCEEDED: 1}


async def test_a_queue_stays_known_when_its_tasks_are_gone(store: Store) -> None:
    first = await add(store, queue="a")
    second = await add(store, queue="b")
    await store.delete([first])
    await store.cancel([second])
    await store.prune(Cutoffs(cancelled=-HOUR), 10)
    assert await store.queues() == [QueueRecord(name="a"), QueueRecord(name="b")]


async def test_a_queue_is_known_from_a_child_on(store: Store, worker: Worker) -> None:
    await add(store, queue="parents")
    await worker.run(Succeeded(children=(NewTask(kind="child", queue="children"),)))
    assert await _names(store) == ["children", "parents"]


async def test_a_queue_is_known_from_a_replacement_on(store: Store) -> None:
    await add(store, queue="old", key="a")
    await add(store, queue="new", key="a", on_conflict="replace")
    assert await store.queues() == [QueueRecord(name="new", counts={State.READY: 1}), QueueRecord(name="old")]


async def test_a_queue_is_not_known_from_a_task_that_was_not_stored(store: Store) -> None:
    await add(store, queue="held", key="a")
    await add(store, queue="other", key="a", on_conflict="return")
    assert await _names(store) == ["held"]


async def test_pausing_tells_since_when(store: Store) -> None:
    before = await store.now()
    assert await store.pause(["a"]) == [True]
    (queue,) = await store.queues()
    assert queue.is_paused
    assert queue.paused_at is not None
    assert before <= from_datetime(queue.paused_at) <= await store.now()


async def test_a_paused_queue_cannot_be_paused_again(store: Store) -> None:
    await store.pause(["a"])
    (before,) = await store.queues()
    assert await store.pause(["a", "b"]) == [False, True]
    after, _ = await store.queues()
    assert after == before


async def test_a_resumed_queue_is_open(store: Store) -> None:
    await store.pause(["a"])
    assert await store.resume(["a"]) == [True]
    (queue,) = await store.queues()
    assert not queue.is_paused


async def test_a_queue_that_is_not_paused_cannot_be_resumed(store: Store) -> None:
    await add(store, queue="open")
    assert await store.resume(["open", "unknown"]) == [False, False]


async def test_pausing_leaves_running_tasks_alone(store: Store, worker: Worker) -> None:
    await add(store)
    claim = await worker.claim_one()
    await store.pause(["default"])
    assert (await worker.finish(claim, OUTCOMES["succeeded"])).state is State.SUCCEEDED


async def test_a_paused_queue_takes_new_tasks(store: Store, worker: Worker) -> None:
    await store.pause(["default"])
    task_id = await add(store)
    assert await worker.claim_ids() == []
    await store.resume(["default"])
    assert await worker.claim_ids() == [task_id]


async def test_a_task_handed_back_to_a_paused_queue_waits_there(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.pause(["default"])
    await worker.finish(claim, OUTCOMES["handed back"])
    assert await worker.claim_ids() == []
    await store.resume(["default"])
    assert await worker.claim_ids() == [task_id]
