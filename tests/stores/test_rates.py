"""Rates: a burst at once, then one at a time, each at its turn."""

from __future__ import annotations

from itertools import pairwise

from tests.stores.actions import (
    HOUR,
    MILLISECOND,
    Worker,
    add,
    add_many,
    pass_time,
    read,
    state_of,
    states,
)

from synergon.model.claims import Claim, KindRequest
from synergon.model.lifecycle import State
from synergon.model.limits import NewLimit, NewRate
from synergon.model.outcomes import HandedBack, Succeeded
from synergon.model.record import EPOCH, from_datetime
from synergon.model.tasks import Cutoffs, Rescheduling
from synergon.stores.base import Store
from synergon.stores.rules.rates import next_start

READY, WAITING, RUNNING, SCHEDULED = State.READY, State.WAITING, State.RUNNING, State.SCHEDULED


async def declare_rate(store: Store, every: int, burst: int = 1, value: int | None = None) -> None:
    await store.declare([NewLimit(name="key:work", value=value, rate=NewRate(per=every, burst=burst))], [])


async def claim(worker: Worker, limit: int = 1000) -> list[Claim]:
    return await worker.claim_kinds(KindRequest(kind="work", count=1000, is_rated=True), limit=limit)


async def run_at(store: Store, task_id: int) -> int:
    return from_datetime((await read(store, task_id)).run_at)


async def test_a_burst_may_start_at_once_and_the_next_one_is_scheduled_for_its_turn(
    store: Store, worker: Worker
) -> None:
    await declare_rate(store, HOUR, burst=3)
    ids = await add_many(store, 6, limit_key="ada")
    assert await states(store, ids) == [READY] * 3 + [WAITING] * 3
    before = await store.now()
    assert [taken.id for taken in await claim(worker)] == ids[:3]
    after = await store.now()
    assert await states(store, ids) == [RUNNING] * 3 + [SCHEDULED] + [WAITING] * 2
    assert before + HOUR <= await run_at(store, ids[3]) <= after + HOUR
    next_in = (await store.wake(10)).next_in
    assert next_in is not None
    assert 0 < next_in <= HOUR


async def test_what_a_rate_remembers_tells_a_turn_from_a_moment_that_somebody_chose(
    store: Store, worker: Worker
) -> None:
    await declare_rate(store, HOUR, burst=3)
    ids = await add_many(store, 4, limit_key="ada")
    later = await add(store, limit_key="ada", delay=2 * HOUR)
    assert await store.next_start("work", "ada") is None
    await claim(worker)
    next_at = await store.next_start("work", "ada")
    assert next_at is not None
    assert await run_at(store, ids[3]) == next_start(NewRate(per=HOUR, burst=3), next_at, 0)
    assert await run_at(store, later) > await run_at(store, ids[3])
    assert await store.next_start("work", "bob") is None
    assert await store.next_start("other", "ada") is None


async def test_starts_are_charged_and_not_ends(store: Store, worker: Worker) -> None:
    await declare_rate(store, HOUR)
    ids = await add_many(store, 3, limit_key="ada")
    (first,) = await claim(worker)
    await worker.finish(first, Succeeded())
    assert await claim(worker) == []
    assert await states(store, ids[1:]) == [SCHEDULED, WAITING]


async def test_the_burst_may_be_used_bit_by_bit(store: Store, worker: Worker) -> None:
    await declare_rate(store, HOUR, burst=2)
    ids = await add_many(store, 4, limit_key="ada")
    assert len(await claim(worker, limit=1)) == 1
    assert await states(store, ids) == [RUNNING, READY, WAITING, WAITING]
    assert len(await claim(worker, limit=1)) == 1
    assert await states(store, ids) == [RUNNING, RUNNING, SCHEDULED, WAITING]


async def test_each_line_has_its_own_rate(store: Store, worker: Worker) -> None:
    await declare_rate(store, HOUR)
    ids = [await add(store, limit_key=key) for key in ("ada", "bob", "ada")]
    assert [taken.id for taken in await claim(worker)] == ids[:2]
    assert await state_of(store, ids[2]) is SCHEDULED
    assert await states(store, [await add(store, limit_key="eve")]) == [READY]


async def test_turns_come_one_after_the_other_in_order(store: Store, worker: Worker) -> None:
    every = 30 * MILLISECOND
    await declare_rate(store, every)
    ids = await add_many(store, 4, limit_key="ada")
    moments = []
    for task_id in ids:
        while not (claims := await claim(worker)):
            await pass_time(store, MILLISECOND)
            await store.wake(10)
        assert [taken.id for taken in claims] == [task_id]
        moments.append(from_datetime((await read(store, task_id)).started_at or EPOCH))
    assert all(later - earlier >= every for earlier, later in pairwise(moments))


async def test_a_better_one_goes_first_when_the_turn_comes(store: Store, worker: Worker) -> None:
    await declare_rate(store, 300 * MILLISECOND)
    ids = await add_many(store, 2, limit_key="ada")
    assert len(await claim(worker)) == 1
    better = await add(store, limit_key="ada", priority=5)
    assert (await states(store, [ids[1], better])).count(SCHEDULED) == 1
    await pass_time(store, 301 * MILLISECOND)
    await store.wake(10)
    assert [taken.id for taken in await claim(worker)] == [better]


async def test_nobody_overtakes_one_whose_turn_has_come_before_the_alarm_has_noticed(
    store: Store, worker: Worker
) -> None:
    every = 200 * MILLISECOND
    await declare_rate(store, every)
    ids = await add_many(store, 4, limit_key="ada")
    (first,) = await claim(worker)
    assert await states(store, ids[1:]) == [SCHEDULED, WAITING, WAITING]
    await pass_time(store, every + MILLISECOND)
    await worker.finish(first, Succeeded())
    assert await states(store, ids[1:]) == [READY, WAITING, WAITING]
    assert [taken.id for taken in await claim(worker)] == ids[1:2]
    assert await states(store, ids[2:]) == [SCHEDULED, WAITING]


async def test_the_turn_of_one_that_leaves_goes_to_the_next(store: Store, worker: Worker) -> None:
    await declare_rate(store, HOUR)
    ids = await add_many(store, 5, limit_key="ada")
    await claim(worker)
    its_turn = await run_at(store, ids[1])
    await store.cancel([ids[1]])
    assert await state_of(store, ids[2]) is SCHEDULED
    assert await run_at(store, ids[2]) == its_turn
    await store.delete([ids[2]])
    assert await run_at(store, ids[3]) == its_turn
    await store.reschedule([Rescheduling(id=ids[3], delay=5 * HOUR)])
    assert await states(store, ids[3:]) == [SCHEDULED, SCHEDULED]
    assert await run_at(store, ids[4]) == its_turn


async def test_one_that_is_called_before_its_turn_waits_for_it_all_the_same(store: Store, worker: Worker) -> None:
    await declare_rate(store, HOUR)
    ids = await add_many(store, 2, limit_key="ada")
    await claim(worker)
    its_turn = await run_at(store, ids[1])
    (moved,) = await store.reschedule([Rescheduling(id=ids[1], delay=0)])
    assert (moved.done, moved.state) == (True, SCHEDULED)
    assert await run_at(store, ids[1]) == its_turn


async def test_rate_and_places_hold_together(store: Store, worker: Worker) -> None:
    await declare_rate(store, HOUR, burst=5, value=2)
    ids = await add_many(store, 9, limit_key="ada")
    claims = await claim(worker)
    assert [taken.id for taken in claims] == ids[:2]
    assert SCHEDULED not in await states(store, ids)  # the places hold it up, not the rate
    started = 2
    while claims:
        await worker.finish(claims.pop(), Succeeded())
        claims += (more := await claim(worker))
        started += len(more)
    assert started == 5
    assert await states(store, ids[5:]) == [SCHEDULED] + [WAITING] * 3


async def test_a_closed_line_awaits_no_turn(store: Store, worker: Worker) -> None:
    await declare_rate(store, HOUR, value=1)
    ids = await add_many(store, 3, limit_key="ada")
    (taken,) = await claim(worker)
    await store.set_limit("key:work", 0)
    await worker.finish(taken, Succeeded())
    assert await states(store, ids[1:]) == [WAITING, WAITING]
    await store.set_limit("key:work", 1)
    assert await states(store, ids[1:]) == [SCHEDULED, WAITING]


async def test_a_task_that_is_handed_back_pays_again(store: Store, worker: Worker) -> None:
    await declare_rate(store, HOUR, burst=2)
    (task_id,) = await add_many(store, 1, limit_key="ada")
    for _ in range(2):
        (taken,) = await claim(worker)
        await worker.finish(taken, HandedBack())
    assert await claim(worker) == []
    assert await state_of(store, task_id) is SCHEDULED


async def test_a_line_that_has_rested_has_its_burst_again(store: Store, worker: Worker) -> None:
    await declare_rate(store, 10 * MILLISECOND, burst=2)
    await add_many(store, 2, limit_key="ada")
    assert len(await claim(worker)) == 2
    await pass_time(store, 30 * MILLISECOND)
    await store.prune(Cutoffs(), 100)
    await store.wake(10)
    assert await states(store, await add_many(store, 3, limit_key="ada")) == [READY, READY, WAITING]


async def test_a_rate_on_record_is_told_and_a_new_one_takes_over(store: Store) -> None:
    await declare_rate(store, HOUR, burst=2, value=7)
    (limit,) = await store.limits()
    assert limit.rate == NewRate(per=HOUR, burst=2)
    ids = await add_many(store, 4, limit_key="ada")
    assert await states(store, ids) == [READY] * 2 + [WAITING] * 2
    await store.set_limit("key:work", 3)
    (limit,) = await store.limits()
    assert (limit.value, limit.rate) == (3, NewRate(per=HOUR, burst=2))
    await declare_rate(store, HOUR, burst=9, value=7)
    assert await states(store, ids) == [READY] * 4


async def test_a_paused_queue_awaits_no_turn(store: Store, worker: Worker) -> None:
    await declare_rate(store, HOUR)
    ids = await add_many(store, 2, limit_key="ada", queue="closed")
    assert len(await claim(worker)) == 1
    await store.cancel([ids[1]])
    await store.pause(["closed"])
    late = await add(store, limit_key="ada", queue="closed")
    assert await state_of(store, late) is WAITING
    await store.resume(["closed"])
    assert await state_of(store, late) is SCHEDULED
