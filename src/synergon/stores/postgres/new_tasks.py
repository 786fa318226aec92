"""Inserts and replaces rows of tasks in PostgreSQL.

A statement inserts many tasks from parallel arrays. There are three forms (`columns.Form`), because each unneeded
column costs time: for a single bare task (`insert_bare`), for tasks without a group, key queue or server
(`insert_plain`), and for all others (`insert_bound`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.columns import GIVEN, REPLACED, Form, is_bound
from synergon.stores.postgres.transaction import Transaction

BARE, PLAIN, BOUND = (GIVEN[form] for form in Form)

TASKS_AT_ONCE: Final = 1000
"""The maximum number of tasks that one statement inserts."""


async def add(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Insert tasks without keys now. Their queues are inserted at the end of the transaction."""
    transaction.note_queues(task.queue for task in tasks)
    if not any(map(is_bound, tasks)):
        return await insert_plain(transaction, tasks)
    rows = await transaction.rows("insert_bound", *_bound_arrays(transaction, tasks))
    return _insertions(rows)


async def add_keyed(transaction: Transaction, task: NewTask) -> Insertion | None:
    """Insert a task with a key. None if a live task holds the key."""
    row = await transaction.row("insert_bound", *_bound_arrays(transaction, [task]))
    if row is None:
        return None
    transaction.note_queues([task.queue])
    return Insertion(row[0], True, State(row[1]))


async def insert_plain(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Insert tasks without a key, group, key queue or server. Their queues must exist."""
    return _insertions(await transaction.rows("insert_plain", *_computed_from(tasks), *PLAIN.arrays(tasks)))


async def insert_bare(transaction: Transaction, task: NewTask) -> list[Insertion]:
    """Insert one bare task, whose queue must exist. The most frequent insert: single tasks, with a client that waits
    for each."""
    task_id = await transaction.value("insert_bare", *BARE.texts(task))
    return [Insertion(task_id, True, State.READY)]


async def insert_in_parts(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """`insert_plain` in parts of `TASKS_AT_ONCE` tasks: encoding very many tasks at once would block the event loop."""
    inserted: list[Insertion] = []
    for start in range(0, len(tasks), TASKS_AT_ONCE):
        inserted += await insert_plain(transaction, tasks[start : start + TASKS_AT_ONCE])
    return inserted


async def replace(transaction: Transaction, task_id: int, task: NewTask) -> State:
    """Write a new task into the row of a live task that does not run. Returns the new state."""
    transaction.note_queues([task.queue])
    state: str = await transaction.value(
        "replace",
        task_id,
        _moment(task.run_at),
        task.delay,
        task.expires_in,
        list(task.tags) or None,
        task.after_group is not None,
        State.READY.value if task.limit_key is None else _first_state(transaction),
        *REPLACED.texts(task),
    )
    return State(state)


def _insertions(rows: list[Any]) -> list[Insertion]:
    rows.sort(key=itemgetter(0))  # ids are in the order of the tasks, rows need not be
    return [Insertion(row[0], True, State(row[1])) for row in rows]


def _first_state(transaction: Transaction) -> str:
    """The first state of a due task with a limit key: `waiting`. A caller's own transaction must not lock the key
    queue: there the task is `scheduled`, and the next `wake` moves it into the key queue."""
    return (State.SCHEDULED if transaction.is_callers else State.WAITING).value


def _bound_arrays(transaction: Transaction, tasks: Sequence[NewTask]) -> tuple[Any, ...]:
    return *_computed_from(tasks), _first_state(transaction), *BOUND.arrays(tasks)


def _computed_from(tasks: Sequence[NewTask]) -> tuple[list[Any], ...]:
    """The values from which an insert computes columns: due times, delays, expiries and tags."""
    return (
        [_moment(task.run_at) for task in tasks],
        [task.delay for task in tasks],
        [task.expires_in for task in tasks],
        [msgspec.json.encode(task.tags).decode() if task.tags else None for task in tasks],
    )


def _moment(microseconds: int | None) -> datetime | None:
    return to_datetime(microseconds) if microseconds is not None else None
