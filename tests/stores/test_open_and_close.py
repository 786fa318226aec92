"""Opening, closing, the clock, and what a store says about itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.stores.actions import HOUR, KIND, Worker, add, new_node, pass_time, read, state_of

from synergon.errors import NotConnected
from synergon.model.claims import ClaimRequest
from synergon.model.record import from_datetime
from synergon.model.task_records import TaskQuery
from synergon.model.tasks import Cutoffs, NewTask
from synergon.stores.base import Store

CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "now": lambda store: store.now(),
    "insert": lambda store: store.insert([NewTask(kind=KIND)]),
    "claim": lambda store: store.claim(ClaimRequest(node_id="node-1", kinds=(), limit=1)),
    "finish": lambda store: store.finish([]),
    "report": lambda store: store.report([]),
    "requests": lambda store: store.requests("node-1"),
    "extend_timeout": lambda store: store.extend_timeout([]),
    "update_meta": lambda store: store.update_meta([]),
    "wake": lambda store: store.wake(1),
    "reap": lambda store: store.reap([], 1),
    "prune": lambda store: store.prune(Cutoffs(), 1),
    "register": lambda store: store.register(new_node("node-1")),
    "unregister": lambda store: store.unregister("node-1"),
    "nodes": lambda store: store.nodes(),
    "cancel": lambda store: store.cancel([1]),
    "retry": lambda store: store.retry([1]),
    "delete": lambda store: store.delete([1]),
    "reschedule": lambda store: store.reschedule([]),
    "set_priority": lambda store: store.set_priority([]),
    "pause": lambda store: store.pause(["default"]),
    "resume": lambda store: store.resume(["default"]),
    "get": lambda store: store.get([1]),
    "list_tasks": lambda store: store.list_tasks(TaskQuery()),
    "counts": lambda store: store.counts(),
    "recount": lambda store: store.recount(0),
    "queues": lambda store: store.queues(),
    "describe": lambda store: store.describe(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_call_after_close_raises_not_connected(
    store: Store, call: Callable[[Store], Awaitable[object]]
) -> None:
    await store.close()
    with pytest.raises(NotConnected):
        await call(store)


async def test_a_call_before_open_raises_not_connected(unopened: Store) -> None:
    with pytest.raises(NotConnected):
        await unopened.now()


async def test_close_may_be_called_twice(store: Store) -> None:
    await store.close()
    await store.close()


async def test_close_of_a_store_that_was_never_opened_does_nothing(unopened: Store) -> None:
    await unopened.close()


async def test_calls_under_way_are_finished_by_close(store: Store) -> None:
    inserting = [asyncio.create_task(store.insert([NewTask(kind=KIND)])) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    insertions = [insertion for (insertion,) in await asyncio.gather(*inserting)]
    assert len({insertion.id for insertion in insertions}) == 20


async def test_a_keeper_of_a_closed_store_renews_nothing(store: Store, worker: Worker) -> None:
    keeper = await store.keeper()
    await store.close()
    with pytest.raises(NotConnected):
        await keeper.renew(worker.node_id, HOUR)


async def test_the_clock_goes_on_and_never_back(store: Store) -> None:
    before = await store.now()
    await pass_time(store, 2000)
    moments = [await store.now() for _ in range(100)]
    assert moments == sorted(moments)
    assert moments[0] >= before + 2000


async def test_what_is_written_is_never_later_than_the_clock(store: Store) -> None:
    before = await store.now()
    task_id = await add(store)
    assert before <= from_datetime((await read(store, task_id)).enqueued_at) <= await store.now()


async def test_it_describes_itself_in_words(store: Store) -> None:
    facts = await store.describe()
    assert facts
    assert all(isinstance(name, str) and isinstance(fact, str) for name, fact in facts.items())


async def test_what_is_durable_survives_a_restart(store: Store) -> None:
    task_id = await add(store)
    await store.close()
    await store.open()
    survives = await state_of(store, task_id) is not None
    assert survives == store.capabilities.durable


async def test_ids_go_on_growing_after_a_restart(store: Store) -> None:
    if not store.capabilities.durable:
        pytest.skip("nothing survives a restart here")
    task_id = await add(store)
    await store.delete([task_id])
    await store.close()
    await store.open()
    assert await add(store) > task_id
