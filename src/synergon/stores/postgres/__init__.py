"""The shared store: one PostgreSQL database, many nodes."""

from synergon.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
