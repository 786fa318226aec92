"""The stores: one port (`base`), one conformance suite, and an implementation per database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergon.errors import ConfigurationError, NotAvailable
from synergon.options.store_urls import check_url

if TYPE_CHECKING:
    from synergon.stores.base import Store


def open_store(url: str) -> Store:
    """Create the store that the URL names. It is not connected yet."""
    scheme = check_url(url).partition("://")[0]
    match scheme:
        case "sqlite":
            from synergon.stores.sqlite import SqliteStore

            return SqliteStore(url)
        case "memory":
            from synergon.stores.memory import MemoryStore

            return MemoryStore(url)
        case "postgresql" | "postgres":
            try:
                from synergon.stores.postgres import PostgresStore
            except ModuleNotFoundError as error:
                raise NotAvailable(
                    "postgresql:// needs the driver asyncpg; install it with: pip install 'synergon[postgres]'"
                ) from error

            return PostgresStore(url)
        case _:
            raise ConfigurationError(f"no store is called {scheme!r}; use sqlite:///, postgresql:// or memory://")
