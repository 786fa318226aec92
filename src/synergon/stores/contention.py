"""Errors for conflicts between transactions."""

from __future__ import annotations

from synergon.errors import StoreUnavailable


class Contention(StoreUnavailable):
    """The transaction was in conflict with another one, and the database has rolled it back."""


class RowHeld(StoreUnavailable):
    """Another transaction holds a row lock for longer than the statement waits."""
