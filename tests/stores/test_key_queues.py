"""Lines: per key only so many are ready or running; the others wait, in order, and nobody is forgotten."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.stores.actions import (
    ERROR,
    HOUR,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_many,
    check_lines,
    declare_limit,
    pass_time,
    read,
    state_of,
    states,
)

from synergon.model.lifecycle import Reason, State
from synergon.model.limits import NewLimit
from synergon.model.outcomes import Crashed, HandedBack, KeyAssigned, Outcome, Retrying, Snoozed, Succeeded
from synergon.model.tasks import NewTask, Reprioritizing, Rescheduling
from synergon.policies import HIGHEST_PRIORITY
from synergon.stores.base import Store

READY, WAITING, RUNNING, SCHEDULED = State.READY, State.WAITING, State.RUNNING, State.SCHEDULED


async def line(store: Store, number: int, value: int | None = 1, **fields: object) -> list[int]:
    """Tasks in one line with so many places."""
    await declare_limit(store, "key:work", value)
    return await add_many(store, number, **{"limit_key": "ada", **fields})


async def test_each_line_has_its_own_places(store: Store, worker: Worker) -> None:
    ids = await line(store, 5, value=2)
    others = await add_many(store, 1, limit_key="bob")
    free = await add(store)
    assert await states(store, [*ids, *others, free]) == [READY] * 2 + [WAITING] * 3 + [READY] * 2
    assert await worker.claim_ids() == [*ids[:2], *others, free]


async def test_every_end_moves_the_line_on(store: Store, worker: Worker) -> None:
    ids = await line(store, 4)
    for task_id in ids:
        (claim,) = await worker.claim()
        assert claim.id == task_id
        assert claim.limit_key == "ada"
        await worker.finish(claim, Succeeded())
    assert await worker.claim() == []


async def test_the_line_is_told_with_the_limit(store: Store, worker: Worker) -> None:
    await line(store, 5, value=2)
    await worker.claim(limit=1)
    (limit,) = await store.limits()
    assert (limit.name, limit.value, limit.in_use, limit.waiting) == ("key:work", 2, 1, 3)


async def test_a_key_without_a_limit_on_record_has_a_line_without_end(store: Store, worker: Worker) -> None:
    ids = await add_many(store, 5, limit_key="ada")
    assert await states(store, ids) == [READY] * 5
    await declare_limit(store, "key:work", 2)
    assert await states(store, ids) == [READY] * 2 + [WAITING] * 3
    assert len(await worker.claim()) == 2


async def test_the_same_key_in_two_kinds_is_two_lines(store: Store) -> None:
    ids = await line(store, 2)
    await declare_limit(store, "key:other", 1)
    others = await add_many(store, 2, kind="other", limit_key="ada")
    assert await states(store, [*ids, *others]) == [READY, WAITING] * 2


async def test_a_better_one_takes_the_place_of_one_that_is_ready(store: Store, worker: Worker) -> None:
    ids = await line(store, 3)
    urgent = await add(store, limit_key="ada", priority=5)
    assert await states(store, [*ids, urgent]) == [WAITING] * 3 + [READY]
    assert await worker.claim_ids() == [urgent]
    await add(store, limit_key="ada", priority=9)
    assert await state_of(store, urgent) is RUNNING


async def test_a_line_is_served_by_priority_and_then_by_age(store: Store, worker: Worker) -> None:
    await declare_limit(store, "key:work", 1)
    priorities = [0, 3, 0, 7, 3]
    ids = [await add(store, limit_key="ada", priority=priority) for priority in priorities]
    served = []
    while claims := await worker.claim():
        served += [claim.id for claim in claims]
        await worker.finish(claims[0], Succeeded())
    assert served == [ids[index] for index in (3, 1, 4, 0, 2)]


async def test_another_priority_changes_who_is_next(store: Store) -> None:
    ids = await line(store, 3)
    (moved,) = await store.set_priority([Reprioritizing(id=ids[2], priority=HIGHEST_PRIORITY)])
    assert moved.state is READY
    assert await states(store, ids) == [WAITING, WAITING, READY]
    await store.set_priority([Reprioritizing(id=ids[2], priority=-1)])
    assert await states(store, ids) == [READY, WAITING, WAITING]


async def test_a_paused_queue_has_no_place_in_a_line(store: Store) -> None:
    await declare_limit(store, "key:work", 1)
    closed = await add(store, limit_key="ada", queue="closed", priority=5)
    other = await add(store, limit_key="ada")
    assert await states(store, [closed, other]) == [READY, WAITING]
    await store.pause(["closed"])
    assert await states(store, [closed, other]) == [WAITING, READY]
    late = await add(store, limit_key="ada", queue="closed", priority=9)
    assert await states(store, [closed, other, late]) == [WAITING, READY, WAITING]
    await store.resume(["closed"])
    assert await states(store, [closed, other, late]) == [WAITING, WAITING, READY]


async def test_the_same_unique_key_submitted_200_times_while_it_waits_is_one_task(store: Store, worker: Worker) -> None:
    await line(store, 1)
    claim = await worker.claim_one()
    insertions = [(await store.insert([NewTask(kind="work", key="deploy", limit_key="ada")]))[0] for _ in range(200)]
    assert len({insertion.id for insertion in insertions}) == 1
    assert [insertion.created for insertion in insertions] == [True] + [False] * 199
    assert {insertion.state for insertion in insertions} == {WAITING}
    await worker.finish(claim, Succeeded())
    assert await worker.claim_ids() == [insertions[0].id]


async def test_a_replacement_stands_in_the_line_that_it_names(store: Store) -> None:
    await declare_limit(store, "key:work", 1)
    first = await add(store, limit_key="ada", key="k")
    second = await add(store, limit_key="ada")
    bob = await add(store, limit_key="bob")
    await store.insert([NewTask(kind="work", key="k", limit_key="bob", on_conflict="replace")])
    assert await states(store, [first, second, bob]) == [READY, READY, WAITING]
    await store.insert([NewTask(kind="work", key="k", on_conflict="replace")])
    assert await states(store, [first, second, bob]) == [READY] * 3
    assert (await read(store, first)).limit_key is None


async def test_a_task_that_waits_can_be_cancelled_deleted_and_can_expire(store: Store) -> None:
    ids = await line(store, 3)
    short = await add(store, limit_key="ada", expires_in=MILLISECOND)
    assert await states(store, [*ids, short]) == [READY] + [WAITING] * 3
    (cancelled,) = await store.cancel([ids[1]])
    assert (cancelled.done, cancelled.state) == (True, State.CANCELLED)
    (deleted,) = await store.delete([ids[2]])
    assert (deleted.done, deleted.state) == (True, None)
    await pass_time(store, 2 * MILLISECOND)
    assert (await store.wake(10)).expired == (short,)
    assert (await read(store, short)).reason is Reason.EXPIRED


@pytest.mark.parametrize("way", ["cancel", "delete", "put off"])
async def test_one_that_leaves_while_it_is_ready_gives_its_place_to_the_next(store: Store, way: str) -> None:
    ids = await line(store, 3)
    match way:
        case "cancel":
            await store.cancel([ids[0]])
        case "delete":
            await store.delete([ids[0]])
        case _:
            await store.reschedule([Rescheduling(id=ids[0], delay=HOUR)])
    assert await states(store, ids[1:]) == [READY, WAITING]


async def test_one_that_expires_while_it_is_ready_gives_its_place_to_the_next_and_that_is_told(store: Store) -> None:
    await declare_limit(store, "key:work", 1)
    await add(store, limit_key="ada", expires_in=0)
    following = await add(store, limit_key="ada")
    woken = await store.wake(10)
    assert woken.kinds == {"work": 1}
    assert await state_of(store, following) is READY


async def test_one_that_waits_in_line_cannot_be_put_off(store: Store) -> None:
    ids = await line(store, 2)
    (moved,) = await store.reschedule([Rescheduling(id=ids[1], delay=HOUR)])
    assert (moved.done, moved.state) == (False, WAITING)


async def test_a_delayed_task_joins_the_line_when_it_is_due(store: Store) -> None:
    await line(store, 1)
    late = await add(store, limit_key="ada", delay=MILLISECOND)
    assert await state_of(store, late) is SCHEDULED
    await pass_time(store, 2 * MILLISECOND)
    woken = await store.wake(10)
    assert woken.kinds == {}
    assert await state_of(store, late) is WAITING


async def test_a_task_that_is_called_to_now_joins_its_line(store: Store) -> None:
    await line(store, 1)
    late = await add(store, limit_key="ada", delay=HOUR)
    (moved,) = await store.reschedule([Rescheduling(id=late, delay=0)])
    assert (moved.done, moved.state) == (True, WAITING)


@pytest.mark.parametrize(
    "outcome", [Retrying(delay=0, error=ERROR), Snoozed(delay=0), HandedBack(), Crashed(error=ERROR)], ids=type
)
async def test_whoever_comes_back_finds_the_line_in_order(store: Store, worker: Worker, outcome: Retrying) -> None:
    await declare_limit(store, "key:work", 1)
    low = await add(store, limit_key="ada")
    claim = await worker.claim_one()
    high = await add(store, limit_key="ada", priority=1)
    assert await state_of(store, high) is WAITING
    verdict = await worker.finish(claim, outcome)
    assert verdict.state is WAITING
    assert await states(store, [low, high]) == [WAITING, READY]


async def test_whoever_comes_back_to_his_own_place_is_ready(store: Store, worker: Worker) -> None:
    await line(store, 2)
    verdict = await worker.run(HandedBack())
    assert verdict.state is READY


async def test_one_that_rests_before_its_next_attempt_lets_the_next_one_go(store: Store, worker: Worker) -> None:
    ids = await line(store, 2)
    await worker.run(Retrying(delay=HOUR, error=ERROR))
    assert await states(store, ids) == [SCHEDULED, READY]


async def test_a_dead_node_s_task_returns_to_its_line(store: Store) -> None:
    ids = await line(store, 3, value=2)
    lost = await Worker.start(store, "lost")
    assert await lost.claim_ids() == ids[:2]
    await store.unregister("lost")
    reaped = await store.reap([], 10)
    assert sorted(entry.id for entry in reaped) == ids[:2]
    assert await states(store, ids) == [READY, READY, WAITING]


async def test_an_ended_task_that_is_tried_again_goes_to_its_line(store: Store, worker: Worker) -> None:
    ids = await line(store, 2)
    await worker.run(OUTCOMES["failed"])
    await worker.claim_one()
    (moved,) = await store.retry([ids[0]])
    assert (moved.done, moved.state) == (True, WAITING)
    assert (await read(store, ids[0])).limit_key == "ada"


async def test_children_stand_in_line_too(store: Store, worker: Worker) -> None:
    await line(store, 1)
    child = NewTask(kind="work", limit_key="ada")
    verdict = await worker.run(Succeeded(children=(child, child)))
    assert await states(store, verdict.child_ids) == [READY, WAITING]


async def test_a_node_that_knows_the_line_better_sends_the_task_there(store: Store, worker: Worker) -> None:
    await line(store, 1)
    lost = await add(store, priority=1)
    (claim,) = await worker.claim(limit=1)
    assert claim.id == lost
    verdict = await worker.finish(claim, KeyAssigned(limit_key="ada"))
    assert verdict.state is READY  # it has the better place
    record = await read(store, lost)
    assert (record.limit_key, record.attempts, record.claim_no, record.errors) == ("ada", 0, 1, ())
    other = await add(store, priority=2)
    (claim,) = await worker.claim(limit=1)
    assert claim.id == other
    assert (await worker.finish(claim, KeyAssigned(limit_key="bob"))).state is READY


async def test_a_task_that_is_lined_from_another_line_frees_that_one(store: Store, worker: Worker) -> None:
    ids = await line(store, 2)
    claim = await worker.claim_one()
    assert (await worker.finish(claim, KeyAssigned(limit_key="bob"))).state is READY
    assert await states(store, ids) == [READY, READY]


async def test_the_places_of_all_lines_can_be_changed_at_any_time(store: Store, worker: Worker) -> None:
    ids = await line(store, 6, value=3)
    bobs = await add_many(store, 3, limit_key="bob")
    await worker.claim(limit=1)
    assert await store.set_limit("key:work", 2)
    assert await states(store, ids) == [RUNNING, READY] + [WAITING] * 4
    assert await states(store, bobs) == [READY] * 2 + [WAITING]
    assert await store.set_limit("key:work", 0)
    assert await states(store, [*ids, *bobs]) == [RUNNING] + [WAITING] * 8
    assert await worker.claim() == []
    assert await store.set_limit("key:work", 4)
    assert await states(store, ids) == [RUNNING] + [READY] * 3 + [WAITING] * 2
    assert await store.set_limit("key:work", None)
    assert await states(store, ids) == [RUNNING] + [READY] * 5


async def test_work_that_runs_goes_on_when_the_limit_is_lowered(store: Store, worker: Worker) -> None:
    await line(store, 4, value=3)
    claims = await worker.claim()
    await store.set_limit("key:work", 1)
    for claim in claims[:2]:
        await worker.finish(claim, Succeeded())
        assert await worker.claim() == []
    await worker.finish(claims[2], Succeeded())
    assert len(await worker.claim()) == 1


async def test_a_new_declaration_changes_the_lines_that_there_are(store: Store) -> None:
    ids = await line(store, 3)
    await store.set_limit("key:work", 2)
    await declare_limit(store, "key:work", 1)  # as it was: the operator's word stays
    assert await states(store, ids) == [READY, READY, WAITING]
    await store.declare([NewLimit(name="key:work", value=3)], [])
    assert await states(store, ids) == [READY] * 3


async def test_many_lines_of_many_kinds_stay_in_order_through_a_long_run(store: Store, worker: Worker) -> None:
    for kind in ("a", "b"):
        await declare_limit(store, f"key:{kind}", 2)
    tasks = [
        NewTask(kind=kind, limit_key=f"key-{number % 5}", priority=number % 3)
        for kind in ("a", "b")
        for number in range(40)
    ]
    await store.insert(tasks)
    outcomes: list[Outcome] = [Succeeded(), HandedBack(), OUTCOMES["failed"], Crashed(error=ERROR), Succeeded()]
    done = 0
    for turn in range(60):
        claims = await worker.claim("a", "b", limit=4)
        assert max(Counter((claim.kind, claim.limit_key) for claim in claims).values(), default=0) <= 2
        for number, claim in enumerate(claims):
            await worker.finish(claim, outcomes[(turn + number) % len(outcomes)])
            done += 1
        if turn % 10 == 0:
            await check_lines(store)
    assert done > 80
