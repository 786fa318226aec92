"""Inserts and replaces rows of tasks in PostgreSQL.

A statement inserts many tasks: columns in which they differ are sent as arrays, and the others as one value. There are
three forms (`columns.Form`), because each unneeded column costs time: for a single bare task (`insert_bare`), for tasks
without a group, key queue or server (`insert_plain`), and for all others (`insert_bound`).
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
from synergon.stores.columns import COMPUTED_FROM, GIVEN, REPLACED, Form, is_bound, source
from synergon.stores.postgres.transaction import Transaction

STATES: Final = {state.value: state for state in State}
TASKS_AT_ONCE: Final = 1000
"""The maximum number of tasks that one statement inserts."""


async def add(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Insert tasks without keys. The rows of their queues are inserted at the end of the transaction."""
    transaction.note_queues(task.queue for task in tasks)
    if not any(map(is_bound, tasks)):
        return await insert_plain(transaction, tasks)
    return _insertions(await _insert_bound(transaction, tasks))


async def add_keyed(transaction: Transaction, task: NewTask) -> Insertion | None:
    """Insert a task with a key. Returns None if a live task holds the key, or a hold of it has not expired."""
    inserted = _insertions(await _insert_bound(transaction, [task]))
    if not inserted:
        return None
    transaction.note_queues([task.queue])
    return inserted[0]


async def insert_plain(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Insert tasks without a key, group, key queue or server. Their queues must exist."""
    if not tasks:
        return []
    new, parameters = _rows_of(tasks, Form.PLAIN)
    return _insertions(await transaction.inserted("insert_plain", new, *parameters))


async def insert_bare(transaction: Transaction, task: NewTask) -> list[Insertion]:
    """Insert one bare task, whose queue must exist. This is the most frequent insert: clients enqueue single tasks, and
    wait for each."""
    task_id = await transaction.value("insert_bare", *GIVEN[Form.BARE].texts(task))
    return [Insertion(task_id, True, State.READY)]


async def insert_in_parts(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Like `insert_plain`, in parts of `TASKS_AT_ONCE` tasks. Encoding more at once would block the event loop."""
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
        task.is_dependent,
        State.READY.value if task.limit_key is None else _first_state(transaction),
        *REPLACED.texts(task),
    )
    return State(state)


def _insertions(rows: list[Any]) -> list[Insertion]:
    rows.sort(key=itemgetter(0))  # ids are in the order of the tasks, rows need not be
    return [Insertion(task_id, True, STATES[state]) for task_id, state in rows]


def _first_state(transaction: Transaction) -> str:
    """The first state of a due task with a limit key: `waiting`. A caller's own transaction must not lock the key
    queue: there the task is `scheduled`, and the next `wake` moves it into the key queue."""
    return (State.SCHEDULED if transaction.is_callers else State.WAITING).value


async def _insert_bound(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Any]:
    new, parameters = _rows_of(tasks, Form.BOUND, first=2)
    return await transaction.inserted("insert_bound", new, _first_state(transaction), *parameters)


def _rows_of(tasks: Sequence[NewTask], form: Form, first: int = 1) -> tuple[str, list[Any]]:
    """The source of an insert (`stores.columns.source`), and its parameters. They are numbered from `first` on."""
    arrays = [*_computed_from(tasks), *GIVEN[form].arrays(tasks)]
    # The payloads are an array in any case, because a source without arrays would have no positions.
    payloads = len(COMPUTED_FROM) + GIVEN[form].names.index("payload")
    differs = tuple(
        number == payloads or values.count(values[0]) != len(values) for number, values in enumerate(arrays)
    )
    parameters = [values if is_array else values[0] for values, is_array in zip(arrays, differs, strict=True)]
    return source(form, first, differs), parameters


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
