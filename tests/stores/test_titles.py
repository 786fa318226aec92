"""Titles: stored with a task, carried by its claims, kept in the history, found by a part of them."""

from __future__ import annotations

import pytest
from tests.stores.actions import KIND, OUTCOMES, Worker, add, listed, read
from tests.stores.test_endings import all_events

from synergon.model.lifecycle import State
from synergon.model.tasks import NewTask
from synergon.stores.base import Store


async def test_a_title_goes_with_the_task_from_its_insert_to_its_end_and_back(store: Store, worker: Worker) -> None:
    task_id = await add(store, title="Invoice 7")
    assert (await read(store, task_id)).title == "Invoice 7"
    (claim,) = await worker.claim()
    assert claim.title == "Invoice 7"
    await worker.finish(claim, OUTCOMES["failed"])
    record = await read(store, task_id)
    assert (record.state, record.title) == (State.FAILED, "Invoice 7")
    (event,) = await all_events(store)
    assert event.title == "Invoice 7"
    await store.retry([task_id])
    record = await read(store, task_id)
    assert (record.state, record.title) == (State.READY, "Invoice 7")
    assert [claim.title for claim in await worker.claim()] == ["Invoice 7"]


async def test_a_task_without_a_title_has_none(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    assert (await read(store, task_id)).title is None
    (claim,) = await worker.claim()
    assert claim.title is None
    await worker.finish(claim, OUTCOMES["succeeded"])
    assert [event.title for event in await all_events(store)] == [None]


async def test_a_plain_success_keeps_its_title(store: Store, worker: Worker) -> None:
    ids = [entry.id for entry in await store.insert([NewTask(kind=KIND, title=f"number {n}") for n in range(40)])]
    for claim in await worker.claim(limit=40):
        await worker.finish(claim, OUTCOMES["succeeded"])
    assert [(await read(store, task_id)).title for task_id in ids] == [f"number {n}" for n in range(40)]


@pytest.mark.parametrize("bound", [{}, {"limit_key": "ada"}, {"meta": b"{}"}])
async def test_tasks_that_come_together_keep_their_own_titles(store: Store, bound: dict[str, object]) -> None:
    # mypy takes each value for every field.
    tasks = [NewTask(kind=KIND, title=f"title {n}" if n % 3 else None, **bound) for n in range(50)]  # type: ignore[arg-type]
    inserted = await store.insert(tasks)
    assert [(await read(store, entry.id)).title for entry in inserted] == [task.title for task in tasks]


async def test_a_replaced_task_has_the_title_of_the_new_one(store: Store) -> None:
    task_id = await add(store, key="a", title="old")
    await add(store, key="a", on_conflict="replace", title="new")
    assert (await read(store, task_id)).title == "new"
    await add(store, key="a", on_conflict="replace")
    assert (await read(store, task_id)).title is None


TITLES = ("Invoice 7", "invoice 70", "100% of it", "a_b", "wow!", "back\\slash", None)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Invoice 7", ["Invoice 7", "invoice 70"]),
        ("INVOICE", ["Invoice 7", "invoice 70"]),
        ("70", ["invoice 70"]),
        ("%", ["100% of it"]),
        ("_", ["a_b"]),
        ("!", ["wow!"]),
        ("\\", ["back\\slash"]),
        ("receipt", []),
        ("", [title for title in TITLES if title is not None]),
    ],
)
async def test_tasks_are_found_by_a_part_of_their_title(
    store: Store, worker: Worker, text: str, found: list[str]
) -> None:
    for title in TITLES:
        await add(store, title=title)
    for claim in await worker.claim(limit=2):
        await worker.finish(claim, OUTCOMES["succeeded"])  # some are in the history
    ids = await listed(store, title=text)
    assert [(await read(store, task_id)).title for task_id in reversed(ids)] == found
