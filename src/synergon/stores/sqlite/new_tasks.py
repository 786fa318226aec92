"""Inserts and replaces rows of tasks in SQLite."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from synergon.model.lifecycle import State
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.sqlite.transaction import Transaction

READY: Final = (
    State.READY
)  # a constant, because every inserted task is compared with it and the lookup of the member is slow


def add(transaction: Transaction, task: NewTask) -> Insertion:
    """Insert a task, at the latest when the transaction ends."""
    task_id, now = transaction.next_id(), transaction.now
    due = _due(task, now)
    state = _first_state(task, due, now)
    shared = _shared(task, state, now)
    if _has_rare_columns(task):
        shared += (task.limit_key, task.group_id, *_rare_columns(task))
    transaction.add_task(shared, (task_id, *_own(task, due)), task.queue)
    return Insertion(task_id, True, state)


def replace(transaction: Transaction, task_id: int, task: NewTask) -> State:
    """Write a new task into the row of a live one that does not run."""
    now = transaction.now
    due = _due(task, now)
    state = _first_state(task, due, now)
    _, queue, word, max_attempts, _, *rest = _shared(task, state, now)
    transaction.run("add_queue", queue)
    transaction.run(
        "replace",
        *(queue, word, max_attempts, *rest),
        *_own(task, due),
        *(task.limit_key, *_rare_columns(task)),
        task_id,
    )
    return state


def _has_rare_columns(task: NewTask) -> bool:
    return (
        task.limit_key is not None
        or task.group_id is not None
        or task.after_group is not None
        or task.target is not None
        or task.is_command
        or task.requirements != KIND_DEFAULT
    )


def _rare_columns(task: NewTask) -> tuple[Any, ...]:
    return task.after_group, task.is_command, task.target, task.provider, task.requirements


def _first_state(task: NewTask, due: int, now: int) -> State:
    if task.after_group is not None:
        return State.WAITING
    if due > now:
        return State.SCHEDULED
    return READY if task.limit_key is None else State.WAITING


def _shared(task: NewTask, state: State, now: int) -> tuple[Any, ...]:
    """The column values that tasks of one insert often have in common."""
    return (
        task.kind,
        task.queue,
        str(state),  # sqlite3 converts plain text fastest
        task.max_attempts,
        task.key,
        now,
        now + task.expires_in if task.expires_in is not None else None,
        task.overrides,
        msgspec.json.encode(task.tags).decode() if task.tags else None,
        task.origin,
    )


def _own(task: NewTask, due: int) -> tuple[Any, ...]:
    return task.payload, task.priority, due, task.meta


def _due(task: NewTask, now: int) -> int:
    if task.run_at is not None:
        return task.run_at
    return now + task.delay if task.delay is not None else now
