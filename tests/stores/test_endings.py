"""The history as a stream: every end once, whatever commits when, and nothing that was pruned goes unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from tests.stores.actions import (
    KIND,
    MILLISECOND,
    OUTCOMES,
    Worker,
    add,
    add_in_state,
    add_many,
    pass_time,
    settlement_of,
)

from synergon.errors import EventsLost, OptionError
from synergon.model.events import Event
from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.tasks import Cutoffs
from synergon.stores.base import FinalEvents, Store
from synergon.stores.final_events import NOW

EVERYTHING = Cutoffs(succeeded=0, failed=0, cancelled=0)


async def rest(reading: FinalEvents, limit: int = 1000) -> list[Event]:
    """All that there is to read now."""
    found: list[Event] = []
    while page := await reading.read(limit):
        assert len(page) <= 2 * limit
        found += page
    return found


async def rest_ids(reading: FinalEvents, limit: int = 1000) -> list[int]:
    return [event.task_id for event in await rest(reading, limit)]


async def all_events(store: Store, after: str | None = None, states: Collection[State] = FINAL) -> list[Event]:
    return await rest(await store.endings(after, states))


def repeats(store: Store) -> bool:
    """Whether a resumed reading may give some again."""
    return "profile=distributed" in store.url


async def test_each_end_is_told_with_what_became_of_it(store: Store, worker: Worker) -> None:
    task_id = await add(store, queue="mail", tags=("a", "b"), max_attempts=1)
    await worker.run(OUTCOMES["failed"])
    (event,) = await all_events(store)
    (record,) = await store.get([task_id])
    assert record is not None
    assert (event.name, event.state, event.reason) == ("failed", State.FAILED, Reason.EXHAUSTED)
    assert (event.task_id, event.kind, event.queue, event.tags) == (task_id, KIND, "mail", ("a", "b"))
    assert (event.attempt, event.node_id, event.at) == (1, worker.node_id, record.finished_at)


async def test_ends_come_in_their_order_and_only_once(store: Store) -> None:
    ids = await add_many(store, 6)
    reading = await store.endings(None, FINAL)
    told: list[int] = []
    for task_id in reversed(ids):
        await store.cancel([task_id])
        told += await rest_ids(reading)
    assert told == ids[::-1]
    assert await rest_ids(reading) == []


async def test_pages_of_any_size_give_the_same(store: Store) -> None:
    ids = await add_many(store, 10)
    await store.cancel(ids[5:])
    await store.cancel(ids[:5])
    for limit in (1, 2, 7):
        assert await rest_ids(await store.endings(None, FINAL), limit) == ids[5:] + ids[:5]


async def test_live_tasks_are_not_told(store: Store, worker: Worker) -> None:
    for outcome in ("retrying", "snoozed", "handed back"):
        await add(store)
        await worker.run(OUTCOMES[outcome])
        for claim in await worker.claim():
            await worker.finish(claim, OUTCOMES["snoozed"])
    assert await all_events(store) == []


async def test_only_the_states_that_were_asked_for(store: Store) -> None:
    for state in sorted(FINAL):
        await add_in_state(store, state)
    asked: list[Collection[State]] = [*([state] for state in FINAL), {State.FAILED, State.CANCELLED}, FINAL]
    for states in asked:
        told = [event.state for event in await all_events(store, states=states)]
        assert sorted(told) == sorted(states)


async def test_a_reading_from_now_on_leaves_out_what_was_before(store: Store) -> None:
    await add_in_state(store, State.SUCCEEDED)
    reading = await store.endings(NOW, FINAL)
    later = [await add_in_state(store, State.FAILED), await add_in_state(store, State.CANCELLED)]
    assert await rest_ids(reading) == later


async def test_a_cursor_goes_on_behind_its_event(store: Store) -> None:
    ids = await add_many(store, 9)
    for start in (0, 3, 6):
        await store.cancel(ids[start : start + 3])
    events = await all_events(store)
    assert [event.task_id for event in events] == ids
    for index, event in enumerate(events):
        again = [found.task_id for found in await all_events(store, event.cursor)]
        if repeats(store):
            assert again[len(again) - len(ids[index + 1 :]) :] == ids[index + 1 :]
        else:
            assert again == ids[index + 1 :]


async def test_a_task_that_ends_twice_is_told_twice(store: Store) -> None:
    task_id = await add_in_state(store, State.FAILED)
    reading = await store.endings(None, FINAL)
    assert await rest_ids(reading) == [task_id]
    await store.retry([task_id])
    assert await rest_ids(reading) == []
    await store.cancel([task_id])
    (event,) = await rest(reading)
    assert (event.task_id, event.state) == (task_id, State.CANCELLED)


async def test_what_was_deleted_is_not_told_and_nothing_is_lost_by_it(store: Store) -> None:
    ids = [await add_in_state(store, State.FAILED) for _ in range(3)]
    reading = await store.endings(None, FINAL)
    (first,) = await reading.read(1)
    await store.delete([ids[1]])
    assert [first.task_id, *await rest_ids(reading)] == [ids[0], ids[2]]


async def test_pruning_behind_a_reading_costs_it_nothing(store: Store) -> None:
    first = await add_in_state(store, State.SUCCEEDED)
    reading = await store.endings(None, FINAL)
    assert await rest_ids(reading) == [first]
    await pass_time(store, MILLISECOND)
    await store.prune(EVERYTHING, 10)
    second = await add_in_state(store, State.SUCCEEDED)
    assert await rest_ids(reading) == [second]


async def test_pruning_before_a_reading_is_noticed(store: Store) -> None:
    await add_in_state(store, State.SUCCEEDED)
    reading = await store.endings(None, FINAL)
    (event,) = await rest(reading)
    await pass_time(store, MILLISECOND)
    for state in (State.FAILED, State.SUCCEEDED):
        await add_in_state(store, state)
    await pass_time(store, MILLISECOND)
    assert await store.prune(Cutoffs(succeeded=0), 10) == 2
    with pytest.raises(EventsLost, match="pruned beyond this cursor"):
        await reading.read(10)
    if not repeats(store):  # a cursor there begins further back, and what is gone there may well have been given
        with pytest.raises(EventsLost):
            await all_events(store, event.cursor)
    (other,) = await all_events(store, states={State.FAILED})
    assert other.state is State.FAILED
    assert [event.state for event in await all_events(store)] == [State.FAILED]


async def test_what_was_gone_before_a_reading_began_is_no_loss_also_after_a_resume(store: Store) -> None:
    """Of old times some states are kept and others are not."""
    kept = []
    for _ in range(2):
        kept.append(await add_in_state(store, State.FAILED))
        await add_in_state(store, State.SUCCEEDED)
    await pass_time(store, MILLISECOND)
    await store.prune(Cutoffs(succeeded=0), 10)
    reading = await store.endings(None, FINAL)
    (first,) = await reading.read(1)
    assert [first.task_id, *await rest_ids(reading)] == kept
    assert [event.task_id for event in await all_events(store, first.cursor)][-1:] == kept[1:]


async def test_what_was_pruned_of_other_kinds_is_no_loss_to_those_who_follow_one(store: Store) -> None:
    rare, *common = [await add(store, kind=kind) for kind in ("rare", "common", "common")]
    for task_id in (rare, *common):
        await store.cancel([task_id])
    reading = await store.endings(None, FINAL, ["rare"])
    (event,) = [event for event in await rest(reading) if event.kind == "rare"]
    await pass_time(store, MILLISECOND)
    assert await store.prune(EVERYTHING, 10) == 3
    late = await add(store, kind="rare")
    await store.cancel([late])
    assert await rest_ids(reading) == [late]
    if repeats(store):  # a cursor there begins further back, where something of its own kind is gone
        return
    assert await rest_ids(await store.endings(event.cursor, FINAL, ["rare"])) == [late]
    with pytest.raises(EventsLost):
        await (await store.endings(event.cursor, FINAL, ["rare", "common"])).read(10)
    await pass_time(store, MILLISECOND)
    await store.prune(EVERYTHING, 10)
    with pytest.raises(EventsLost):
        await (await store.endings(event.cursor, FINAL, ["rare"])).read(10)


async def test_what_is_no_cursor_is_refused(store: Store) -> None:
    for cursor in ("", "x", "1-2-3", "1:/2:/", "nowhere", "-1--1", "1-2~"):
        with pytest.raises(OptionError, match="is no cursor"):
            await store.endings(cursor, FINAL)


async def test_readers_and_writers_beside_each_other_miss_nothing(store: Store) -> None:
    workers = [await Worker.start(store, f"node-{number}") for number in range(3)]
    ids = await add_many(store, 150)
    reading = await store.endings(None, FINAL)
    told: list[int] = []

    async def work(worker: Worker) -> None:
        while claims := await worker.claim(limit=3):
            await store.finish([settlement_of(claim, OUTCOMES["succeeded"]) for claim in claims])

    working = asyncio.gather(*(work(worker) for worker in workers))
    while not working.done():
        told += [event.task_id for event in await reading.read(7)]
        await asyncio.sleep(0)
    await working
    told += await rest_ids(reading)
    assert sorted(told) == ids
