"""Inserts and replaces rows of tasks in PostgreSQL.

A statement inserts many tasks from parallel arrays. It has three forms, because unused columns cost time: for a single
task without options (`insert_bare`), for tasks that join no key queue or group (`insert`), and for all others.
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
from synergon.stores.postgres.transaction import Transaction

TASKS_AT_ONCE: Final = 1000
"""The maximum number of tasks that one statement inserts."""


def joins_anything(task: NewTask) -> bool:
    """Whether the task joins a key queue or a group, waits for one, is a command or has a target server."""
    return (
        task.limit_key is not None
        or task.group_id is not None
        or task.after_group is not None
        or task.target is not None
        or task.is_command
    )


def is_bare(task: NewTask) -> bool:
    """Whether a task that joins nothing is due now and has none of the rarer options."""
    return (
        task.run_at is None
        and task.delay is None
        and task.expires_in is None
        and task.overrides is None
        and task.meta is None
        and not task.tags
    )


async def add(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Insert tasks without keys now, and their queues when the transaction ends."""
    transaction.note_queues(task.queue for task in tasks)
    if not any(map(joins_anything, tasks)):
        return await insert_plain(transaction, tasks)
    rows = await transaction.rows("insert_bound", *_columns(tasks), *_joined(tasks), _first_state(transaction))
    return _insertions(rows)


async def add_keyed(transaction: Transaction, task: NewTask) -> Insertion | None:
    """Insert a task with a key. None if a live task holds the key."""
    row = await transaction.row("insert_keyed", *_columns([task]), *_joined([task]), _first_state(transaction))
    if row is None:
        return None
    transaction.note_queues([task.queue])
    return Insertion(row[0], True, State(row[1]))


async def insert_plain(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Insert tasks that have no key and join nothing, in queues that exist."""
    return _insertions(await transaction.rows("insert", *_columns(tasks)))


async def insert_bare(transaction: Transaction, task: NewTask) -> list[Insertion]:
    """Insert one task without options in a queue that exists. Its own statement saves time for the most frequent
    call."""
    task_id = await transaction.value(
        "insert_bare",
        task.kind,
        task.queue,
        task.priority,
        task.payload.decode(),
        task.max_attempts,
        task.origin,
        task.requirements,
    )
    return [Insertion(task_id, True, State.READY)]


async def insert_in_parts(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """`insert_plain` for very many tasks, in parts: encoding all at once would block the event loop."""
    inserted: list[Insertion] = []
    for start in range(0, len(tasks), TASKS_AT_ONCE):
        inserted += await insert_plain(transaction, tasks[start : start + TASKS_AT_ONCE])
    return inserted


async def replace(transaction: Transaction, task_id: int, task: NewTask) -> State:
    """Write a new task into the row of a live one that does not run."""
    transaction.note_queues([task.queue])
    state: str = await transaction.value(
        "replace",
        task_id,
        task.queue,
        task.priority,
        _moment(task.run_at),
        task.delay,
        task.payload.decode(),
        task.max_attempts,
        task.expires_in,
        _text(task.overrides),
        list(task.tags) or None,
        _text(task.meta),
        task.origin,
        task.limit_key,
        task.after_group,
        task.is_command,
        task.target,
        task.provider,
        _first_state(transaction),
        task.requirements,
    )
    return State(state)


def _insertions(rows: list[Any]) -> list[Insertion]:
    rows.sort(key=itemgetter(0))  # ids are in the order of the tasks, rows need not be
    return [Insertion(row[0], True, State(row[1])) for row in rows]


def _first_state(transaction: Transaction) -> str:
    """The first state of a due task with a limit key. A caller's own transaction must not lock its key queue, so there
    the task is `scheduled`, and the next `wake` moves it into the key queue."""
    return (State.SCHEDULED if transaction.is_callers else State.WAITING).value


def _joined(tasks: Sequence[NewTask]) -> tuple[list[Any], ...]:
    return (
        [task.limit_key for task in tasks],
        [task.group_id for task in tasks],
        [task.after_group for task in tasks],
        [task.is_command for task in tasks],
        [task.target for task in tasks],
        [task.provider for task in tasks],
    )


def _columns(tasks: Sequence[NewTask]) -> tuple[list[Any], ...]:
    return (
        [task.kind for task in tasks],
        [task.queue for task in tasks],
        [task.priority for task in tasks],
        [_moment(task.run_at) for task in tasks],
        [task.delay for task in tasks],
        [task.payload.decode() for task in tasks],
        [task.max_attempts for task in tasks],
        [task.key for task in tasks],
        [task.expires_in for task in tasks],
        [_text(task.overrides) for task in tasks],
        [msgspec.json.encode(task.tags).decode() if task.tags else None for task in tasks],
        [_text(task.meta) for task in tasks],
        [task.origin for task in tasks],
        [task.requirements for task in tasks],
    )


def _text(value: bytes | None) -> str | None:
    return value.decode() if value is not None else None


def _moment(microseconds: int | None) -> datetime | None:
    return to_datetime(microseconds) if microseconds is not None else None
