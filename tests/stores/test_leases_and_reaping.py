"""Nodes, their leases, and what becomes of the work of dead ones."""

from __future__ import annotations

import pytest
from tests.stores.actions import (
    HOUR,
    KIND,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_many,
    new_node,
    pass_lease,
    read,
    state_of,
)

from synergon.model.lifecycle import Reason, State
from synergon.model.tasks import NewTask, Reaped
from synergon.policies import CRASH_LIMIT, OWNER_DEATH_LIMIT
from synergon.stores.base import Store


async def _node_ids(store: Store) -> list[str]:
    return sorted(node.id for node in await store.nodes())


# ---------------------------------------------------------------- nodes


async def test_a_registered_node_is_known_with_all_it_said(store: Store) -> None:
    new = new_node("node-1", lease=HOUR)
    before = await store.now()
    await store.register(new)
    (node,) = await store.nodes()
    assert (node.id, node.name, node.process, node.kinds) == (new.id, new.name, new.process, new.kinds)
    assert (node.queues, node.concurrency, node.version, node.address) == (None, 8, "1.2.3", new.address)
    assert before <= int(node.registered_at.timestamp() * 1_000_000) + 1
    assert 3590 < node.lease_remaining <= 3600


async def test_a_node_may_be_for_some_queues_only(store: Store) -> None:
    new = new_node("node-1")
    await store.register(type(new)(**{name: getattr(new, name) for name in new.__struct_fields__} | {"queues": ("a",)}))
    (node,) = await store.nodes()
    assert node.queues == ("a",)


async def test_all_nodes_are_listed(store: Store) -> None:
    for node_id in ("a", "b", "c"):
        await store.register(new_node(node_id))
    assert await _node_ids(store) == ["a", "b", "c"]


async def test_the_tasks_of_each_node_are_counted(store: Store, worker: Worker) -> None:
    other, idle = await Worker.start(store, "other"), await Worker.start(store, "idle")
    await add_many(store, 4)
    claims = [*await worker.claim(limit=2), *await other.claim(limit=1)]
    assert await store.running_by_node() == {worker.node_id: 2, other.node_id: 1}
    assert idle.node_id not in await store.running_by_node()
    await worker.finish(claims[0], OUTCOMES["succeeded"])
    await store.unregister(other.node_id)
    assert await store.running_by_node() == {worker.node_id: 1, other.node_id: 1}


async def test_an_unregistered_node_is_forgotten(store: Store, worker: Worker) -> None:
    await store.unregister(worker.node_id)
    assert await store.nodes() == []
    await store.unregister(worker.node_id)


async def test_a_node_whose_lease_is_over_is_listed_until_somebody_reaps_it(store: Store) -> None:
    await store.register(new_node("dead", lease=MILLISECOND))
    await pass_lease(store, "dead")
    assert await _node_ids(store) == ["dead"]
    await store.reap([], 10)
    assert await store.nodes() == []


# ---------------------------------------------------------------- leases


async def test_a_keeper_renews_from_now(store: Store) -> None:
    await store.register(new_node("node-1", lease=50 * MILLISECOND))
    keeper = await store.keeper()
    assert await keeper.renew("node-1", HOUR) is True
    await keeper.close()
    (node,) = await store.nodes()
    assert node.lease_remaining > 3590


async def test_a_keeper_is_told_that_the_row_is_gone(store: Store, worker: Worker) -> None:
    keeper = await store.keeper()
    await store.reap([worker.node_id], 10)
    assert await keeper.renew(worker.node_id, HOUR) is False
    assert await store.nodes() == []
    await keeper.close()


async def test_a_lease_that_is_over_can_be_renewed_while_the_row_is_there(store: Store) -> None:
    await store.register(new_node("node-1", lease=MILLISECOND))
    await pass_lease(store, "node-1")
    keeper = await store.keeper()
    assert await keeper.renew("node-1", HOUR) is True
    await keeper.close()
    assert await store.reap([], 10) == []
    assert await _node_ids(store) == ["node-1"]


# ---------------------------------------------------------------- who is dead


async def test_the_work_of_a_live_node_is_left_alone(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.claim()
    assert await store.reap([], 10) == []
    assert await store.reap(["somebody else"], 10) == []
    assert (await read(store, task_id)).node_id == worker.node_id
    assert await _node_ids(store) == [worker.node_id]


async def test_a_node_named_gone_is_dead_though_its_lease_lives(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.claim()
    assert await store.reap([worker.node_id], 10) == [
        Reaped(id=task_id, kind=KIND, node_id=worker.node_id, state=State.READY, owner_deaths=1)
    ]
    assert await store.nodes() == []


async def test_a_node_without_a_row_is_dead(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.claim()
    await store.unregister(worker.node_id)
    assert [reaped.id for reaped in await store.reap([], 10)] == [task_id]


async def test_a_node_whose_lease_is_over_is_dead(store: Store) -> None:
    short = await Worker.start(store, "short", lease=HOUR)
    task_id = await add(store)
    await short.claim()
    keeper = await store.keeper()
    await keeper.renew("short", MILLISECOND)
    await keeper.close()
    await pass_lease(store, "short")
    assert [(reaped.id, reaped.node_id) for reaped in await store.reap([], 10)] == [(task_id, "short")]
    assert await store.nodes() == []


async def test_only_the_dead_are_reaped(store: Store, worker: Worker) -> None:
    dead = await Worker.start(store, "dead")
    theirs = await add_many(store, 2)
    await dead.claim()
    mine = await add_many(store, 2)
    await worker.claim()
    assert sorted(reaped.id for reaped in await store.reap(["dead"], 10)) == theirs
    assert [await state_of(store, task_id) for task_id in mine] == [State.RUNNING] * 2
    assert await _node_ids(store) == [worker.node_id]


# ---------------------------------------------------------------- what becomes of their work


async def test_a_reaped_task_is_charged_nothing(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(OUTCOMES["retrying at once"])
    await worker.claim()
    await store.reap([worker.node_id], 10)
    record = await read(store, task_id)
    assert (record.state, record.attempts, record.crashes, record.claim_no) == (State.READY, 1, 0, 2)
    assert (record.node_id, record.overdue) == (None, False)


async def test_a_reaped_task_tells_of_the_death(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.claim()
    await store.reap([worker.node_id], 10)
    (error,) = (await read(store, task_id)).errors
    assert (error.attempt, error.node_id) == (1, worker.node_id)
    assert worker.node_id in error.message
    assert error.at is not None


async def test_a_task_that_outlived_too_many_nodes_has_failed(store: Store) -> None:
    task_id = await add(store)
    states = []
    for number in range(OWNER_DEATH_LIMIT):
        await (await Worker.start(store, f"node-{number}")).claim()
        (reaped,) = await store.reap([f"node-{number}"], 10)
        states.append((reaped.state, reaped.owner_deaths))
    assert states == [*((State.READY, number) for number in range(1, OWNER_DEATH_LIMIT)), (State.FAILED, 10)]
    record = await read(store, task_id)
    assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.CRASHED, 0)
    assert len(record.errors) == OWNER_DEATH_LIMIT
    assert record.finished_at is not None


async def test_deaths_of_nodes_and_crashes_of_children_count_apart(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    for _ in range(CRASH_LIMIT - 1):
        await worker.run(OUTCOMES["crashed"])
    await worker.claim()
    await store.reap([worker.node_id], 10)
    record = await read(store, task_id)
    assert (record.state, record.crashes, record.owner_deaths) == (State.READY, CRASH_LIMIT - 1, 1)


async def test_a_task_that_was_to_be_cancelled_ends_cancelled(store: Store, worker: Worker) -> None:
    task_id = await add(store, key="a")
    await worker.claim()
    await store.cancel([task_id])
    (reaped,) = await store.reap([worker.node_id], 10)
    assert (reaped.state, reaped.owner_deaths) == (State.CANCELLED, 1)
    assert (await read(store, task_id)).reason is Reason.CANCELLED
    assert (await store.insert([NewTask(kind=KIND, key="a")]))[0].created


async def test_a_cancel_wins_over_the_last_death(store: Store) -> None:
    task_id = await add(store)
    for number in range(OWNER_DEATH_LIMIT - 1):
        await (await Worker.start(store, f"node-{number}")).claim()
        await store.reap([f"node-{number}"], 10)
    last = await Worker.start(store, "last")
    await last.claim()
    await store.cancel([task_id])
    assert [reaped.state for reaped in await store.reap(["last"], 10)] == [State.CANCELLED]


async def test_reaping_twice_is_reaping_once(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.claim()
    await store.reap([worker.node_id], 10)
    assert await store.reap([worker.node_id], 10) == []
    assert (await read(store, task_id)).owner_deaths == 1


# ---------------------------------------------------------------- limits


async def test_no_more_than_the_limit_is_reaped_and_the_node_stays_until_it_holds_none(
    store: Store, worker: Worker
) -> None:
    ids = await add_many(store, 5)
    await worker.claim()
    first = await store.reap([worker.node_id], 3)
    assert len(first) == 3
    assert await _node_ids(store) == [worker.node_id]
    second = await store.reap([worker.node_id], 3)
    assert sorted(reaped.id for reaped in first + second) == ids
    assert await store.nodes() == []


async def test_the_limit_holds_over_all_dead_nodes(store: Store) -> None:
    for node_id in ("a", "b"):
        node = await Worker.start(store, node_id)
        await add_many(store, 2)
        await node.claim()
    assert len(await store.reap(["a", "b"], 3)) == 3
    assert len(await store.nodes()) == 1
    assert len(await store.reap(["a", "b"], 3)) == 1
    assert await store.nodes() == []


@pytest.mark.parametrize("limit", [1, 10])
async def test_dead_nodes_that_hold_nothing_are_removed(store: Store, worker: Worker, limit: int) -> None:
    for node_id in ("a", "b"):
        await store.register(new_node(node_id))
    assert await store.reap(["a", "b"], limit) == []
    assert await _node_ids(store) == [worker.node_id]
