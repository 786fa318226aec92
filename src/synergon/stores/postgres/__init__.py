"""The PostgreSQL store: one database, shared by the nodes of many hosts."""

from synergon.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
