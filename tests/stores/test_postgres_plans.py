"""The statements that run all the time find their rows by index, whatever the backlog and the statistics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.postgres_server import SCHEMA, administer, server_url, store_url

from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.connection import PLANNING
from synergon.stores.sql import statements

KINDS = 50
ROWS = 100_000
SQL = statements("postgres", SCHEMA)
PLANS = ("force_generic_plan", "force_custom_plan")


BACKLOGS = ("nothing", "many kinds", "many kinds, not analyzed", "one kind", "filled after it was prepared")


@pytest.fixture(params=BACKLOGS)
async def planner(request: pytest.FixtureRequest) -> AsyncIterator[Planner]:
    """Plans with the store's own settings, over what is in the table and what the planner knows of it."""
    backlog: str = request.param
    store = PostgresStore(store_url())
    await store.open()
    await store.close()
    administer(f"INSERT INTO {SCHEMA}.queue SELECT 'queue-' || number FROM generate_series(0, 3) AS number")
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url(), server_settings=PLANNING)
    analyze()
    planner = Planner(connection, fill_late=backlog == "filled after it was prepared")
    if "kind" in backlog:
        fill(kinds=1 if backlog == "one kind" else KINDS)
    if "not analyzed" not in backlog:
        analyze()
    yield planner
    await connection.close()
    administer(f"TRUNCATE {SCHEMA}.task")
    analyze()


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
    """Explains statements of the store as they run once they are prepared."""

    def __init__(self, connection: asyncpg.Connection[Any], *, fill_late: bool) -> None:
        self._connection = connection
        self._fill_late = fill_late

    async def plan(self, mode: str, name: str, types: str, *arguments: str) -> list[dict[str, Any]]:
        """The nodes of the plan."""
        execute = f"EXPLAIN (FORMAT JSON) EXECUTE it ({', '.join(arguments)})"
        await self._connection.execute(f"SET plan_cache_mode = {mode}")
        await self._connection.execute(f"PREPARE it ({types}) AS {SQL[name]}")
        if self._fill_late:
            await self._connection.fetchval(execute)
            fill(KINDS)
        text = await self._connection.fetchval(execute)
        await self._connection.execute("DEALLOCATE it")
        if self._fill_late:
            administer(f"TRUNCATE {SCHEMA}.task RESTART IDENTITY")
        return list(_nodes(json.loads(text)[0]["Plan"]))


def _nodes(plan: dict[str, Any]) -> Any:
    yield plan
    for inner in plan.get("Plans", []):
        yield from _nodes(inner)


def scans(nodes: list[dict[str, Any]]) -> list[str]:
    """Which indexes are used on the table of live tasks, and `everything` where none is."""
    found = [node.get("Index Name") for node in nodes if node["Node Type"] in ("Index Scan", "Bitmap Index Scan")]
    whole = ["everything" for node in nodes if node["Node Type"] == "Seq Scan" and node.get("Relation Name") == "task"]
    return [name for name in found if name and name.startswith("task")] + whole


@pytest.mark.parametrize("mode", PLANS)
async def test_a_claim_looks_only_at_what_it_takes(planner: Planner, mode: str) -> None:
    kinds = ", ".join(f"'kind-{number}'" for number in range(KINDS))
    nodes = await planner.plan(
        mode,
        "claim",
        "text, text[], integer[], integer, text[]",
        *("'node'", f"ARRAY[{kinds}]", f"ARRAY[{', '.join(['100'] * KINDS)}]", "500", "NULL"),
    )
    assert sorted(set(scans(nodes))) == ["task_pkey", "task_ready"]
    sorted_nodes = [node for node in nodes if node["Node Type"] in ("Sort", "Incremental Sort")]
    assert not any("task" in str(node.get("Plans")) for node in sorted_nodes), "the index has the order already"


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("mode", PLANS)
async def test_settling_finds_its_rows_by_id(planner: Planner, mode: str, size: int) -> None:
    ids = f"ARRAY[{', '.join(map(str, range(1, size + 1)))}]"
    results = f"ARRAY[{', '.join(['NULL'] * size)}]"
    locked = await planner.plan(mode, "lock_running", "bigint[]", ids)
    assert scans(locked) == ["task_pkey"]
    ended = await planner.plan(
        mode,
        "end",
        "bigint[], text[], text, text, boolean",
        *(ids, results, "'succeeded'", "NULL", "true"),
    )
    assert scans(ended) == ["task_pkey"]
