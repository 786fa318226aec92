"""The stores that must pass, each fresh for every test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.stores.actions import Worker, check_counts

from synergon.errors import NotConnected
from synergon.stores.base import Store
from synergon.stores.memory import MemoryStore
from synergon.stores.sqlite import SqliteStore

STORES = ("memory", "sqlite", "postgres")


def make_store(name: str, folder: Path) -> Store:
    """A store that is not open yet; its data, if it keeps any, is in `folder`."""
    if name == "postgres":
        from synergon.stores.postgres import PostgresStore
        import zlib, os
        schema = f"t{zlib.crc32(str(folder).encode()):08x}{os.getpid()}"
        return PostgresStore(f"postgresql://postgres:@/postgres?host=/tmp/pgdata&schema={schema}")
    return MemoryStore() if name == "memory" else SqliteStore(f"sqlite:///{folder}/tasks.db")


@pytest.fixture(params=STORES)
def unopened(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store that nobody has opened."""
    return make_store(request.param, tmp_path)


@pytest.fixture
async def store(unopened: Store) -> AsyncIterator[Store]:
    """An open store; whatever a test did to it, its numbers are exact at the end."""
    await unopened.open()
    yield unopened
    try:
        await check_counts(unopened)
    except NotConnected:  # the test has closed it
        pass
    finally:
        await unopened.close()


@pytest.fixture
async def worker(store: Store) -> Worker:
    """A registered node."""
    return await Worker.start(store)
