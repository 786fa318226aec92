"""Errors after which a transaction may be repeated."""

from __future__ import annotations

from synergon.errors import StoreUnavailable


class Contention(StoreUnavailable):
    """The transaction was in conflict with another one, and the database has rolled it back."""


class RolledBack(StoreUnavailable):
    """The database could not write, for instance because its disk is full, and nothing of the transaction remains."""


class RowHeld(StoreUnavailable):
    """Another transaction holds a row lock for longer than the statement waits."""
