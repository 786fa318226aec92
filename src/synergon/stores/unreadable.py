"""Unreadable rows: what a store found in its tables and could not read.

A row harms only itself: `stores.typed_rows` replaces a value that cannot be read, or leaves the row out, and notes it
here. Each value is named in the log once, and `synergon doctor` lists all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from synergon.model.printable import printable
from synergon.model.record import Record

MOST: Final = 1000
"""How many unreadable values are remembered and logged; one message says that there are more."""


class UnreadableValue(Record, frozen=True, kw_only=True):
    """A value in a table that this release cannot read."""

    row: str
    """The noun for the row, and its key: `task 7`."""
    column: str
    problem: str

    def __str__(self) -> str:
        return f"the column {self.column} of {self.row} cannot be read: {self.problem}"


class BadText(str):
    """Text of a database that is not UTF-8, with its invalid bytes escaped."""

    __slots__ = ()


class UnreadableRows:
    """The unreadable values that a store has met. Safe to use from several threads."""

    def __init__(self) -> None:
        self.logger: logging.Logger | logging.LoggerAdapter[logging.Logger] = logging.getLogger("synergon")
        self._found: dict[tuple[str, str], UnreadableValue] = {}

    def __iter__(self) -> Iterator[UnreadableValue]:
        return iter(list(self._found.values()))

    def note(self, row: str, column: str, problem: str) -> None:
        """Remember and log an unreadable value, unless that was done before."""
        if (row, column) in self._found or len(self._found) > MOST:
            return
        if len(self._found) == MOST:
            self._found["more rows", "any"] = UnreadableValue(row="more rows", column="any", problem="too many to list")
            self.logger.warning("more than %d values in the database cannot be read; no more are named", MOST)
            return
        value = UnreadableValue(row=printable(row), column=column, problem=printable(problem)[:200])
        self._found[row, column] = value
        self.logger.warning("%s; `synergon doctor` lists such rows", value)
