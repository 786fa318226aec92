"""`?slow=` in the URL of a store, and the name of its connections."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.postgres_server import store_url
from tests.stores.actions import add

from synergon.stores.base import Store
from synergon.stores.postgres import PostgresStore
from synergon.stores.sqlite import SqliteStore


def with_parameter(url: str, parameter: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{parameter}"


def make_store(kind: str, folder: Path, slow: str) -> Store:
    if kind == "sqlite":
        return SqliteStore(f"sqlite:///{folder}/tasks.db?slow={slow}")
    return PostgresStore(with_parameter(store_url(), f"slow={slow}"))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_slow_statements_are_logged_by_name_and_without_values(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(kind, tmp_path, "1us")
    store.introduce("synergon test", logging.getLogger("shop"))
    await store.open()
    await add(store, payload=b'{"card": "4111"}')
    await store.nodes()
    await store.close()
    said = [record.getMessage() for record in caplog.records if record.name == "shop"]
    assert any(line.startswith("slow statement: insert_bare took 0.") for line in said), said
    assert any(line.startswith("slow statement: nodes took 0.") for line in said), said
    assert "4111" not in caplog.text


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_quick_statements_are_not_logged(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store(kind, tmp_path, "1h")
    await store.open()
    await add(store)
    await store.close()
    assert "slow statement" not in caplog.text


@pytest.mark.parametrize(("parameter", "name"), [("pool=2", "synergon left"), ("application_name=billing", "billing")])
async def test_the_server_shows_the_name_of_the_client_unless_the_url_has_one(parameter: str, name: str) -> None:
    store = PostgresStore(with_parameter(store_url(), parameter))
    store.introduce("synergon left", logging.getLogger("shop"))
    await store.open()
    try:
        async with store._connections.use() as connection:
            assert await connection.fetchval("SHOW application_name") == name
        async with store._task_transactions.use() as connection:
            assert await connection.fetchval("SHOW application_name") == name
    finally:
        await store.close()
