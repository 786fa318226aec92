"""Inserts tasks inside a caller's own SQLite transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from synergon.errors import OptionError
from synergon.model.groups import NewGroup, OpenedGroup
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.rules.groups import open_group
from synergon.stores.rules.insert import insert
from synergon.stores.session import drive
from synergon.stores.sqlite.session import Session
from synergon.stores.sqlite.transaction import SQL, IssuedIds, escaped_text

Result = TypeVar("Result")


def insert_on(connection: object, path: Path, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Insert tasks on the caller's connection."""

    async def work(session: Session) -> tuple[list[Insertion], Sequence[Insertion]]:
        inserted = await insert(session, tasks)
        return inserted, inserted

    return run_on(connection, path, work)


def open_group_on(connection: object, path: Path, group: NewGroup) -> OpenedGroup:
    """Insert a group or a flow on the caller's connection."""

    async def work(session: Session) -> tuple[OpenedGroup, Sequence[Insertion]]:
        opened = await open_group(session, group)
        return opened, opened.all_insertions

    return run_on(connection, path, work)


Work = Callable[[Session], Coroutine[Any, Any, tuple[Result, Sequence[Insertion]]]]
"""A rule that returns its result, and the insertions in it."""


def run_on(connection: object, path: Path, work: Work[Result]) -> Result:
    """Check that the caller's connection leads to this file and has a transaction, then run a rule on it. Begins a
    transaction if the connection is not in autocommit mode and has none; the caller commits it."""
    if not isinstance(connection, sqlite3.Connection):
        raise OptionError(f"conn must be a sqlite3.Connection to {path}, got {type(connection).__name__}")
    text_factory, connection.text_factory = connection.text_factory, escaped_text  # the caller may read bytes
    try:
        return _run_on(connection, path, work)
    finally:
        connection.text_factory = text_factory


def _run_on(connection: sqlite3.Connection, path: Path, work: Work[Result]) -> Result:
    _check_same_file(connection, path)
    is_ours = not connection.in_transaction
    if is_ours:
        if connection.isolation_level is None or getattr(connection, "autocommit", False) is True:
            raise OptionError("conn has no transaction open; execute BEGIN on it first, then enqueue, then commit")
        connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(SQL["lock"])
        issued = IssuedIds(path)
        transaction = Session(connection, issued)
        result, inserted = drive(work(transaction))
        transaction.flush()
        created = [insertion.id for insertion in inserted if insertion.created]
        if created:
            issued.note(max(created))
    except BaseException:
        if is_ours:  # the caller has opened no transaction and would not commit this one
            connection.rollback()
        raise
    return result


def _check_same_file(connection: sqlite3.Connection, path: Path) -> None:
    cursor = connection.cursor()
    cursor.row_factory = None
    files = [Path(row[2]) for row in cursor.execute("PRAGMA database_list") if row[1] == "main" and row[2]]
    if not files or not path.exists() or not files[0].samefile(path):
        found = files[0] if files else "a database in memory"
        raise OptionError(
            f"conn is a connection to {found}, but the engine's database is {path}; they must be the same"
        )
