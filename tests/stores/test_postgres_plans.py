"""The statements that run all the time find their rows by index, whatever the backlog and the statistics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import asyncpg
import pytest
from tests.postgres_server import DISTRIBUTED_SCHEMA, SCHEMA, administer, distributed_url, server_url, store_url

from synergon.model.lifecycle import State
from synergon.model.task_records import TaskQuery
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.profile import DISTRIBUTED, STANDARD, Profile
from synergon.stores.postgres.queries import DIALECT
from synergon.stores.sql_rows.task_listing import parts_of, statement_of

KINDS: Final = 50
ROWS: Final = 100_000
PLANS: Final = ("force_generic_plan", "force_custom_plan")
SIZES: Final = (1, 100, 1000)
BACKLOGS: Final = ("nothing", "many kinds", "many kinds, not analyzed", "one kind", "many kinds, but only later")

TYPES: Final = {
    "candidates": "text, text[], integer[], integer, text[], integer, bigint[], integer[]",
    "claim": "text, text[], integer[], integer, text[], integer[]",
    "claim_kind": "text, text, integer, text[]",
    "running_tasks": "bigint[]",
    "end": "bigint[], text[], text, text, boolean",
    "succeed": "bigint[], bigint[], text[], integer",
}


def array(*values: object) -> str:
    return f"ARRAY[{', '.join(map(str, values))}]"


def fill(kinds: int, schema: str = SCHEMA) -> None:
    """A backlog, of which a few hundred tasks are running."""
    administer(
        f"INSERT INTO {schema}.task (kind, queue, state, priority, run_at, payload, enqueued_at, node_id, claim_no) "
        f"SELECT 'kind-' || number % {kinds}, 'queue-' || number % 4, CASE WHEN number < 500 THEN 'running' ELSE "
        "'ready' END, number % 3, now(), '{}', now(), CASE WHEN number < 500 THEN 'node' END, 1 "
        f"FROM generate_series(0, {ROWS} - 1) AS number"
    )


def analyze(schema: str = SCHEMA) -> None:
    """Let the planner look."""
    administer(f"ANALYZE {schema}.task")


class Planner:
    """Explains statements as the store runs them: prepared, on a connection with its settings."""

    def __init__(self, connection: asyncpg.Connection[Any], profile: Profile = STANDARD, schema: str = SCHEMA) -> None:
        self._connection = connection
        self._sql = profile.statements(schema)

    async def prepare(self) -> None:
        """Prepare everything, and make the plans that are kept."""
        for name in ("claim", "claim_kind", "running_tasks", "end", "succeed"):
            await self.prepare_one(name, TYPES[name])
        await self.claim(PLANS[0])
        await self.claim_kind(PLANS[0])
        await self.lock_running(PLANS[0], 1)
        await self.end(PLANS[0], 1)
        await self.succeed(PLANS[0], 1)

    async def prepare_one(self, name: str, types: str) -> None:
        """Prepare this one."""
        await self._connection.execute(f"PREPARE its_{name} ({types}) AS {self._sql[name]}")

    async def claim(self, mode: str) -> set[str]:
        """How a claim of many kinds finds its rows."""
        kinds = array(*(f"'kind-{number}'" for number in range(KINDS)))
        return await self._scans(
            mode, "claim", "'node'", kinds, array(*[100] * KINDS), "500", "NULL", array(*range(KINDS))
        )

    async def claim_kind(self, mode: str) -> set[str]:
        """The same of one kind."""
        return await self._scans(mode, "claim_kind", "'node'", "'kind-0'", "500", "NULL")

    async def candidates(self, mode: str) -> set[str]:
        """How a claim that has to look first finds what to take."""
        kinds = array(*(f"'kind-{number}'" for number in range(KINDS)))
        kind_requests = array(*[100] * KINDS)
        ranks = array(*range(KINDS))
        return await self._scans(
            mode, "candidates", "'node'", kinds, kind_requests, "500", "NULL", "100", "'{7}'", ranks
        )

    async def take(self, mode: str, size: int) -> set[str]:
        """How it takes them."""
        return await self._scans(mode, "claim", "'node'", array(*range(600, 600 + size)), "NULL")

    async def remove_ended(self, mode: str, size: int) -> set[str]:
        """How tasks that have ended leave."""
        return await self._scans(mode, "remove_ended", array(*range(1, size + 1)))

    async def lock_running(self, mode: str, size: int) -> set[str]:
        """How tasks to be settled are found."""
        return await self._scans(mode, "running_tasks", array(*range(1, size + 1)))

    async def end(self, mode: str, size: int) -> set[str]:
        """How tasks that end are found."""
        ids, results = array(*range(1, size + 1)), array(*["NULL"] * size)
        return await self._scans(mode, "end", ids, results, "'succeeded'", "NULL", "true")

    async def succeed(self, mode: str, size: int) -> set[str]:
        """How plain successes are found."""
        return set(_scans(await self.plan_of_succeed(mode, size)))

    async def plan_of_succeed(self, mode: str, size: int) -> dict[str, Any]:
        """All that is done for plain successes."""
        ids, claims, results = array(*range(1, size + 1)), array(*[1] * size), array(*["NULL"] * size)
        return await self._plan(mode, "succeed", ids, claims, results, "1")

    async def listing(self, mode: str) -> set[str]:
        """How a page of ready tasks is found."""
        query = TaskQuery(states=frozenset({State.READY}), limit=50)
        (part,) = parts_of(self._sql, query)
        sql, *values = statement_of(DIALECT, self._sql["recent_records"], query, part)
        await self._connection.execute(f"SET plan_cache_mode = {mode}")
        text = await self._connection.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", *values)
        return set(_scans(json.loads(text)[0]["Plan"]))

    async def _scans(self, mode: str, name: str, *arguments: str) -> set[str]:
        return set(_scans(await self._plan(mode, name, *arguments)))

    async def _plan(self, mode: str, name: str, *arguments: str) -> dict[str, Any]:
        await self._connection.execute(f"SET plan_cache_mode = {mode}")
        text = await self._connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE its_{name} ({', '.join(arguments)})")
        plan: dict[str, Any] = json.loads(text)[0]["Plan"]
        return plan


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


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from _steps(inner)


@pytest.fixture(params=BACKLOGS)
async def planner(request: pytest.FixtureRequest) -> AsyncIterator[Planner]:
    """Over each backlog, and whatever the planner knows of it."""
    backlog: str = request.param
    store = PostgresStore(store_url())
    await store.open()
    await store.close()
    administer(f"INSERT INTO {SCHEMA}.queue SELECT 'queue-' || number FROM generate_series(0, 3) AS number")
    analyze()
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url(), server_settings=dict(STANDARD.settings))
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
        assert await planner.claim_kind(mode) == {"task_ready", "task_pkey"}, mode
        for size in SIZES:
            assert await planner.lock_running(mode, size) - {"a sort"} == {"task_pkey"}, (mode, size)
            assert await planner.end(mode, size) == {"task_pkey"}, (mode, size)
            assert await planner.succeed(mode, size) == {"task_pkey"}, (mode, size)


async def test_a_page_of_ready_tasks_is_read_by_id(planner: Planner) -> None:
    for mode in PLANS:
        assert await planner.listing(mode) == {"task_pkey"}, mode


async def test_a_page_of_old_tasks_is_complete_too() -> None:
    """They are not among the newest rows."""
    store = PostgresStore(store_url())
    await store.open()
    fill(kinds=1)
    page = await store.list_tasks(TaskQuery(states=frozenset({State.RUNNING}), limit=50))
    ids = [task.id for task in page.tasks]
    assert len(ids) == 50
    assert ids == sorted(ids, reverse=True)
    assert all(task.state is State.RUNNING for task in page.tasks)
    await store.close()
    administer(f"TRUNCATE {SCHEMA}.task")
    analyze()


async def test_successes_are_locked_in_the_order_of_their_ids(planner: Planner) -> None:
    """As everywhere, so that nobody waits in a ring: the index is read in its order, and no bitmap of it is made."""
    for mode in PLANS:
        for size in SIZES:
            ways = [step["Node Type"] for step in _steps(await planner.plan_of_succeed(mode, size))]
            assert "Index Scan" in ways, (mode, size)
            assert "Bitmap Heap Scan" not in ways, (mode, size)


@pytest.fixture
async def distributed_planner() -> AsyncIterator[Planner]:
    """Over a backlog that the planner knows, with no setting that helps it to choose."""
    store = PostgresStore(distributed_url())
    await store.open()
    await store.close()
    schema = DISTRIBUTED_SCHEMA
    administer(f"INSERT INTO {schema}.queue SELECT 'queue-' || number FROM generate_series(0, 3) AS number")
    fill(KINDS, schema)
    analyze(schema)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(
        server_url(), server_settings=dict(DISTRIBUTED.settings)
    )
    planner = Planner(connection, DISTRIBUTED, schema)
    for name in ("candidates", "running_tasks", "end"):
        await planner.prepare_one(name, TYPES[name])
    await planner.prepare_one("claim", "text, bigint[], text[]")
    await planner.prepare_one("remove_ended", "bigint[]")
    yield planner
    await connection.close()
    administer(f"TRUNCATE {schema}.task")
    analyze(schema)


async def test_a_look_reads_the_heads_of_the_shards_and_no_more(distributed_planner: Planner) -> None:
    for mode in PLANS:
        assert await distributed_planner.candidates(mode) == {"task_ready"}, mode


async def test_a_page_of_ready_tasks_is_read_by_id_there_too(distributed_planner: Planner) -> None:
    for mode in PLANS:
        assert await distributed_planner.listing(mode) == {"task_pkey"}, mode


async def test_without_one_statement_for_all_the_steps_find_their_rows_too(distributed_planner: Planner) -> None:
    planner = distributed_planner
    for mode in PLANS:
        for size in SIZES:
            assert await planner.take(mode, size) - {"a sort"} == {"task_pkey"}, (mode, size)
            assert await planner.lock_running(mode, size) - {"a sort"} == {"task_pkey"}, (mode, size)
            assert await planner.end(mode, size) == {"task_pkey"}, (mode, size)
            assert await planner.remove_ended(mode, size) == {"task_pkey"}, (mode, size)
