"""The stores: one port (`base`), one conformance suite, and an implementation per database."""

from __future__ import annotations

from synergon.errors import ConfigurationError, NotAvailable
from synergon.stores.base import Store


def open_store(url: str) -> Store:
    """The store that the URL names, not connected yet."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigurationError(f"a store's URL looks like sqlite:///app.db or memory://, got {url!r}")
    match scheme:
        case "sqlite":
            from synergon.stores.sqlite import SqliteStore

            return SqliteStore(url)
        case "memory":
            from synergon.stores.memory import MemoryStore

            return MemoryStore(url)
        case "postgresql" | "postgres":
            raise NotAvailable("postgresql:// is not in this release of synergon; use sqlite:/// or memory://")
        case _:
            raise ConfigurationError(f"no store is called {scheme!r}; use sqlite:/// or memory://, got {url!r}")
