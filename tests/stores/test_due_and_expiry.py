"""What the clock does: tasks become due, and tasks expire."""

from __future__ import annotations

import pytest
from tests.stores.actions import (
    HOUR,
    KIND,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_in_state,
    add_many,
    pass_time,
    read,
    state_of,
)

from synergon.model.claims import Claim
from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.outcomes import Snoozed
from synergon.model.record import from_datetime
from synergon.model.tasks import Rescheduling, Woken
from synergon.stores.base import Store

# ---------------------------------------------------------------- due


async def test_nothing_to_do_is_told(store: Store) -> None:
    assert await store.wake(10) == Woken(kinds={}, expired=(), next_in=None)


async def test_ready_tasks_need_no_waking(store: Store) -> None:
    await add(store)
    assert await store.wake(10) == Woken(kinds={}, expired=(), next_in=None)


async def test_a_due_task_becomes_ready_once(store: Store, worker: Worker) -> None:
    task_id = await add(store, delay=2 * MILLISECOND)
    await pass_time(store, 2 * MILLISECOND)
    assert await store.wake(10) == Woken(kinds={KIND: 1}, expired=(), next_in=None)
    assert await state_of(store, task_id) is State.READY
    assert await store.wake(10) == Woken(kinds={}, expired=(), next_in=None)
    assert await worker.claim_ids() == [task_id]


async def test_a_task_is_not_woken_before_its_moment(store: Store) -> None:
    task_id = await add(store, delay=HOUR)
    woken = await store.wake(10)
    assert woken.kinds == {}
    assert await state_of(store, task_id) is State.SCHEDULED


async def test_the_time_until_the_next_moment_is_told(store: Store) -> None:
    await add(store, delay=2 * HOUR)
    await add(store, delay=HOUR)
    due = from_datetime((await read(store, await add(store, delay=HOUR // 2))).run_at)
    before = await store.now()
    next_in = (await store.wake(10)).next_in
    after = await store.now()
    assert next_in is not None
    assert due - after <= next_in <= due - before


async def test_whoever_sleeps_as_long_as_told_finds_the_task_due(store: Store) -> None:
    task_id = await add(store, delay=5 * MILLISECOND)
    while (woken := await store.wake(10)).next_in is not None:
        await pass_time(store, woken.next_in)
    assert await state_of(store, task_id) is State.READY


async def test_woken_tasks_are_counted_by_kind(store: Store) -> None:
    await add_many(store, 3, kind="a", delay=1)
    await add_many(store, 2, kind="b", delay=1)
    await add(store, kind="c", delay=HOUR)
    await pass_time(store, MILLISECOND)
    assert (await store.wake(10)).kinds == {"a": 3, "b": 2}


async def test_no_more_than_the_limit_is_woken_and_the_rest_is_announced(store: Store) -> None:
    ids = await add_many(store, 5, delay=1)
    await pass_time(store, MILLISECOND)
    assert await store.wake(3) == Woken(kinds={KIND: 3}, next_in=0)
    states = [await state_of(store, task_id) for task_id in ids]
    assert (states.count(State.READY), states.count(State.SCHEDULED)) == (3, 2)
    assert await store.wake(3) == Woken(kinds={KIND: 2}, next_in=None)


async def test_the_earliest_are_woken_first(store: Store) -> None:
    now = await store.now()
    later = await add(store, run_at=now + 2 * MILLISECOND)
    earlier = await add(store, run_at=now + MILLISECOND)
    await pass_time(store, 3 * MILLISECOND)
    if (await store.wake(1)).kinds:  # inserted after its moment, a task is ready already
        assert await state_of(store, earlier) is State.READY
    await store.wake(10)
    assert await state_of(store, later) is State.READY


async def test_due_tasks_in_paused_queues_become_ready_too(store: Store) -> None:
    task_id = await add(store, queue="paused", delay=1)
    await store.pause(["paused"])
    await pass_time(store, MILLISECOND)
    assert (await store.wake(10)).kinds == {KIND: 1}
    assert await state_of(store, task_id) is State.READY


async def test_a_retry_and_a_snooze_become_due(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    await worker.run(Snoozed(delay=MILLISECOND))
    await pass_time(store, MILLISECOND)
    assert (await store.wake(10)).kinds == {KIND: 1}
    assert await worker.claim_ids() == [task_id]


async def test_a_task_that_was_put_off_does_not_fire_at_its_old_moment(store: Store) -> None:
    task_id = await add(store, delay=MILLISECOND)
    await store.reschedule([Rescheduling(id=task_id, delay=HOUR)])
    await pass_time(store, 2 * MILLISECOND)
    woken = await store.wake(10)
    assert woken.kinds == {}
    assert woken.next_in is not None
    assert woken.next_in > HOUR // 2


async def test_a_cancelled_or_deleted_task_is_not_waited_for(store: Store) -> None:
    cancelled, deleted = await add_many(store, 2, delay=HOUR)
    await store.cancel([cancelled])
    await store.delete([deleted])
    assert (await store.wake(10)).next_in is None


# ---------------------------------------------------------------- expiry


@pytest.mark.parametrize("state", [State.SCHEDULED, State.READY])
async def test_a_task_that_nobody_started_in_time_has_failed(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state, expires_in=2 * MILLISECOND)
    await pass_time(store, 2 * MILLISECOND)
    assert await store.wake(10) == Woken(kinds={}, expired=(task_id,), next_in=None)
    record = await read(store, task_id)
    assert (record.state, record.reason) == (State.FAILED, Reason.EXPIRED)
    assert (record.attempts, record.node_id, record.started_at) == (0, None, None)
    assert record.finished_at is not None
    assert await store.wake(10) == Woken(kinds={}, expired=(), next_in=None)


async def test_expiry_does_not_come_early(store: Store) -> None:
    task_id = await add(store, expires_in=HOUR)
    woken = await store.wake(10)
    assert woken.expired == ()
    assert woken.next_in is not None
    assert HOUR // 2 < woken.next_in <= HOUR
    assert await state_of(store, task_id) is State.READY


async def test_the_nearer_of_due_and_expiry_is_told(store: Store) -> None:
    await add(store, delay=2 * HOUR, expires_in=HOUR)
    next_in = (await store.wake(10)).next_in
    assert next_in is not None
    assert next_in <= HOUR


async def test_tasks_in_paused_queues_expire_too(store: Store) -> None:
    task_id = await add(store, queue="paused", expires_in=0)
    await store.pause(["paused"])
    assert (await store.wake(10)).expired == (task_id,)


async def test_a_running_task_does_not_expire(store: Store, worker: Worker) -> None:
    expires_in, claims = 10 * MILLISECOND, list[Claim]()
    while not claims:  # a busy machine may be too slow to claim it in time
        await store.wake(10)
        expires_in *= 2
        task_id = await add(store, expires_in=expires_in)
        claims = await worker.claim()
    await pass_time(store, expires_in)
    assert await store.wake(10) == Woken(kinds={}, expired=(), next_in=None)
    await worker.finish(claims[0], OUTCOMES["succeeded"])
    assert await state_of(store, task_id) is State.SUCCEEDED


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_an_ended_task_does_not_expire(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state, expires_in=HOUR)
    assert await store.wake(10) == Woken(kinds={}, expired=(), next_in=None)
    assert await state_of(store, task_id) is state


async def test_a_task_handed_back_is_awaited_again(store: Store, worker: Worker) -> None:
    await add(store, expires_in=HOUR)
    await worker.run(OUTCOMES["handed back"])
    assert (await store.wake(10)).next_in is not None


async def test_no_more_than_the_limit_expires_and_the_rest_is_announced(store: Store) -> None:
    ids = await add_many(store, 5, expires_in=0)
    first = await store.wake(3)
    assert (len(first.expired), first.next_in) == (3, 0)
    second = await store.wake(3)
    assert (len(second.expired), second.next_in) == (2, None)
    assert sorted(first.expired + second.expired) == ids


async def test_the_limit_is_for_due_and_expired_tasks_each(store: Store) -> None:
    await add_many(store, 2, delay=1)
    expired = await add_many(store, 2, expires_in=0)
    await pass_time(store, MILLISECOND)
    assert await store.wake(2) == Woken(kinds={KIND: 2}, expired=tuple(expired), next_in=None)


async def test_a_task_that_is_due_and_expired_is_not_announced_as_ready(store: Store) -> None:
    task_id = await add(store, delay=1, expires_in=1)
    await pass_time(store, MILLISECOND)
    assert await store.wake(10) == Woken(kinds={}, expired=(task_id,), next_in=None)
