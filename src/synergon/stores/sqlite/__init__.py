"""The SQLite store: one file, shared by the processes of one host."""

from synergon.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
