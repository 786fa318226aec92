"""A PostgreSQL of its own for each turn, from a wheel, with the settings that it comes with: every commit is synced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.embedded_server import EmbeddedServer

SETTINGS: Final = ("fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers", "max_wal_size")
"""What a reader wants to know. The first three must be on."""

DURABLE: Final = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """The URL of a server with nothing in it; it and its data are gone at the end."""
    server = EmbeddedServer(folder / "postgres")
    try:
        yield server.url
    finally:
        server.close()
