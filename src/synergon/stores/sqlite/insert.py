"""Tasks come in."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from synergon.errors import KeyConflict, OptionError
from synergon.model.lifecycle import State
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.sqlite.follow_ups import draw
from synergon.stores.sqlite.transaction import Moves, Transaction

READY: Final = State.READY  # to look a member up takes longer than to compare it, and every task that comes does


def insert(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Store all of `tasks` or, raising `KeyConflict`, none that a commit could keep."""
    inserted = store(transaction, tasks)
    return with_new_states(inserted, draw(transaction)) if transaction.key_queues else inserted


def with_new_states(inserted: Sequence[Insertion], moves: Moves) -> list[Insertion]:
    """What became of tasks that their lines have put in order since."""
    return [
        Insertion(entry.id, entry.created, moves[entry.id][1]) if entry.id in moves else entry for entry in inserted
    ]


def store(transaction: Transaction, tasks: Sequence[NewTask]) -> list[Insertion]:
    """The same, and the consequences are the caller's to draw."""
    _reject_conflicts(transaction, tasks)
    return [_insert(transaction, task) if task.key is None else _insert_keyed(transaction, task) for task in tasks]


def _insert(transaction: Transaction, task: NewTask) -> Insertion:
    task_id, now, after_group = transaction.next_id(), transaction.now, None
    bonds: tuple[Any, ...] = ()
    if _is_bound(task):
        after_group = _open_group(transaction, task.after_group)
        bonds = (
            task.limit_key,
            task.group_id,
            after_group,
            task.is_command,
            task.target,
            task.provider,
            task.requirements,
        )
    due = _due(task, now)
    state = _first_state(transaction, task, due, after_group)
    shared = _shared(task, state, now)
    transaction.add_task(shared + bonds, (task_id, *_own(task, due)), task.queue)
    return Insertion(task_id, True, state)


def _is_bound(task: NewTask) -> bool:
    return (
        task.limit_key is not None
        or task.group_id is not None
        or task.after_group is not None
        or task.target is not None
        or task.is_command
        or task.requirements != KIND_DEFAULT
    )


def _open_group(transaction: Transaction, group_id: int | None) -> int | None:
    """The group, if there is any use in waiting for it."""
    is_open = group_id is not None and transaction.row("group_is_open", group_id) is not None
    return group_id if is_open else None


def _first_state(transaction: Transaction, task: NewTask, due: int, after_group: int | None) -> State:
    """Where a task begins. One that is due goes to the end of its line, which is then put in order."""
    if after_group is not None:
        return State.WAITING
    if due > transaction.now:
        return State.SCHEDULED
    if task.limit_key is None:
        return READY
    transaction.touch(task.kind, task.limit_key)
    return State.WAITING


def _shared(task: NewTask, state: State, now: int) -> tuple[Any, ...]:
    """What a row often has in common with others that are inserted with it."""
    return (
        task.kind,
        task.queue,
        str(state),  # anything but plain text takes a detour into the database
        task.max_attempts,
        task.key,
        now,
        now + task.expires_in if task.expires_in is not None else None,
        task.overrides,
        msgspec.json.encode(task.tags).decode() if task.tags else None,
        task.origin,
    )


def _own(task: NewTask, due: int) -> tuple[Any, ...]:
    return task.payload, 0 if task.is_command else task.priority, due, task.meta


def _due(task: NewTask, now: int) -> int:
    if task.run_at is not None:
        return task.run_at
    return now + task.delay if task.delay is not None else now


def _reject_conflicts(transaction: Transaction, tasks: Sequence[NewTask]) -> None:
    """Look before anything is written, so that a refusal leaves nothing behind."""
    seen: set[tuple[str, str]] = set()
    for task in tasks:
        if task.key is None:
            continue
        if task.on_conflict != "return":
            holder = transaction.row("key_holder", task.kind, task.key)
            if task.on_conflict == "raise" and (holder or (task.kind, task.key) in seen):
                raise _conflict(task, holder[0] if holder else 0, "is live")
            if task.on_conflict == "replace" and holder and holder[1] == State.RUNNING:
                raise _conflict(task, holder[0], "is running and cannot be replaced")
        seen.add((task.kind, task.key))


def _conflict(task: NewTask, holder: int, what: str) -> KeyConflict:
    who = f"task {holder}" if holder else "another task of the same call"
    other_way = 'on_conflict="return"' if task.after_group is None else "another key"  # it must be a task of its own
    return KeyConflict(
        f"the key {task.key!r} of kind {task.kind!r} is taken: {who} {what}; wait for its end, or use {other_way}",
        holder,
    )


def _insert_keyed(transaction: Transaction, task: NewTask) -> Insertion:
    holder = transaction.row("key_holder", task.kind, task.key)
    if holder is None:
        return _insert(transaction, task)
    task_id, state, limit_key = holder
    if task.on_conflict == "replace":
        transaction.touch(task.kind, limit_key)
        state = _replace(transaction, task_id, task)
    return Insertion(task_id, False, State(state))


def _replace(transaction: Transaction, task_id: int, task: NewTask) -> State:
    """Another task under the same id; it stays in its group."""
    after_group = _open_group(transaction, task.after_group)
    due = _due(task, transaction.now)
    state = _first_state(transaction, task, due, after_group)
    _, queue, word, max_attempts, _, *rest = _shared(task, state, transaction.now)
    bonds = (task.limit_key, after_group, task.is_command, task.target, task.provider, task.requirements)
    transaction.run("add_queue", queue)
    transaction.run("replace", queue, word, max_attempts, *rest, *_own(task, due), *bonds, task_id)
    return state


def insert_on(connection: object, path: Path, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Insert inside the caller's own transaction."""
    if not isinstance(connection, sqlite3.Connection):
        raise OptionError(f"conn must be a sqlite3.Connection to {path}, got {type(connection).__name__}")
    text_factory, connection.text_factory = connection.text_factory, str  # what we read is ours, and the rest is theirs
    try:
        return _insert_on(connection, path, tasks)
    finally:
        connection.text_factory = text_factory


def _insert_on(connection: sqlite3.Connection, path: Path, tasks: Sequence[NewTask]) -> list[Insertion]:
    _check_same_file(connection, path)
    is_ours = not connection.in_transaction
    if is_ours:
        if connection.isolation_level is None or getattr(connection, "autocommit", False) is True:
            raise OptionError("conn has no transaction open; execute BEGIN on it first, then enqueue, then commit")
        connection.execute("BEGIN IMMEDIATE")
    try:
        transaction = Transaction(connection)
        inserted = insert(transaction, tasks)
        transaction.flush()
    except BaseException:
        if is_ours:  # the caller has opened none, and would not know of it
            connection.rollback()
        raise
    return inserted


def _check_same_file(connection: sqlite3.Connection, path: Path) -> None:
    cursor = connection.cursor()
    cursor.row_factory = None
    files = [Path(row[2]) for row in cursor.execute("PRAGMA database_list") if row[1] == "main" and row[2]]
    if not files or not path.exists() or not files[0].samefile(path):
        found = files[0] if files else "a database in memory"
        raise OptionError(
            f"conn is a connection to {found}, but the engine's database is {path}; they must be the same"
        )
