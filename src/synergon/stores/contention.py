"""Errors after which a transaction may be repeated."""

from __future__ import annotations

from synergon.errors import StoreUnavailable


class Contention(StoreUnavailable):
    """The transaction was in conflict with another one, and the database has rolled it back."""


class RolledBack(StoreUnavailable):
    """The transaction of a task function could not be opened or written, for example because all connections are in
    use, or the disk is full. Nothing of it remains, and the task is not charged."""


class RowHeld(StoreUnavailable):
    """Another transaction holds a row lock for longer than the statement waits."""
