"""Functions and operators that others create where everybody looks for them are never called with our rights.

Each trap fits the types of an argument better than the server's own function, so it is chosen wherever the path of the
role decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.pgbouncer_server import pooled_url
from tests.postgres_server import SCHEMA, administer, distributed_url, server_url, store_url

from synergon import Context, Engine, Handle, KeyConflict, OptionError
from synergon.stores.postgres import PostgresStore

TRAPS = {
    "unnest(text[])": ("SETOF text", "SELECT pg_catalog.unnest($1)"),
    "unnest(bigint[])": ("SETOF bigint", "SELECT pg_catalog.unnest($1)"),
    "cardinality(bigint[])": ("integer", "SELECT pg_catalog.cardinality($1)"),
    "width_bucket(bigint, bigint[])": ("integer", "SELECT pg_catalog.width_bucket($1, $2)"),
    "json_build_array(bigint, bigint)": ("json", "SELECT pg_catalog.json_build_array($1, $2)"),
    "trap_times(bigint, interval)": ("interval", "SELECT $1::float8 OPERATOR(pg_catalog.*) $2"),
    "trap_contains(text[], text[])": ("boolean", "SELECT $1 OPERATOR(pg_catalog.@>) $2"),
}
OPERATORS = {"*": ("trap_times", "bigint", "interval"), "@>": ("trap_contains", "text[]", "text[]")}


@pytest.fixture
def traps() -> Iterator[None]:
    """Functions that count their calls, also in transactions that are rolled back, and then do what is asked."""
    administer("CREATE SEQUENCE public.sprung")
    for signature, (returned, body) in TRAPS.items():
        administer(
            f"CREATE FUNCTION public.{signature} RETURNS {returned} LANGUAGE sql VOLATILE "
            f"AS $$ SELECT pg_catalog.nextval('public.sprung'); {body} $$"
        )
    for name, (function, left, right) in OPERATORS.items():
        administer(
            f"CREATE OPERATOR public.{name} (FUNCTION = public.{function}, LEFTARG = {left}, RIGHTARG = {right})"
        )
    yield
    for name, (_, left, right) in OPERATORS.items():
        administer(f"DROP OPERATOR public.{name} ({left}, {right})")
    for signature in TRAPS:
        administer(f"DROP FUNCTION public.{signature}")
    administer("DROP SEQUENCE public.sprung")


def sprung() -> bool:
    """Whether any of them was called."""
    (found,) = administer("SELECT is_called FROM public.sprung")
    return bool(found[0])


@pytest.fixture(params=["standard", "distributed", "as if pooled", "pooled"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each way to a database of the family."""
    match request.param:
        case "standard":
            yield store_url()
        case "distributed":
            yield distributed_url()
        case "as if pooled":
            yield store_url(pgbouncer="true")
        case _:
            with pooled_url() as url:
                yield url


def test_the_traps_work(traps: None) -> None:
    administer("SELECT unnest(ARRAY['a'])")
    assert sprung()


@pytest.mark.usefixtures("traps")
async def test_a_worker_and_a_producer_call_no_function_of_others(url: str) -> None:
    engine = Engine(url, sweep=0.1)

    @engine.task
    async def plain(number: int) -> int:
        return number

    @engine.task
    async def parent(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            await plain.enqueue(-1)
            return str(await connection.fetchval("SHOW search_path"))

    @engine.task(max_running_global=2)
    async def limited() -> None: ...

    async with engine.worker():
        calls = [limited.with_options(tags=["a"]).call() for _ in range(3)]
        handles: list[Handle[Any]] = [*await engine.enqueue(calls)]
        handles += await plain.enqueue_many([(number,) for number in range(20)])
        handles.append(await plain.with_options(delay=0.05, expires_in=60).enqueue(30))
        for handle in handles:
            await handle.result(timeout=30)
        path = await (await parent.enqueue()).result(timeout=30)
        assert "public" in path, "the task function's own statements find what its role finds"
        assert len((await engine.tasks(tag="a")).tasks) == 3
        await engine.queues()
        await engine.nodes()
        await handles[0].explain()
    assert not sprung()


@pytest.mark.usefixtures("traps")
async def test_a_callers_connection_calls_none_and_keeps_its_path(url: str) -> None:
    engine = Engine(url)

    @engine.task
    async def plain(number: int) -> int:
        return number

    async with engine:
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(server_url())
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL search_path = public, pg_catalog")
                keyed = plain.with_options(key="one", on_conflict="raise")
                await engine.enqueue([keyed.call(1), plain.with_options(delay=1).call(2)], conn=connection)
                with pytest.raises(KeyConflict):
                    await engine.enqueue([keyed.call(1)], conn=connection)
                assert await connection.fetchval("SHOW search_path") == "public, pg_catalog"
        finally:
            await connection.close()
        async with await psycopg.AsyncConnection.connect(server_url()) as other:
            before = await (await other.execute("SHOW search_path")).fetchone()
            await engine.enqueue([plain.call(3)], conn=other)
            assert await (await other.execute("SHOW search_path")).fetchone() == before
        assert len((await engine.tasks(kind="plain")).tasks) == 3
    assert not sprung()


@pytest.mark.usefixtures("traps")
async def test_the_tables_are_made_without_them(traps: None) -> None:
    schema = f"{SCHEMA}_path"
    store = PostgresStore(store_url().replace(f"schema={SCHEMA}", f"schema={schema}"))
    try:
        await store.open()
        await store.close()
        administer(f"DROP SCHEMA {schema} CASCADE")
        administer(store.schema_sql())
    finally:
        administer(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    assert not sprung()


@pytest.mark.parametrize("part", ["search_path=public", "SEARCH_PATH=public", "options=-c%20search_path%3Dpublic"])
def test_a_url_with_a_search_path_is_refused(part: str) -> None:
    with pytest.raises(OptionError, match="has no search_path"):
        PostgresStore(f"postgresql://host/db?{part}")
