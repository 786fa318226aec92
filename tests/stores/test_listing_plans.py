"""The statements of listings read an index in the order of the page: none of them sorts what it has read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from tests.postgres_server import SCHEMA, administer, server_url, store_url
from tests.stores.conftest import make_folder

from synergon.model.lifecycle import FINAL, State
from synergon.model.task_records import TaskQuery
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres import queries as postgres
from synergon.stores.postgres.profile import STANDARD
from synergon.stores.sql_rows.task_listing import parts_of, statement_of
from synergon.stores.sqlite import queries as sqlite
from synergon.stores.sqlite import schema
from synergon.stores.sqlite.transaction import SQL, numbered

ROWS: Final = 100_000
NOW: Final = 1_700_000_000_000_000
"""The moment of all rows: ties must not be sorted, either."""
FILTERS: Final[list[dict[str, Any]]] = [
    {},
    {"kinds": ("a", "b")},
    {"kinds": ("a",), "queue": "default", "meta": {"customer": 42}},
    {"enqueued_since": NOW, "started_until": NOW + 1},
    {"search": "ada"},
]
ORDERS: Final[list[tuple[dict[str, Any], str | None]]] = [
    ({"sort": "id"}, None),
    ({"sort": "id"}, "500"),
    ({"sort": "id", "states": frozenset({State.SCHEDULED})}, None),
    ({"sort": "due"}, None),
    ({"sort": "due"}, f"{NOW}.500"),
    ({"sort": "end"}, None),
    ({"sort": "end"}, f"{NOW}.500"),
    ({"sort": "end", "states": FINAL - {State.SUCCEEDED}}, None),
]
QUERIES: Final = [
    TaskQuery(**filters, **order, ascending=ascending, after=after)
    for filters in FILTERS
    for order, after in ORDERS
    for ascending in (False, True)
]
LIVE: Final = "id, kind, queue, state, priority, run_at, payload, enqueued_at"
ENDED: Final = (
    "id, kind, queue, state, reason, priority, run_at, payload, attempts, crashes, owner_deaths, server_failures, "
    "claim_no, is_command, cancel_requested, overdue, enqueued_at, finished_at, requirements, fair_step, "
    "has_dependencies, has_dependents"
)


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    """A hundred thousand scheduled tasks, and as many that have ended."""
    numbers = "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :rows)"
    with make_folder() as folder:
        path = Path(folder) / "tasks.db"
        schema.prepare(path)
        with closing(sqlite3.connect(path)) as connection:
            values = {"rows": ROWS, "now": NOW}
            connection.execute(
                f"{numbers} INSERT INTO synergon_task ({LIVE}) SELECT 2 * n, 'a', 'default', 'scheduled', 0, :now, "
                "x'7b7d', :now FROM number",
                values,
            )
            connection.execute(
                f"{numbers} INSERT INTO synergon_history ({ENDED}) SELECT 2 * n + 1, 'a', 'default', "
                "iif(n % 9, 'succeeded', 'failed'), iif(n % 9, NULL, 'error'), 0, :now, x'7b7d', 1, 0, 0, 0, "
                "1, 0, 0, 0, :now, :now, '', 0, 0, 0 FROM number",
                values,
            )
            connection.commit()
            yield connection


@pytest.mark.parametrize("statistics", [True, False])
def test_no_statement_of_sqlite_sorts(database: sqlite3.Connection, statistics: bool) -> None:
    database.execute("ANALYZE" if statistics else "DROP TABLE IF EXISTS sqlite_stat1")
    for query in QUERIES:
        for part in parts_of(SQL, query):
            for select in (part.records, part.positions.replace("{key}", part.key)):
                sql, *values = statement_of(sqlite.DIALECT, select, query, part)
                steps = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", numbered(values))]
                assert not [step for step in steps if "TEMP B-TREE" in step], (query, steps)


def test_sqlite_finds_children_by_their_parent(database: sqlite3.Connection) -> None:
    for states in (None, frozenset({State.FAILED, State.READY})):
        query = TaskQuery(parent_id=7, states=states)
        for part in parts_of(SQL, query):
            sql, *values = statement_of(sqlite.DIALECT, part.records, query, part)
            steps = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", numbered(values))]
            assert any("_parent (parent_id=?" in step for step in steps), steps
            assert not [step for step in steps if "TEMP B-TREE" in step], steps


@pytest.fixture
async def connection() -> AsyncIterator[asyncpg.Connection[Any]]:
    """To a database with a hundred thousand scheduled tasks, and as many that have ended."""
    store = PostgresStore(store_url())
    await store.open()
    await store.close()
    moment = f"to_timestamp({NOW // 1_000_000})"
    numbers = f"generate_series(1, {ROWS}) AS number"
    administer(
        f"INSERT INTO {SCHEMA}.task ({LIVE}) SELECT 2 * number, 'a', 'default', 'scheduled', 0, {moment}, '{{}}', "
        f"{moment} FROM {numbers}"
    )
    administer(
        f"INSERT INTO {SCHEMA}.history ({ENDED}) SELECT 2 * number + 1, 'a', 'default', "
        "CASE WHEN number % 9 > 0 THEN 'succeeded' ELSE 'failed' END, CASE WHEN number % 9 = 0 THEN 'error' END, 0, "
        f"{moment}, '{{}}', 1, 0, 0, 0, 1, false, false, false, {moment}, {moment}, '', 0, false, false FROM {numbers}"
    )
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url(), server_settings=dict(STANDARD.settings))
    yield connection
    await connection.close()
    administer(f"TRUNCATE {SCHEMA}.task, {SCHEMA}.history")
    administer(f"ANALYZE {SCHEMA}.task, {SCHEMA}.history")


async def test_no_statement_of_postgresql_sorts(connection: asyncpg.Connection[Any]) -> None:
    administer(f"ANALYZE {SCHEMA}.task, {SCHEMA}.history")
    sql = STANDARD.statements(SCHEMA)
    for query in QUERIES:
        for part in parts_of(sql, query):
            statement, *values = statement_of(postgres.DIALECT, part.records, query, part)
            text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement}", *values)
            assert "Sort" not in set(_steps(json.loads(text)[0]["Plan"])), (query, text)


def _steps(plan: dict[str, Any]) -> Iterator[str]:
    yield plan["Node Type"]
    for inner in plan.get("Plans", []):
        yield from _steps(inner)
