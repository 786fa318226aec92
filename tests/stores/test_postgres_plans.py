"""The statements that run all the time find their rows by index, whatever the backlog and the statistics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import asyncpg
import pytest
from tests.postgres_server import SCHEMA, administer, server_url, store_url

from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.connection import PLANNING
from synergon.stores.sql import statements

KINDS: Final = 50
ROWS: Final = 100_000
SQL: Final = statements("postgres", SCHEMA)
PLANS: Final = ("force_generic_plan", "force_custom_plan")
SIZES: Final = (1, 100, 1000)
BACKLOGS: Final = ("nothing", "many kinds", "many kinds, not analyzed", "one kind", "many kinds, but only later")

TYPES: Final = {
    "claim": "text, text[], integer[], integer, text[]",
    "lock_running": "bigint[]",
    "end": "bigint[], text[], text, text, boolean",
}


def array(*values: object) -> str:
    return f"ARRAY[{', '.join(map(str, values))}]"


def fill(kinds: int) -> None:
    """A backlog, of which a few hundred tasks are running."""
    administer(
        f"INSERT INTO {SCHEMA}.task (kind, queue, state, priority, run_at, payload, enqueued_at, node_id, claim_no) "
        f"SELECT 'kind-' || number % {kinds}, 'queue-' || number % 4, CASE WHEN number < 500 THEN 'running' ELSE "
        "'ready' END, number % 3, now(), '{}', now(), CASE WHEN number < 500 THEN 'node' END, 1 "
        f"FROM generate_series(0, {ROWS} - 1) AS number"
    )


def analyze() -> None:
    """Let the planner look."""
    administer(f"ANALYZE {SCHEMA}.task")


class Planner:
    """Explains statements as the store runs them: prepared, on a connection with its settings."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection

    async def prepare(self) -> None:
        """Prepare everything, and make the plans that are kept."""
        for name, types in TYPES.items():
            await self._connection.execute(f"PREPARE its_{name} ({types}) AS {SQL[name]}")
        await self.claim(PLANS[0])
        await self.lock_running(PLANS[0], 1)
        await self.end(PLANS[0], 1)

    async def claim(self, mode: str) -> set[str]:
        """How a claim of many kinds finds its rows."""
        kinds = array(*(f"'kind-{number}'" for number in range(KINDS)))
        return await self._scans(mode, "claim", "'node'", kinds, array(*[100] * KINDS), "500", "NULL")

    async def lock_running(self, mode: str, size: int) -> set[str]:
        """How tasks to be settled are found."""
        return await self._scans(mode, "lock_running", array(*range(1, size + 1)))

    async def end(self, mode: str, size: int) -> set[str]:
        """How tasks that end are found."""
        ids, results = array(*range(1, size + 1)), array(*["NULL"] * size)
        return await self._scans(mode, "end", ids, results, "'succeeded'", "NULL", "true")

    async def _scans(self, mode: str, name: str, *arguments: str) -> set[str]:
        await self._connection.execute(f"SET plan_cache_mode = {mode}")
        text = await self._connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE its_{name} ({', '.join(arguments)})")
        return set(_scans(json.loads(text)[0]["Plan"]))


def _scans(plan: dict[str, Any]) -> Iterator[str]:
    """Which indexes of the live tasks are read, `everything` where none is, and `a sort` of what was read."""
    kind, index = plan["Node Type"], str(plan.get("Index Name", ""))
    if index.startswith("task_"):
        yield index
    if kind == "Seq Scan" and plan["Relation Name"] == "task":
        yield "everything"
    for inner in plan.get("Plans", []):
        if kind == "Sort" and inner.get("Relation Name") == "task" and inner["Node Type"] != "Bitmap Heap Scan":
            yield "a sort"
        yield from _scans(inner)


@pytest.fixture(params=BACKLOGS)
async def planner(request: pytest.FixtureRequest) -> AsyncIterator[Planner]:
    """Over each backlog, and whatever the planner knows of it."""
    backlog: str = request.param
    store = PostgresStore(store_url())
    await store.open()
    await store.close()
    administer(f"INSERT INTO {SCHEMA}.queue SELECT 'queue-' || number FROM generate_series(0, 3) AS number")
    analyze()
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url(), server_settings=PLANNING)
    planner = Planner(connection)
    if "later" in backlog:
        await planner.prepare()
    if "kind" in backlog:
        fill(kinds=1 if backlog == "one kind" else KINDS)
    if "not analyzed" not in backlog and "later" not in backlog:
        analyze()
    if "later" not in backlog:
        await planner.prepare()
    yield planner
    await connection.close()
    administer(f"TRUNCATE {SCHEMA}.task")
    analyze()


async def test_no_statement_reads_more_than_it_takes(planner: Planner) -> None:
    for mode in PLANS:
        assert await planner.claim(mode) == {"task_ready", "task_pkey"}, mode
        for size in SIZES:
            assert await planner.lock_running(mode, size) - {"a sort"} == {"task_pkey"}, (mode, size)
            assert await planner.end(mode, size) == {"task_pkey"}, (mode, size)
