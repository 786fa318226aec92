"""Listings: filters by time, metadata and text, other orders, and cursors that survive tasks that come and go."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.actions import (
    ERROR,
    HOUR,
    MILLISECOND,
    OUTCOMES,
    STATES,
    Worker,
    add,
    add_in_state,
    listed,
    pass_time,
    read,
)

from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.outcomes import ErrorRecord, Failed, Succeeded
from synergon.model.record import from_datetime
from synergon.model.task_records import TaskQuery
from synergon.stores.base import Store
from synergon.stores.memory import queries as memory_queries
from synergon.stores.sql_rows import task_listing


@pytest.fixture
def few_searched(monkeypatch: pytest.MonkeyPatch) -> int:
    """A page searches few tasks."""
    for module in (memory_queries, task_listing):
        monkeypatch.setattr(module, "SEARCHED_TASKS", 5)
    return 5


async def ended_in_turn(store: Store, worker: Worker, number: int) -> list[int]:
    """Tasks that end in the opposite order of their ids."""
    ids = [await add(store) for _ in range(number)]
    claims = {claim.id: claim for claim in await worker.claim()}
    for count, task_id in enumerate(reversed(ids)):
        outcome = Failed(reason=Reason.ERROR, error=ERROR) if count % 2 else Succeeded()
        await pass_time(store, MILLISECOND)
        await worker.finish(claims[task_id], outcome)
    return ids


# ---------------------------------------------------------------- order


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
async def test_by_id_either_way(store: Store, limit: int) -> None:
    ids = sorted([await add_in_state(store, state) for state in STATES])
    assert await listed(store, limit=limit, ascending=True) == ids
    assert await listed(store, limit=limit) == ids[::-1]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_scheduled_tasks_by_their_due_time_either_way(store: Store, limit: int) -> None:
    run_at = await store.now() + HOUR
    late, soon = await add(store, run_at=run_at + HOUR), await add(store, run_at=run_at)
    same = await add(store, run_at=run_at)
    await add_in_state(store, State.READY)
    await add_in_state(store, State.SUCCEEDED)
    assert await listed(store, sort="due", ascending=True, limit=limit) == [soon, same, late]
    assert await listed(store, sort="due", limit=limit) == [late, same, soon]
    assert await listed(store, sort="due", states=frozenset({State.SCHEDULED}), limit=limit) == [late, same, soon]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_final_tasks_by_their_end_either_way(store: Store, worker: Worker, limit: int) -> None:
    ids = await ended_in_turn(store, worker, 6)
    await add(store)
    assert await listed(store, sort="end", limit=limit) == ids
    assert await listed(store, sort="end", ascending=True, limit=limit) == ids[::-1]
    failed = frozenset({State.FAILED})
    assert await listed(store, sort="end", states=failed, limit=limit) == ids[::2]
    assert await listed(store, sort="end", states=FINAL - failed, limit=limit) == ids[1::2]


@pytest.mark.parametrize("sort", ["due", "end"])
@pytest.mark.parametrize("ascending", [False, True])
async def test_a_cursor_survives_tasks_that_come_and_go(
    store: Store, worker: Worker, sort: Any, ascending: bool
) -> None:
    if sort == "end":
        ids = (await ended_in_turn(store, worker, 6))[::-1]
    else:
        now = await store.now() + HOUR
        ids = [await add(store, run_at=now + number * MILLISECOND) for number in range(6)]
    order = ids if ascending else ids[::-1]
    page = await store.list_tasks(TaskQuery(sort=sort, ascending=ascending, limit=2))
    assert [task.id for task in page] == order[:2]
    await add(store, run_at=await store.now() + 9 * HOUR)
    await store.delete([order[1], order[3]])
    rest = await listed(store, sort=sort, ascending=ascending, after=page.next)
    assert [task_id for task_id in rest if task_id in order] == [order[2], *order[4:]]


# ---------------------------------------------------------------- filters


async def test_ranges_contain_their_beginning_and_not_their_end(store: Store, worker: Worker) -> None:
    ids = await ended_in_turn(store, worker, 3)
    live = await add(store)
    records = [await read(store, task_id) for task_id in ids]
    for column in ("enqueued", "started", "finished"):
        moments = [from_datetime(getattr(record, f"{column}_at")) for record in records]
        for moment in moments:
            since = [task_id for task_id, one in zip(ids, moments, strict=True) if one >= moment]
            until = [task_id for task_id, one in zip(ids, moments, strict=True) if one < moment]
            found = await listed(store, **{f"{column}_since": moment})
            assert [task_id for task_id in found if task_id != live] == since[::-1]
            assert await listed(store, **{f"{column}_until": moment}) == until[::-1]
            for sort in ("id", "end"):
                both = {f"{column}_since": moment, f"{column}_until": moment + 1, "sort": sort}
                same = [task_id for task_id, one in zip(ids, moments, strict=True) if one == moment]
                assert sorted(await listed(store, **both)) == same
    assert live not in await listed(store, finished_since=0)
    assert live not in await listed(store, started_since=0)
    assert live in await listed(store, enqueued_since=0)


async def test_tasks_are_found_by_the_nodes_of_their_last_attempts(store: Store, worker: Worker) -> None:
    first, second, waiting = [await add(store) for _ in range(3)]
    (claim,) = await worker.claim(limit=1)
    await worker.finish(claim, OUTCOMES["succeeded"])
    await worker.claim(limit=1)
    assert await listed(store, nodes=(worker.node_id,)) == [second, first]
    assert await listed(store, nodes=("nobody", worker.node_id), states=FINAL) == [first]
    assert await listed(store, nodes=("nobody",)) == []
    assert waiting in await listed(store)


META = [
    b'{"customer":42}',
    b'{"customer":421}',
    b'{"customer":"42"}',
    b'{"nested":{"customer":42}}',
    b'{"note":"\\"customer\\":42"}',
    b'{"a":1,"customer":42,"z":[1]}',
    b'{"is_new":true,"rate":1.5,"nothing":null}',
    b'{"percent":"100%_!"}',
    None,
]


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"customer": 42}, [0, 5]),
        ({"customer": "42"}, [2]),
        ({"customer": 42, "a": 1}, [5]),
        ({"is_new": True}, [6]),
        ({"is_new": 1}, []),
        ({"rate": 1.5}, [6]),
        ({"nothing": None}, [6]),
        ({"other": None}, []),
        ({"percent": "100%_!"}, [7]),
        ({"percent": "100xyz"}, []),
        ({"CUSTOMER": 42}, []),
    ],
)
async def test_metadata_has_exactly_these_values(store: Store, meta: dict[str, Any], expected: list[int]) -> None:
    ids = [await add(store, meta=value) for value in META]
    await store.cancel(ids[::2])
    for limit in (1, 3, 100):
        assert await listed(store, meta=meta, limit=limit) == [ids[number] for number in expected][::-1]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("ada", [0, 2, 3]),
        ("ADA@example", [0]),
        ('say "hi"', [1]),
        ("100%", [1]),
        ("1_0", []),
        ("no route", [3]),
        ("most recent call", [3]),
        ("nowhere", []),
    ],
)
async def test_a_text_is_found_in_arguments_and_errors(
    store: Store, worker: Worker, search: str, expected: list[int]
) -> None:
    payloads = [b'{"to":"ada@example.org"}', rb'{"text":"say \"hi\" 100%"}', b'{"to":"Ada"}', b"{}"]
    ids = [await add(store, payload=payload) for payload in payloads]
    error = ErrorRecord(
        attempt=1, type="OSError", message="no route to ada", traceback="Traceback (most recent call last): ..."
    )
    claims = {claim.id: claim for claim in await worker.claim()}
    await worker.finish(claims[ids[3]], Failed(reason=Reason.ERROR, error=error))
    await worker.finish(claims[ids[0]], Succeeded())
    assert await listed(store, search=search) == [ids[number] for number in expected][::-1]
    assert sorted(await listed(store, search=search, limit=1)) == [ids[number] for number in expected]


async def test_a_page_searches_a_bounded_number_and_says_so(store: Store, few_searched: int) -> None:
    first = await add(store, payload=b'{"to":"ada"}')
    for _ in range(few_searched + 2):
        await add(store, kind="other", payload=b'{"to":"ada"}')
    for _ in range(few_searched + 2):
        await add(store)
    page = await store.list_tasks(TaskQuery(search="ada", kinds=("work",)))
    assert (list(page), page.is_cut) == ([], True)
    page = await store.list_tasks(TaskQuery(search="ada", kinds=("work",), after=page.next))
    assert ([task.id for task in page], page.is_cut, page.next) == ([first], False, None)
    page = await store.list_tasks(TaskQuery(search="ada", kinds=("work",), ascending=True))
    assert ([task.id for task in page], page.is_cut) == ([first], True)


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("sort", ["id", "due", "end"])
async def test_a_search_that_is_cut_goes_on_without_a_gap(
    store: Store, worker: Worker, few_searched: int, sort: Any, ascending: bool
) -> None:
    """Over both tables, with matches on all sides of each cut."""
    run_at = await store.now() + HOUR if sort == "due" else None
    ids = [
        await add(store, payload=b'{"n":%d}' % (number % 3), run_at=None if run_at is None else run_at + number)
        for number in range(4 * few_searched + 3)
    ]
    if sort != "due":
        claims = await worker.claim()
        for claim in claims if sort == "end" else claims[::2]:
            await worker.finish(claim, Succeeded() if claim.id % 4 else Failed(reason=Reason.ERROR, error=ERROR))
    found = await listed(store, search='"n":1', sort=sort, ascending=ascending)
    assert found == (ids[1::3] if ascending else ids[1::3][::-1])
