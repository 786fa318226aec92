"""The stores that must pass, each fresh for every test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.postgres_server import distributed_url, store_url
from tests.stores.actions import Worker, check_contents

from synergon.errors import NotConnected
from synergon.stores.base import Store
from synergon.stores.memory import MemoryStore
from synergon.stores.postgres import PostgresStore
from synergon.stores.sqlite import SqliteStore

STORES = ("memory", "sqlite", "postgres", "distributed")


def bound(sql: str, parameters: Sequence[Any]) -> Sequence[Any] | dict[str, Any]:
    """The parameters of a SQLite statement by name, if the statement has the parameters $1, $2, …"""
    numbered = {str(number): parameter for number, parameter in enumerate(parameters, 1)}
    return {**numbered, "now": 10**15} if "$1" in sql else parameters


def make_folder() -> tempfile.TemporaryDirectory[str]:
    """A fresh folder, in memory where the host allows: what a store promises here does not depend on the disk."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="synergon-", dir=memory if os.access(memory, os.W_OK) else None)


def make_store(name: str, folder: str) -> Store:
    """A store that is not open yet and holds nothing; if it keeps its data in a file, that is in `folder`."""
    match name:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(f"sqlite:///{folder}/tasks.db")
        case "postgres":
            return PostgresStore(store_url())
        case _:
            return PostgresStore(distributed_url())


@pytest.fixture(params=STORES)
def unopened(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store that nobody has opened."""
    with make_folder() as folder:
        yield make_store(request.param, folder)


@pytest.fixture
async def store(unopened: Store) -> AsyncIterator[Store]:
    """An open store; whatever a test did to it, its numbers are exact and its lines in order at the end."""
    await unopened.open()
    yield unopened
    try:
        await check_contents(unopened)
    except NotConnected:  # the test has closed it
        pass
    finally:
        await unopened.close()


@pytest.fixture
async def worker(store: Store) -> Worker:
    """A registered node."""
    return await Worker.start(store)


@pytest.fixture
async def passing() -> AsyncIterator[Store]:
    """A store that passes on; its numbers are exact and its lines in order at the end."""
    store = PostgresStore(store_url())
    await store.open()
    yield store
    await check_contents(store)
    await store.close()
