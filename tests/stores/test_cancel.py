"""Cancelling, in every state."""

from __future__ import annotations

import pytest
from tests.stores.actions import KIND, OUTCOMES, Worker, add, add_in_state, add_many, read, state_of

from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.tasks import Moved, NewTask
from synergon.stores.base import Store


@pytest.mark.parametrize("state", [State.SCHEDULED, State.READY])
async def test_a_task_that_does_not_run_ends_at_once(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state)
    before = await read(store, task_id)
    assert await store.cancel([task_id]) == [Moved(id=task_id, done=True, state=State.CANCELLED, kind=KIND)]
    record = await read(store, task_id)
    assert (record.state, record.reason) == (State.CANCELLED, Reason.CANCELLED)
    assert record.finished_at is not None
    assert (record.attempts, record.node_id, record.run_at) == (0, None, before.run_at)


async def test_a_running_task_is_asked_and_its_node_named(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.claim()
    expected = Moved(id=task_id, done=True, state=State.RUNNING, kind=KIND, node_id=worker.node_id)
    assert await store.cancel([task_id]) == [expected]
    record = await read(store, task_id)
    assert (record.state, record.cancel_requested) == (State.RUNNING, True)


async def test_asking_twice_is_asking_once(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.claim()
    await store.cancel([task_id], why="first")
    (again,) = await store.cancel([task_id], why="second")
    assert again.state is State.RUNNING
    assert [error.message for error in (await read(store, task_id)).errors] == ["first"]


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_an_ended_task_stays_as_it_is(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state)
    before = await read(store, task_id)
    assert await store.cancel([task_id], why="late") == [Moved(id=task_id, done=False, state=state, kind=KIND)]
    assert await read(store, task_id) == before


async def test_an_unknown_task_is_reported(store: Store) -> None:
    assert await store.cancel([4711]) == [Moved(id=4711, done=False, state=None)]


async def test_the_answers_come_in_the_order_of_the_ids(store: Store) -> None:
    first, second = await add_many(store, 2)
    moved = await store.cancel([second, 4711, first])
    assert [(move.id, move.done) for move in moved] == [(second, True), (4711, False), (first, True)]


@pytest.mark.parametrize("state", [State.SCHEDULED, State.READY, State.RUNNING])
async def test_what_was_said_with_a_cancel_is_kept(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state)
    await store.cancel([task_id], why="the customer left")
    record = await read(store, task_id)
    assert record.error is not None
    assert record.error.message == "the customer left"
    assert record.error.at is not None


async def test_a_cancelled_key_is_free(store: Store) -> None:
    await store.cancel([await add(store, key="a")])
    assert (await store.insert([NewTask(kind=KIND, key="a", on_conflict="raise")]))[0].created


async def test_the_key_of_a_running_task_stays_held_until_its_end(store: Store, worker: Worker) -> None:
    task_id = await add(store, key="a")
    await worker.claim()
    await store.cancel([task_id])
    assert await add(store, key="a") == task_id


async def cancel_requests(store: Store, node_id: str) -> list[int]:
    """The running tasks of a node that shall be cancelled."""
    return [request.id for request in await store.requests(node_id) if request.cancel_requested]


async def test_a_node_learns_which_of_its_tasks_shall_be_cancelled(store: Store, worker: Worker) -> None:
    other = await Worker.start(store, "node-2")
    mine = await add_many(store, 3)
    await worker.claim()
    (not_mine,) = await add_many(store, 1)
    await other.claim()
    await store.cancel([mine[0], mine[2], not_mine])
    assert sorted(await cancel_requests(store, worker.node_id)) == [mine[0], mine[2]]
    assert await cancel_requests(store, other.node_id) == [not_mine]


async def test_a_node_without_requests_learns_nothing(store: Store, worker: Worker) -> None:
    await add(store)
    await worker.claim()
    assert await cancel_requests(store, worker.node_id) == []
    assert await cancel_requests(store, "stranger") == []


async def test_a_settled_task_is_not_asked_for_any_more(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.cancel([task_id])
    await worker.finish(claim, OUTCOMES["cancelled"])
    assert await cancel_requests(store, worker.node_id) == []


async def test_a_wish_does_not_outlive_the_end(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    await store.cancel([task_id])
    await worker.finish(claim, OUTCOMES["failed"])
    await store.retry([task_id])
    claim = await worker.claim_one()
    assert await cancel_requests(store, worker.node_id) == []
    assert (await worker.finish(claim, OUTCOMES["succeeded"])).state is State.SUCCEEDED
    assert await state_of(store, task_id) is State.SUCCEEDED
