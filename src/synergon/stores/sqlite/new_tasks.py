"""Inserts and replaces rows of tasks in SQLite."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from synergon.model.lifecycle import State
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.columns import GIVEN, REPLACED, Form, form_of
from synergon.stores.sqlite.transaction import Transaction

READY: Final = State.READY  # every insert uses it, and a constant is read faster than a member

_VALUES: Final = tuple((GIVEN[form].shared.values, GIVEN[form].own.values) for form in Form)


def add(transaction: Transaction, task: NewTask) -> Insertion:
    """Insert a task, at the latest when the transaction ends."""
    task_id, now = transaction.next_id(), transaction.now
    due = _due(task, now)
    state = _first_state(task, due, now)
    form = form_of(task)
    shared, own = _VALUES[form]
    computed: tuple[Any, ...] = (str(state), now)  # anything but plain text takes a detour into the database
    if form is not Form.BARE:
        computed += (_expires_at(task, now), _tags(task))
    transaction.add_task(form, (*computed, *shared(task)), (task_id, due, *own(task)), task.queue)
    return Insertion(task_id, True, state)


def replace(transaction: Transaction, task_id: int, task: NewTask) -> State:
    """Write a new task into the row of a live one that does not run."""
    now = transaction.now
    due = _due(task, now)
    state = _first_state(task, due, now)
    transaction.run("add_queue", task.queue)
    transaction.run(
        "replace",
        **dict(zip(REPLACED.names, REPLACED.values(task), strict=True)),
        id=task_id,
        state=str(state),
        now=now,
        due=due,
        expires_at=_expires_at(task, now),
        tags=_tags(task),
    )
    return state


def _first_state(task: NewTask, due: int, now: int) -> State:
    if task.after_group is not None:
        return State.WAITING
    if due > now:
        return State.SCHEDULED
    return READY if task.limit_key is None else State.WAITING


def _due(task: NewTask, now: int) -> int:
    if task.run_at is not None:
        return task.run_at
    return now + task.delay if task.delay is not None else now


def _expires_at(task: NewTask, now: int) -> int | None:
    return now + task.expires_in if task.expires_in is not None else None


def _tags(task: NewTask) -> str | None:
    return msgspec.json.encode(task.tags).decode() if task.tags else None
