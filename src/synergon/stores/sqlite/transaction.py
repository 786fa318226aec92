"""One transaction of the SQLite store. Runs statements, assigns ids, and has one moment of the clock."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from synergon.errors import StoreUnavailable
from synergon.model.process_identity import BOOT_ID
from synergon.stores.columns import Form
from synergon.stores.session import Touched
from synergon.stores.sql_rows.named_statements import NamedStatements
from synergon.stores.statements import statements
from synergon.stores.typed_rows import Row, read_rows
from synergon.stores.unreadable import BadText, UnreadableRows

SQL = statements("sqlite")

ROWS_PER_STATEMENT: Final = (32, 8, 2, 1)
"""How many rows one insert statement may have. Starting a statement costs more than a row, and a few fixed sizes need
parsing only once."""

OVER: Final = -1
"""The remaining microseconds of a lease that has ended."""


DIGITS: Final = 19
"""The number of digits of the greatest id."""


def _inserts(form: Form) -> tuple[int, tuple[tuple[int, str], ...]]:
    """The statements that insert tasks in this form, each with its number of rows; and the number of columns in which
    the rows of a statement differ. The values of the other columns are passed once for all rows, because passing values
    is most of the cost of an insert. For a single row, plain VALUES are the fastest."""
    insert = SQL[f"insert_{form.name.lower()}"]
    before, _, behind = insert.partition("\n    id, run_at")
    own_columns = 2 + behind.count(",")
    common, own = ", ".join("?" * before.count(",")), ", ".join("?" * own_columns)
    return own_columns, tuple(
        (count, f"{insert} SELECT {common}, * FROM (VALUES {', '.join([f'({own})'] * count)})")
        if count > 1
        else (count, f"{insert} VALUES ({common}, {own})")
        for count in ROWS_PER_STATEMENT
    )


_INSERTS: Final = tuple(map(_inserts, Form))

_columns: Final[dict[str, tuple[str, ...]]] = {}
"""The column names of each statement, cached because reading them from a cursor is slow."""


class IssuedIds:
    """Stores the greatest id assigned in a caller's own transaction, in a small file beside the database.

    If a caller rolls back, the database forgets the ids that the caller has got, and would assign them to other tasks.
    The file prevents this. Every process reads and writes it while it holds the write lock of the database. The file is
    not synced to the disk, so a power failure may lose the ids of transactions that were rolled back just before.
    """

    def __init__(self, database: Path) -> None:
        self._database = database.resolve()  # a link and its target share the file, as they share that of the log
        self._path = self._database.with_name(f"{self._database.name}-ids")

    def last(self) -> int:
        """The stored id. 0 if none is stored."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise self._trouble(error) from error
        try:
            number = os.read(descriptor, DIGITS)
        except OSError as error:
            raise self._trouble(error) from error
        finally:
            os.close(descriptor)
        return int(number) if number.isdigit() else 0  # a power failure may leave zero bytes

    def note(self, last_id: int) -> None:
        """Remember that ids up to this one were assigned."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                with suppress(PermissionError):  # another user's file: that one has set its mode
                    os.fchmod(descriptor, self._database.stat().st_mode & 0o777)  # as SQLite does for its files
                os.pwrite(
                    descriptor, b"%0*d\n" % (DIGITS, last_id), 0
                )  # in place: a process that dies here leaves a number
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._trouble(error) from error

    def _trouble(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._path}, which keeps ids from being assigned twice, cannot be used ({error}); give this process the "
            "right to read and write it"
        )


class Transaction:
    """A transaction as the rules and queries use it. Its clock does not advance, and its ids ascend.

    New tasks are buffered until another statement runs or the transaction ends, so that calls that share a commit share
    statements, too.
    """

    __slots__ = (
        "_changes",
        "_connection",
        "_cursor",
        "_issued",
        "_last_id",
        "_new_queues",
        "_new_tasks",
        "_now",
        "_pending",
        "_steady",
        "touched",
        "unreadable",
    )

    def __init__(
        self, connection: sqlite3.Connection, issued: IssuedIds, unreadable: UnreadableRows | None = None
    ) -> None:
        self.unreadable: Final = unreadable or UnreadableRows()
        self._connection = connection
        self._issued: IssuedIds | None = issued
        """None after the first id was assigned."""
        self._cursor = connection.cursor()
        self._cursor.row_factory = None  # the caller's connection may have a row factory
        self._changes = connection.total_changes
        self._now: int | None = None
        self._steady = 0
        self._last_id = 0
        self._new_tasks: dict[tuple[Any, ...], list[Any]] = {}
        """The buffered tasks. The key is the form of the insert and the shared values; the list has the other values of
        each task, one task after the other."""
        self._pending = 0
        self._new_queues: set[str] = set()
        self.touched: Touched = Touched()

    @property
    def now(self) -> int:
        """The store's clock, read once per transaction."""
        if self._now is None:
            self._steady = steady_now()
            self._now, self._last_id = self._cursor.execute(SQL["now"], (BOOT_ID, self._steady)).fetchone()
        return self._now

    @property
    def changes(self) -> int:
        """A number that grows with every changed row and every buffered task."""
        return self._connection.total_changes + self._pending

    def next_id(self) -> int:
        """A new id, greater than all earlier ones, including ids of callers' transactions that were rolled back."""
        if self._issued is not None:
            _ = self.now
            self._last_id = max(self._last_id, self._issued.last())
            self._issued = None
        self._last_id += 1
        return self._last_id

    def add_task(self, form: Form, shared: tuple[Any, ...], own: tuple[Any, ...], queue: str) -> None:
        """Buffer a new task. Its row is written before the next statement, or at the end of the transaction."""
        self._new_tasks.setdefault((form, *shared), []).extend(own)
        self._new_queues.add(queue)
        self._pending += 1

    def flush(self) -> None:
        """Write the buffered tasks. If anything was written, also write the clock and the last id. Called before the
        commit."""
        self._insert_tasks()
        if self._now is not None and self._connection.total_changes != self._changes:
            self._cursor.execute(SQL["advance"], (self._now, self._last_id, self._steady, BOOT_ID))

    def close(self) -> None:
        """Reset the last statement. If reading its rows failed, it is still in progress, and the connection cannot
        commit."""
        self._cursor.close()

    def _insert_tasks(self) -> None:
        tasks, self._new_tasks = self._new_tasks, {}
        queues, self._new_queues = self._new_queues, set()
        self._pending = 0
        for queue in queues:
            self._cursor.execute(SQL["add_queue"], (queue,))
        for (form, *shared), own in tasks.items():
            self._insert_rows(form, shared, own)

    def _insert_rows(self, form: Form, shared: list[Any], own: list[Any]) -> None:
        start = 0
        own_columns, inserts = _INSERTS[form]
        for count, statement in inserts:
            values = count * own_columns
            while start + values <= len(own):
                self._cursor.execute(statement, [*shared, *own[start : start + values]])
                start += values

    def rows(self, name: str, /, *parameters: Any, **named: Any) -> list[Any]:
        """All rows of the named statement. A statement that uses a value twice has named parameters."""
        return self.select(SQL[name], parameters or named)

    def typed(self, row_type: type[Row], name: str, /, *parameters: Any, **named: Any) -> list[Row]:
        """All rows of the named statement as structs, whose fields are the columns of the statement."""
        return self.typed_select(row_type, SQL[name], parameters or named)

    def typed_select(self, row_type: type[Row], sql: str, parameters: Sequence[Any] | dict[str, Any]) -> list[Row]:
        """`typed` for the text of a statement that was composed of checked parts."""
        cursor = self._execute(sql, parameters)
        columns = _columns.get(sql)
        if columns is None:
            columns = _columns[sql] = tuple(column[0] for column in cursor.description)
        return read_rows(row_type, columns, cursor.fetchall(), self.unreadable, has_bad_text=self._has_bad_text)

    def ids(self, name: str, /, *parameters: Any, **named: Any) -> list[int]:
        """The values of the only column of the named statement."""
        return [task_id for (task_id,) in self.select(SQL[name], parameters or named)]

    def row(self, name: str, /, *parameters: Any, **named: Any) -> Any:
        """The first row of the named statement, or None."""
        row = self._execute(SQL[name], parameters or named).fetchone()
        return row if row is None or not self._has_bad_text else _plain(row)

    def run(self, name: str, /, *parameters: Any, **named: Any) -> int:
        """Run the named statement. Returns how many rows it changed."""
        return self._execute(SQL[name], parameters or named).rowcount

    def run_each(self, name: str, rows: Sequence[Sequence[Any] | dict[str, Any]]) -> int:
        """Run the named statement once for each set of parameters. Returns how many rows it changed."""
        if rows:
            self._insert_tasks()
            return self._cursor.executemany(SQL[name], rows).rowcount
        return 0

    def select(self, sql: str, parameters: Sequence[Any] | dict[str, Any]) -> list[Any]:
        """All rows of a statement that was composed of checked parts."""
        rows = self._execute(sql, parameters).fetchall()
        return rows if not self._has_bad_text else [_plain(row) for row in rows]

    @property
    def _has_bad_text(self) -> bool:
        return self._connection.text_factory is escaped_text

    def _execute(self, sql: str, parameters: Sequence[Any] | dict[str, Any]) -> sqlite3.Cursor:
        if self._new_queues:
            self._insert_tasks()
        return self._cursor.execute(sql, parameters)


_WITH_CLOCK: Final = frozenset(name for name, text in SQL.items() if ":now" in text)
_WITH_NEW_ID: Final = frozenset(name for name, text in SQL.items() if ":next_id" in text)


class Statements(NamedStatements):
    """Implements `NamedStatements` for a transaction of SQLite: runs the primitives of `stores.sql_rows`."""

    __slots__ = ("transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self.transaction: Final = transaction

    async def rows(self, name: str, /, *parameters: Any) -> list[Any]:
        return self.transaction.rows(name, **self._named(name, parameters))

    async def typed(self, row_type: type[Row], name: str, /, *parameters: Any) -> list[Row]:
        return self.transaction.typed(row_type, name, **self._named(name, parameters))

    async def ids(self, name: str, /, *parameters: Any) -> list[int]:
        return self.transaction.ids(name, **self._named(name, parameters))

    async def value(self, name: str, /, *parameters: Any) -> Any:
        row = self.transaction.row(name, **self._named(name, parameters))
        return None if row is None else row[0]

    async def run(self, name: str, /, *parameters: Any) -> int:
        return self.transaction.run(name, **self._named(name, parameters))

    async def run_all(self, name: str, rows: Sequence[Sequence[Any]], /) -> int:
        return self.transaction.run_each(name, [self._named(name, row) for row in rows])

    def pairs(self, pairs: Collection[tuple[Any, Any]], /) -> tuple[list[Any]]:
        return (list(pairs),)

    def moment(self, moment: int, /) -> int:
        return moment

    def _named(self, name: str, parameters: Sequence[Any]) -> dict[str, Any]:
        named = numbered([as_json(value) if type(value) is list else value for value in parameters])
        if name in _WITH_CLOCK:
            named["now"] = self.transaction.now
        if name in _WITH_NEW_ID:
            named["next_id"] = self.transaction.next_id()
        return named


def numbered(parameters: Sequence[Any]) -> dict[str, Any]:
    """The parameters $1, $2, … by their names."""
    return {str(number): value for number, value in enumerate(parameters, 1)}


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row with each `BadText` as a plain `str`, which equals no text in the database."""
    return tuple(str(value) if isinstance(value, BadText) else value for value in row)


def escaped_text(stored: bytes) -> str:
    """Decode a stored text. Text that is not UTF-8 becomes a `BadText`, because SQLite stores any bytes as text. The
    text factory of connections that have read such a text."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return BadText(stored.decode(errors="backslashreplace"))


def steady_now() -> int:
    """Microseconds of the host's monotonic clock, which all processes of one boot share."""
    return time.monotonic_ns() // 1000


def lease_remaining(leased_until: int, lease: int, boot_id: str) -> int:
    """Microseconds until a lease ends. Zero or negative if it has ended."""
    left = leased_until - steady_now()
    # More than a whole lease is left only after a reboot, which restarts the clock. Not every host has a boot id.
    return left if boot_id == BOOT_ID and left <= lease else OVER


def as_json(values: Iterable[Any]) -> str:
    """The values as a JSON list, for `json_each`."""
    return msgspec.json.encode(list(values)).decode()
