"""Reading: single tasks, pages with filters, exact numbers."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from tests.stores.actions import (
    HOUR,
    KIND,
    OUTCOMES,
    STATES,
    Worker,
    add,
    add_in_state,
    add_many,
    check_counts,
    listed,
    read,
)
from tests.support import until

from synergon.model.clock import SystemClock
from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.record import to_datetime
from synergon.model.task_records import TaskPage, TaskQuery
from synergon.node.duties.live_counter import LiveCounter
from synergon.stores.base import Store
from synergon.stores.rules import counts
from synergon.stores.rules.counts import MOST_COUNTED

# ---------------------------------------------------------------- single tasks


async def test_tasks_are_read_in_the_order_asked_for_and_none_stands_for_no_task(store: Store) -> None:
    first, second = await add_many(store, 2)
    found = await store.get([second, 4711, first])
    assert [record and record.id for record in found] == [second, None, first]


async def test_a_task_may_be_asked_for_twice(store: Store) -> None:
    task_id = await add(store)
    assert [record and record.id for record in await store.get([task_id, task_id])] == [task_id, task_id]


@pytest.mark.parametrize("state", STATES)
async def test_a_task_is_read_in_every_state(store: Store, state: State) -> None:
    task_id = await add_in_state(store, state)
    assert (await read(store, task_id)).state is state


# ---------------------------------------------------------------- pages


async def _one_in_every_state(store: Store) -> dict[State, int]:
    return {state: await add_in_state(store, state) for state in STATES}


async def test_nothing_there_is_an_empty_page(store: Store) -> None:
    assert await store.list_tasks(TaskQuery()) == TaskPage(tasks=(), next=None)


async def test_live_and_ended_tasks_are_listed_together_newest_first(store: Store) -> None:
    ids = await _one_in_every_state(store)
    assert await listed(store) == sorted(ids.values(), reverse=True)


async def test_a_listed_task_is_the_task(store: Store) -> None:
    ids = await _one_in_every_state(store)
    page = await store.list_tasks(TaskQuery())
    assert list(page.tasks) == [await read(store, task_id) for task_id in sorted(ids.values(), reverse=True)]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
async def test_pages_go_on_where_the_last_one_ended(store: Store, limit: int) -> None:
    ids = await _one_in_every_state(store)
    assert await listed(store, limit=limit) == sorted(ids.values(), reverse=True)


async def test_only_the_last_page_has_no_next(store: Store) -> None:
    first, second, third, fourth = await add_many(store, 4)
    page = await store.list_tasks(TaskQuery(limit=2))
    assert ([record.id for record in page.tasks], page.next) == ([fourth, third], str(third))
    page = await store.list_tasks(TaskQuery(limit=2, after=page.next))
    assert ([record.id for record in page.tasks], page.next) == ([second, first], None)


async def test_pages_do_not_shift_when_tasks_come_and_go(store: Store) -> None:
    ids = await add_many(store, 6)
    page = await store.list_tasks(TaskQuery(limit=2))
    await add(store)
    await store.delete([ids[5], ids[3]])
    assert await listed(store, after=page.next) == [ids[2], ids[1], ids[0]]


async def test_a_cursor_need_not_be_a_task(store: Store) -> None:
    first, second, third = await add_many(store, 3)
    await store.delete([second])
    assert await listed(store, after=str(second)) == [first]
    assert await listed(store, after=str(third + 1000)) == [third, first]
    assert await listed(store, after=str(first)) == []


async def test_a_retried_task_is_listed_in_its_old_place(store: Store) -> None:
    first = await add_in_state(store, State.FAILED)
    second = await add(store)
    await store.retry([first])
    assert await listed(store) == [second, first]


# ---------------------------------------------------------------- filters


@pytest.mark.parametrize("state", STATES)
async def test_one_state_can_be_asked_for(store: Store, state: State) -> None:
    ids = await _one_in_every_state(store)
    assert await listed(store, states=frozenset({state})) == [ids[state]]


@pytest.mark.parametrize("states", [LIVE, FINAL, frozenset({State.READY, State.FAILED}), frozenset(State)])
async def test_several_states_can_be_asked_for(store: Store, states: frozenset[State]) -> None:
    ids = await _one_in_every_state(store)
    wanted = [task_id for state, task_id in ids.items() if state in states]
    assert await listed(store, states=states) == sorted(wanted, reverse=True)


async def test_no_state_is_no_task(store: Store) -> None:
    await _one_in_every_state(store)
    assert await listed(store, states=frozenset()) == []


FILTERS: Final[list[dict[str, Any]]] = [
    {"kinds": ("a",)},
    {"queue": "x"},
    {"tag": "red"},
    {"key": "k"},
    {"kinds": ("a",), "queue": "x"},
    {"kinds": ("a",), "tag": "red", "limit": 1},
    {"queue": "x", "key": "k", "tag": "red", "kinds": ("a",)},
    {"kinds": ("a",), "states": frozenset({State.CANCELLED})},
    {"kinds": ("a",), "queue": "x", "states": frozenset({State.READY}), "limit": 1},
    {"kinds": ("unknown",)},
    {"kinds": ("a", "b"), "tag": "red"},
    {"kinds": ("unknown", "b")},
    {"tag": "re"},
    {"tag": "%"},
    {"tag": 'red"'},
]


async def test_filters_hold_together_over_live_and_ended_tasks(store: Store) -> None:
    variants = [
        {"kind": kind, "queue": queue, "tags": tags, "key": key}
        for kind in ("a", "b")
        for queue in ("x", "y")
        for tags in ((), ("red",), ("blue", "red"), ('red"', "redder"))
        for key in (None, "k")
    ]
    ids = []
    for variant in variants:
        for ends in (True, False):
            # One key is live once at a time: what shall stay live frees the key of its predecessor first.
            task_id = await add(store, **{**variant, "on_conflict": "return"})
            ids.append(task_id)
            if ends:
                await store.cancel([task_id])
    records = [await read(store, task_id) for task_id in sorted(set(ids), reverse=True)]
    for filters in FILTERS:
        wanted = [record.id for record in records if _matches(record, filters)]
        assert await listed(store, **filters) == wanted, filters


def _matches(record: Any, filters: dict[str, Any]) -> bool:
    return (
        record.kind in filters.get("kinds", (record.kind,))
        and filters.get("queue", record.queue) == record.queue
        and filters.get("key", record.key) == record.key
        and ("tag" not in filters or filters["tag"] in record.tags)
        and ("states" not in filters or record.state in filters["states"])
    )


# ---------------------------------------------------------------- numbers


async def test_there_is_nothing_to_count_at_first(store: Store) -> None:
    assert await store.counts() == {}


async def test_numbers_are_by_queue_kind_and_state_without_zeros(store: Store, worker: Worker) -> None:
    await add_many(store, 3, kind="a", queue="x")
    await add_many(store, 2, kind="a", queue="y")
    await add(store, kind="b", queue="x")
    await worker.claim("a", limit=1)
    assert await store.counts() == {
        ("x", "a", State.READY): 2,
        ("x", "a", State.RUNNING): 1,
        ("y", "a", State.READY): 2,
        ("x", "b", State.READY): 1,
    }


@pytest.mark.parametrize("state", STATES)
async def test_every_state_is_counted(store: Store, state: State) -> None:
    await add_in_state(store, state)
    assert await store.counts() == {("default", "work", state): 1}


async def test_numbers_follow_a_task_through_its_life(store: Store, worker: Worker) -> None:
    ids = list((await _one_in_every_state(store)).values())
    await store.retry(ids)
    await check_counts(store)
    await store.reap([f"helper-{task_id}" for task_id in ids], 1)
    await check_counts(store)
    await worker.claim(limit=3)
    await check_counts(store)
    await store.cancel(ids)
    await check_counts(store)
    await store.reap([worker.node_id], 100)
    await check_counts(store)
    await store.delete(ids)
    assert await store.counts() == {}


# ---------------------------------------------------------------- many live tasks

MANY: Final = MOST_COUNTED + 10


def is_counted(store: Store) -> bool:
    """Whether the store counts many live tasks at intervals only."""
    return store.capabilities.scans_to_count


async def test_the_numbers_of_many_live_tasks_are_those_of_the_last_count(store: Store, worker: Worker) -> None:
    await add_many(store, MANY)
    found = await store.counts()
    assert (found, found.counted_at) == ({("default", KIND, State.READY): MANY}, None), "nobody has counted them yet"
    before = to_datetime(await store.now())
    assert await store.recount(HOUR)
    (claim,) = await worker.claim(limit=1)
    await worker.finish(claim, OUTCOMES["succeeded"])
    found, exact = await store.counts(), await store.counts(is_exact=True)
    final = {("default", KIND, State.SUCCEEDED): 1}
    assert (exact, exact.counted_at) == ({("default", KIND, State.READY): MANY - 1} | final, None)
    queues = await store.queues()
    assert [queue.counted_at for queue in queues] == [found.counted_at]
    if not is_counted(store):
        assert (found, found.counted_at) == (exact, None)
        return
    await add_many(store, 1)
    again = await store.counts()
    assert again == found == {("default", KIND, State.READY): MANY} | final
    assert again.counted_at is not None
    assert before <= again.counted_at <= to_datetime(await store.now())
    assert queues[0].counts == {State.READY: MANY, State.SUCCEEDED: 1}


async def test_many_live_tasks_are_counted_again_when_the_numbers_are_old(store: Store) -> None:
    assert not await store.recount(0), "there are few"
    await add_many(store, MANY)
    assert await store.recount(HOUR)
    assert not await store.recount(HOUR), "they are fresh"
    await add_many(store, 1)
    assert await store.recount(0)
    assert await store.counts() == {("default", KIND, State.READY): MANY + 1}


async def test_few_live_tasks_are_counted_now_whatever_was_counted_before(store: Store) -> None:
    ids = await add_many(store, MANY)
    assert await store.recount(HOUR)
    await store.delete(ids[1:])
    found = await store.counts()
    assert (found, found.counted_at) == ({("default", KIND, State.READY): 1}, None)


async def test_numbers_that_nobody_has_counted_for_long_are_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_many(store, MANY)
    assert await store.recount(HOUR)
    await add_many(store, 1)
    monkeypatch.setattr(counts, "OLDEST", 0)
    found = await store.counts()
    assert (found, found.counted_at) == ({("default", KIND, State.READY): MANY + 1}, None)


async def test_a_node_counts_many_live_tasks(store: Store) -> None:
    await add_many(store, MANY)
    counting = asyncio.create_task(LiveCounter(store, SystemClock()).step())
    try:
        if is_counted(store):
            await until(lambda: _has_counted(store))
    finally:
        counting.cancel()


async def _has_counted(store: Store) -> bool:
    return (await store.counts()).counted_at is not None
