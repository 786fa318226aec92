"""Nodes take tasks: which, in which order, and who may."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from tests.stores.actions import (
    ERROR,
    HOUR,
    KIND,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_many,
    pass_lease,
    pass_time,
    read,
    state_of,
)

from synergon.errors import LeaseLost
from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.model.lifecycle import State
from synergon.model.outcomes import Retrying
from synergon.model.record import from_datetime
from synergon.model.tasks import NewTask, Reprioritizing, Rescheduling
from synergon.policies import HIGHEST_PRIORITY, LOWEST_PRIORITY
from synergon.stores.base import Store

# ---------------------------------------------------------------- what a claim does


async def test_a_claimed_task_runs_on_the_node_that_took_it(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    before = await store.now()
    await worker.claim()
    record = await read(store, task_id)
    assert (record.state, record.node_id) == (State.RUNNING, worker.node_id)
    assert (record.claim_no, record.attempts, record.crashes) == (1, 1, 0)
    assert record.started_at is not None
    assert before <= from_datetime(record.started_at) <= await store.now()


async def test_a_claim_carries_all_that_an_attempt_needs(store: Store, worker: Worker) -> None:
    task_id = await add(
        store,
        queue="mail",
        payload=b'{"to":"a"}',
        max_attempts=3,
        overrides=b'{"timeout":3}',
        tags=("a", "b"),
        meta=b'{"c":1}',
    )
    assert [replace(claim, waited=0) for claim in await worker.claim()] == [
        Claim(
            id=task_id,
            claim_no=1,
            kind=KIND,
            queue="mail",
            payload=b'{"to":"a"}',
            attempts=1,
            max_attempts=3,
            overrides=b'{"timeout":3}',
            tags=("a", "b"),
            meta=b'{"c":1}',
        )
    ]


async def test_a_claim_of_a_plain_task_has_nothing_extra(store: Store, worker: Worker) -> None:
    await add(store)
    claim = await worker.claim_one()
    assert (claim.max_attempts, claim.overrides, claim.tags, claim.meta) == (None, None, (), None)


async def test_claim_numbers_grow_at_each_claim_and_attempts_count_bodies(store: Store, worker: Worker) -> None:
    await add(store)
    await worker.run(OUTCOMES["retrying at once"])
    await worker.run(OUTCOMES["handed back"])
    await worker.run(OUTCOMES["crashed"])
    claim = await worker.claim_one()
    assert (claim.claim_no, claim.attempts) == (4, 2)


async def test_a_running_task_is_not_taken_twice(store: Store, worker: Worker) -> None:
    other = await Worker.start(store, "node-2")
    task_id = await add(store)
    assert await worker.claim_ids() == [task_id]
    assert await worker.claim_ids() == []
    assert await other.claim_ids() == []
    assert (await read(store, task_id)).node_id == worker.node_id


async def test_nodes_that_claim_at_the_same_time_share_without_overlap(store: Store) -> None:
    ids = await add_many(store, 100)
    workers = [await Worker.start(store, f"node-{number}") for number in range(5)]
    shares = await asyncio.gather(*(worker.claim_ids(limit=20) for worker in workers))
    assert sorted(task_id for share in shares for task_id in share) == ids


# ---------------------------------------------------------------- order


async def test_equals_go_first_in_first_out(store: Store, worker: Worker) -> None:
    ids = [await add(store) for _ in range(10)]
    assert await worker.claim_ids(limit=4) == ids[:4]
    assert await worker.claim_ids() == ids[4:]


async def test_the_higher_priority_goes_first(store: Store, worker: Worker) -> None:
    low, middle, high = [await add(store, priority=priority) for priority in (-5, 0, 5)]
    assert await worker.claim_ids() == [high, middle, low]


async def test_priorities_may_be_as_far_apart_as_64_bits_allow(store: Store, worker: Worker) -> None:
    priorities = [0, LOWEST_PRIORITY, HIGHEST_PRIORITY, -1, LOWEST_PRIORITY + 1, HIGHEST_PRIORITY - 1, 1]
    by_priority = {priority: await add(store, priority=priority) for priority in priorities}
    assert await worker.claim_ids() == [by_priority[priority] for priority in sorted(priorities, reverse=True)]


async def test_the_order_is_one_across_kinds_and_queues(store: Store, worker: Worker) -> None:
    chance = random.Random(7)
    tasks = [
        NewTask(kind=chance.choice("abc"), queue=chance.choice("xyz"), priority=chance.randint(-2, 2))
        for _ in range(200)
    ]
    insertions = await store.insert(tasks)
    expected = sorted((-task.priority, insertion.id) for task, insertion in zip(tasks, insertions, strict=True))
    taken: list[int] = []
    while ids := await worker.claim_ids("a", "b", "c", limit=7):
        taken += ids
    assert taken == [task_id for _, task_id in expected]


@pytest.mark.parametrize("outcome", ["retrying at once", "handed back"])
async def test_a_task_that_comes_back_keeps_its_place(store: Store, worker: Worker, outcome: str) -> None:
    first = await add(store)
    await worker.run(OUTCOMES[outcome])
    others = await add_many(store, 3)
    assert await worker.claim_ids() == [first, *others]


async def test_a_retry_that_had_to_wait_keeps_its_place(store: Store, worker: Worker) -> None:
    first = await add(store)
    await worker.run(Retrying(delay=MILLISECOND, error=ERROR))
    others = await add_many(store, 3)
    await pass_time(store, MILLISECOND)
    await store.wake(10)
    assert await worker.claim_ids() == [first, *others]


async def test_a_task_that_was_due_later_goes_by_its_id(store: Store, worker: Worker) -> None:
    first = await add(store, delay=MILLISECOND)
    second = await add(store)
    await pass_time(store, MILLISECOND)
    await store.wake(10)
    assert await worker.claim_ids() == [first, second]


async def test_a_task_that_is_retried_by_hand_keeps_its_place(store: Store, worker: Worker) -> None:
    first = await add(store)
    await worker.run(OUTCOMES["failed"])
    others = await add_many(store, 2)
    await store.retry([first])
    assert await worker.claim_ids() == [first, *others]


async def test_an_older_task_of_lower_priority_waits_for_newer_ones(store: Store, worker: Worker) -> None:
    old = await add(store, priority=1)
    new = await add(store, priority=2)
    assert await worker.claim_ids(limit=1) == [new]
    assert await worker.claim_ids(limit=1) == [old]


async def test_a_changed_priority_changes_the_order(store: Store, worker: Worker) -> None:
    first, second, third = await add_many(store, 3)
    await store.set_priority([Reprioritizing(id=third, priority=1), Reprioritizing(id=first, priority=-1)])
    assert await worker.claim_ids() == [third, second, first]


async def test_a_priority_changed_to_and_fro_leaves_one_task(store: Store, worker: Worker) -> None:
    first, second = await add_many(store, 2)
    for priority in (1, 0, -1, 0):
        await store.set_priority([Reprioritizing(id=first, priority=priority)])
    assert await worker.claim_ids() == [first, second]
    assert await worker.claim_ids() == []


async def test_a_task_put_off_and_called_back_leaves_one_task(store: Store, worker: Worker) -> None:
    first, second = await add_many(store, 2)
    for _ in range(3):
        await store.reschedule([Rescheduling(id=first, delay=HOUR)])
        await store.reschedule([Rescheduling(id=first)])
    assert await worker.claim_ids() == [first, second]
    assert await worker.claim_ids() == []


# ---------------------------------------------------------------- how many


async def test_no_more_than_the_limit_is_taken(store: Store, worker: Worker) -> None:
    ids = await add_many(store, 5)
    assert await worker.claim_ids(limit=3) == ids[:3]
    assert await state_of(store, ids[3]) is State.READY


async def test_a_limit_of_nothing_takes_nothing(store: Store, worker: Worker) -> None:
    await add(store)
    assert await worker.claim_ids(limit=0) == []


async def test_no_kind_gets_more_than_its_room(store: Store, worker: Worker) -> None:
    many = await add_many(store, 5, kind="many")
    few = await add_many(store, 5, kind="few")
    kind_requests = (
        KindRequest(kind="many", count=2),
        KindRequest(kind="few", count=3),
        KindRequest(kind="none", count=9),
    )
    claims = await store.claim(ClaimRequest(node_id=worker.node_id, kinds=kind_requests, limit=100))
    assert [claim.id for claim in claims] == many[:2] + few[:3]


async def test_the_limit_holds_over_all_kinds_in_order(store: Store, worker: Worker) -> None:
    first = await add(store, kind="a")
    second = await add(store, kind="b")
    await add(store, kind="a")
    assert await worker.claim_ids("a", "b", limit=2) == [first, second]


async def test_the_room_of_a_kind_is_shared_by_its_queues(store: Store, worker: Worker) -> None:
    ids = [await add(store, queue=queue) for queue in ("x", "y", "z", "x", "y", "z")]
    assert await worker.claim_ids(kind_request=2) == ids[:2]
    assert await worker.claim_ids(kind_request=3) == ids[2:5]


async def test_a_full_kind_does_not_hold_up_another(store: Store, worker: Worker) -> None:
    await add_many(store, 3, kind="full", priority=9)
    other = await add(store, kind="other")
    kind_requests = (KindRequest(kind="full", count=0), KindRequest(kind="other", count=1))
    claims = await store.claim(ClaimRequest(node_id=worker.node_id, kinds=kind_requests, limit=100))
    assert [claim.id for claim in claims] == [other]


async def test_no_rooms_take_nothing(store: Store, worker: Worker) -> None:
    await add(store)
    assert await store.claim(ClaimRequest(node_id=worker.node_id, kinds=(), limit=5)) == []


async def test_nothing_there_is_nothing_taken(store: Store, worker: Worker) -> None:
    assert await worker.claim_ids("unknown") == []


# ---------------------------------------------------------------- which


async def test_only_the_asked_kinds_are_taken(store: Store, worker: Worker) -> None:
    await add(store, kind="other", priority=9)
    task_id = await add(store, kind="mine")
    assert await worker.claim_ids("mine") == [task_id]


async def test_only_the_asked_queues_are_taken(store: Store, worker: Worker) -> None:
    await add(store, queue="other", priority=9)
    first = await add(store, queue="one")
    second = await add(store, queue="two")
    assert await worker.claim_ids(queues=["one", "two", "unknown"]) == [first, second]
    assert await worker.claim_ids(queues=[]) == []


async def test_paused_queues_are_passed_over(store: Store, worker: Worker) -> None:
    paused = await add(store, queue="paused", priority=9)
    task_id = await add(store, queue="open")
    await store.pause(["paused"])
    assert await worker.claim_ids() == [task_id]
    assert await worker.claim_ids(queues=["paused"]) == []
    await store.resume(["paused"])
    assert await worker.claim_ids() == [paused]


async def test_a_queue_that_was_paused_before_its_first_task_stays_paused(store: Store, worker: Worker) -> None:
    await store.pause(["early"])
    await add(store, queue="early")
    assert await worker.claim_ids() == []


async def test_tasks_due_later_are_not_taken(store: Store, worker: Worker) -> None:
    await add(store, delay=HOUR)
    assert await worker.claim_ids() == []


async def test_tasks_whose_expiry_has_come_are_not_taken(store: Store, worker: Worker) -> None:
    expired = await add(store, expires_in=0, priority=9)
    task_id = await add(store, expires_in=HOUR)
    assert await worker.claim_ids() == [task_id]
    assert (await store.wake(10)).expired == (expired,)


@pytest.mark.parametrize("priority", [-9, 0, 9])
async def test_an_expired_task_takes_no_room(store: Store, worker: Worker, priority: int) -> None:
    first = await add(store)
    await add_many(store, 3, expires_in=0, priority=priority)
    second = await add(store)
    assert await worker.claim_ids(limit=2, kind_request=2) == [first, second]
    assert await worker.claim_ids() == []


async def test_cancelled_and_deleted_tasks_are_not_taken(store: Store, worker: Worker) -> None:
    first, cancelled, deleted, last = await add_many(store, 4)
    await store.cancel([cancelled])
    await store.delete([deleted])
    assert await worker.claim_ids() == [first, last]


# ---------------------------------------------------------------- who


async def _never_registered(store: Store, worker: Worker) -> None:
    worker.node_id = "stranger"


async def _unregistered(store: Store, worker: Worker) -> None:
    await store.unregister(worker.node_id)


async def _named_gone(store: Store, worker: Worker) -> None:
    await store.reap([worker.node_id], 10)


async def _reaped_after_its_lease(store: Store, worker: Worker) -> None:
    await _out_of_lease(store, worker)
    await store.reap([], 10)


async def _out_of_lease(store: Store, worker: Worker) -> None:
    await Worker.start(store, "short", lease=MILLISECOND)
    worker.node_id = "short"
    await pass_lease(store, "short")


@pytest.mark.parametrize(
    "lose", [_never_registered, _unregistered, _named_gone, _reaped_after_its_lease, _out_of_lease]
)
async def test_a_node_without_a_live_lease_takes_nothing(
    store: Store, worker: Worker, lose: Callable[[Store, Worker], Awaitable[None]]
) -> None:
    await lose(store, worker)
    task_id = await add(store)
    with pytest.raises(LeaseLost):
        await worker.claim()
    assert await state_of(store, task_id) is State.READY


async def test_a_renewed_lease_lets_a_late_node_claim_again(store: Store) -> None:
    late = await Worker.start(store, "late", lease=MILLISECOND)
    await pass_lease(store, "late")
    task_id = await add(store)
    keeper = await store.keeper()
    assert await keeper.renew("late", HOUR)
    await keeper.close()
    assert await late.claim_ids() == [task_id]
