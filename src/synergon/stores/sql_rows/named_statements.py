"""The port between the primitives of this package and the transactions of SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from synergon.stores.typed_rows import Row


class NamedStatements(Protocol):
    """Runs the named statements of a store in one transaction.

    A statement has the parameters $1, $2, … A list is an array in PostgreSQL and JSON in SQLite. Statements of
    PostgreSQL read the clock by themselves; in SQLite they have the further parameters `:now`, and `:next_id` for a
    new id.
    """

    __slots__ = ()

    async def rows(self, name: str, /, *parameters: Any) -> list[Any]:
        """All rows of the named statement."""

    async def typed(self, row_type: type[Row], name: str, /, *parameters: Any) -> list[Row]:
        """All rows of the named statement as structs, whose fields are the columns of the statement."""

    async def ids(self, name: str, /, *parameters: Any) -> list[int]:
        """The values of the only column of the named statement."""

    async def value(self, name: str, /, *parameters: Any) -> Any:
        """The first value of the first row of the named statement. None if there is no row."""

    async def run(self, name: str, /, *parameters: Any) -> int:
        """Run the named statement. Returns how many rows it changed."""

    async def run_all(self, name: str, rows: Sequence[Sequence[Any]], /) -> int:
        """Write these rows. SQLite runs the named statement once for each row; in PostgreSQL it has one array for each
        column. Returns how many rows it changed."""

    def pairs(self, pairs: Collection[tuple[Any, Any]], /) -> tuple[list[Any], ...]:
        """Pairs as parameters: two arrays in PostgreSQL, one list of pairs in SQLite."""

    def moment(self, moment: int, /) -> Any:
        """A moment as a parameter for a column that has the database's type for moments."""


class SqlRows:
    """The base class of the primitives: holds the statements."""

    __slots__ = ("_sql",)

    def __init__(self, sql: NamedStatements) -> None:
        self._sql = sql
