"""Coming to a PostgreSQL: what a URL says, who may come in, and what a role needs to be granted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.postgres_server import (
    SCHEMA,
    administer,
    folder,
    server_url,
    url_with,
)
from tests.stores.actions import OUTCOMES, Worker, add, listed
from tests.stores.one_postgres import grants_of, one_store, ours_only, role, url_of_role  # noqa: F401

from synergon import Engine
from synergon.errors import (
    ConfigurationError,
    DataRejected,
    OptionError,
    SchemaError,
    StoreError,
    StoreUnavailable,
)
from synergon.model.lifecycle import State
from synergon.model.tasks import NewTask
from synergon.stores import open_store
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.address import Address

SUCCEEDED = OUTCOMES["succeeded"]


# ---------------------------------------------------------------- URLs


def test_our_parameters_are_taken_from_the_url_and_the_rest_goes_to_the_driver() -> None:
    address = Address.parse("postgresql://me:secret@host:1/db?schema=jobs&pool=3&sslmode=require&timeout=2.5")
    assert address.hosts.dsns == ("postgresql://me:secret@host:1/db?sslmode=require",)
    assert (address.schema, address.pool, address.call_seconds, address.channel) == ("jobs", 3, 2.5, "jobs_wake")
    assert address.listens
    assert address.location == "postgresql://me@host:1/db"


@pytest.mark.parametrize(
    ("url", "dsns"),
    [
        ("postgresql://me:x@a,b:2/db?timeout=1", ["postgresql://me:x@a/db", "postgresql://me:x@b:2/db"]),
        ("postgresql://a,b/db?port=1,2", ["postgresql://a/db?port=1", "postgresql://b/db?port=2"]),
        ("postgresql://a,b/db?port=1", ["postgresql://a/db?port=1", "postgresql://b/db?port=1"]),
        ("postgresql://[::1]:1,[::2]/db", ["postgresql://[::1]:1/db", "postgresql://[::2]/db"]),
        ("postgresql:///db?host=/a,/b", ["postgresql:/db?host=%2Fa", "postgresql:/db?host=%2Fb"]),
        ("postgresql:///db", ["postgresql:/db"]),
        (
            "postgresql://a,b/db?target_session_attrs=prefer-standby",
            ["postgresql://a,b/db?target_session_attrs=prefer-standby"],
        ),
    ],
)
def test_each_host_of_a_url_has_a_url_of_its_own(url: str, dsns: list[str]) -> None:
    assert list(Address.parse(url).hosts.dsns) == dsns


@pytest.mark.parametrize(
    "parameters",
    [
        *("schema=Jobs", "schema=a;b", "schema=pg_jobs", f"schema={'a' * 49}"),
        *("pool=0", "pool=x", "timeout=0", "timeout=x", "pgbouncer=maybe", "listen=2"),
    ],
)
def test_a_bad_parameter_is_refused_where_it_is_written(parameters: str) -> None:
    name = parameters.partition("=")[0]
    with pytest.raises(ConfigurationError, match=name):
        open_store(f"postgresql://host/db?{parameters}")


# ---------------------------------------------------------------- connecting


@ours_only
async def test_a_wrong_password_is_no_outage() -> None:
    with role("careless"):
        rules = folder() / "pg_hba.conf"
        before = rules.read_text()
        rules.write_text("local all careless scram-sha-256\n" + before)
        administer("SELECT pg_reload_conf()")
        try:
            store = PostgresStore(url_of_role("careless", "wrong"))
            with pytest.raises(StoreError, match="check the user and password") as caught:
                await _open_until_refused(store)
            assert "wrong" not in str(caught.value)
            assert not isinstance(caught.value, StoreUnavailable)
        finally:
            rules.write_text(before)
            administer("SELECT pg_reload_conf()")


async def _open_until_refused(store: PostgresStore) -> None:
    """The server reads its rules a moment after it was told to; until then anybody may come in."""
    for _ in range(500):
        try:
            await store.open()
            await store.close()
        except SchemaError:
            await asyncio.sleep(0.01)


@ours_only
async def test_a_missing_database_is_no_outage() -> None:
    store = PostgresStore(server_url().replace("/postgres?", "/nowhere?"))
    with pytest.raises(StoreError, match="CREATE DATABASE") as caught:
        await store.open()
    assert not isinstance(caught.value, StoreUnavailable)


async def test_a_server_that_is_not_there_may_come_back(tmp_path: Path) -> None:
    for url in (f"postgresql:///db?host={tmp_path}", "postgresql://localhost:1/db"):
        with pytest.raises(StoreUnavailable, match="not available"):
            await PostgresStore(url).open()


def test_a_misspelt_parameter_is_refused_where_it_is_written() -> None:
    with pytest.raises(OptionError, match=r"no parameter 'pol'; there are schema, pool, .*sslmode.*application_name"):
        Engine("postgresql://host/db?sslmode=require&pol=3")


async def test_settings_of_the_server_may_be_in_the_url(store: PostgresStore) -> None:
    for setting in ("application_name=shop&TimeZone=UTC", "options=-c%20application_name%3Dshop"):
        named = PostgresStore(f"{store.url}&{setting}")
        await named.open()
        await named.nodes()
        assert administer("SELECT 1 FROM pg_stat_activity WHERE application_name = 'shop'")
        await named.close()


# ---------------------------------------------------------------- the schema


async def test_a_newer_schema_is_refused(store: PostgresStore) -> None:
    administer(f"UPDATE {SCHEMA}.meta SET value = '999' WHERE name = 'schema_version'")
    try:
        with pytest.raises(SchemaError, match="upgrade synergon"):
            await PostgresStore(store.url).open()
        versions = await store.schema_versions()
        assert (versions.found, versions.wanted) == (999, 1)
    finally:
        administer(f"UPDATE {SCHEMA}.meta SET value = '1' WHERE name = 'schema_version'")


@ours_only
async def test_a_role_that_may_not_create_is_told_what_to_run() -> None:
    with role("guest"):
        store = PostgresStore(url_of_role("guest", schema="not_there"))
        with pytest.raises(SchemaError, match="synergon migrate"):
            await store.open()
        assert (await store.schema_versions()).found is None


@pytest.mark.parametrize("isolation", ["read%5C%20committed", "serializable"])
async def test_many_nodes_may_create_the_schema_at_once(isolation: str) -> None:
    administer("DROP SCHEMA IF EXISTS crowded CASCADE")
    options = f"-c%20default_transaction_isolation%3D{isolation}"
    stores = [PostgresStore(url_with(schema="crowded", pool=1, options=options)) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(add(store) for store in stores))
    assert len(await listed(stores[0])) == 8
    for store in stores:
        await store.close()
    administer("DROP SCHEMA crowded CASCADE")


async def test_the_printed_sql_makes_what_an_engine_needs() -> None:
    administer("DROP SCHEMA IF EXISTS by_hand CASCADE")
    store = PostgresStore(url_with(schema="by_hand"))
    administer(store.schema_sql())
    assert (await store.schema_versions()).found == (await store.schema_versions()).wanted
    await store.open()
    await add(store)
    await store.close()
    administer("DROP SCHEMA by_hand CASCADE")


# ---------------------------------------------------------------- roles


@ours_only
async def test_a_right_that_was_taken_away_is_no_fault_of_the_outcome(store: PostgresStore) -> None:
    with role("worker_role", *grants_of("worker")):
        least = PostgresStore(url_of_role("worker_role", schema=SCHEMA))
        await least.open()
        worker = await Worker.start(least)
        await add(least)
        (claim,) = await worker.claim()
        administer(f"REVOKE INSERT ON {SCHEMA}.history FROM worker_role")
        with pytest.raises(StoreError, match="GRANT") as caught:
            await worker.finish(claim, SUCCEEDED)
        assert not isinstance(caught.value, DataRejected)
        administer(f"GRANT INSERT ON {SCHEMA}.history TO worker_role")
        assert (await worker.finish(claim, SUCCEEDED)).state is State.SUCCEEDED
        await least.close()


async def test_data_that_the_database_will_never_take_is_told_apart(store: PostgresStore) -> None:
    with pytest.raises(DataRejected, match="rejected a statement"):
        await store.insert([NewTask(kind="a\0b")])
    with pytest.raises(DataRejected, match="rejected a statement"):
        await store.insert([NewTask(kind="a", priority=2**70)])
