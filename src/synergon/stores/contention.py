"""What transactions do to each other."""

from __future__ import annotations

from synergon.errors import StoreUnavailable


class Contention(StoreUnavailable):
    """Two transactions were in each other's way, and the database has undone this one."""


class RowHeld(StoreUnavailable):
    """Somebody holds a lock on a row, for longer than the statement was ready to wait."""
