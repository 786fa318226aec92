"""The embedded store: one SQLite file, shared by the processes of one host."""

from synergon.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
