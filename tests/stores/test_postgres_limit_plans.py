"""Lines are put in order, and limited tasks claimed, by index alone: whatever waits, it is not read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import product
from typing import Any, Final

import asyncpg
import pytest
from tests.postgres_server import DISTRIBUTED_SCHEMA, SCHEMA, administer, distributed_url, server_url, store_url

from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.profile import DISTRIBUTED, STANDARD, Profile

ROWS: Final = 100_000
LINES: Final = 5000
PLANS: Final = ("force_generic_plan", "force_custom_plan")

KINDS: Final = ["lined"]
QUEUES: Final = ["queue-0"]
PRIORITIES: Final = ["1"]
KEYS: Final = ["key-{}"]
IDS: Final = ["{}"]
TEXTS: Final = ["x"]
DEMANDS: Final = ['""']
BOOLEANS: Final = ["false"]
"""Lists of as many as are asked for; {} is the number of each."""


STATEMENTS: Final[dict[str, tuple[str, tuple[str | list[str], ...], set[str]]]] = {
    "key_queue_counts": ("text[], text[], bigint", (KINDS, KEYS, "8"), {"task_key_queue"}),
    "first_waiting": ("text, text, bigint", ("'lined'", "'key-7'", "50"), {"task_key_queue"}),
    "excess": ("text, text, bigint", ("'lined'", "'key-7'", "2"), {"task_key_queue"}),
    "promote": ("bigint[]", (IDS,), {"task_pkey"}),
    "demote": ("bigint[]", (IDS,), {"task_pkey"}),
    "promote_all": ("text[], text[]", (KINDS, KEYS), {"task_key_queue", "task_pkey"}),
    "key_queues_of_kind": ("text", ("'lined'",), {"task_key_queue"}),
    "key_queue_rates": ("text[], text[]", (KINDS, KEYS), {"task_deferred"}),
    "queue_due": ("text, text, timestamptz", ("'lined'", "'key-7'", "now()"), {"task_deferred", "task_pkey"}),
    "postpone": ("bigint[], timestamptz[]", (IDS, "ARRAY[now()]"), {"task_pkey"}),
    "ready_groups": ("text, text[], boolean[], text[]", ("'node'", KINDS, BOOLEANS, "NULL"), {"task_ready"}),
    "first_ready": (
        "text[], text[], text[], integer[], bigint[], bigint, text, integer, boolean",
        (KINDS, QUEUES, DEMANDS, IDS, "'{7}'", "0", "'node'", "50", "true"),
        {"task_ready", "task_holding"},
    ),
    "ready_among": (
        "bigint[], text[], bigint[], bigint, text",
        (IDS, "NULL", "'{7}'", "NULL", "'node'"),
        {"task_pkey"},
    ),
    "ready_commands": (
        "text[], text[], integer, text[], text[], bigint[], bigint, text",
        (KINDS, TEXTS, "1000", TEXTS, TEXTS, "'{7}'", "0", "'node'"),
        {"task_command"},
    ),
    "take": (
        "text, bigint[], text[], text[], text[], integer[], text[]",
        ("'node'", IDS, TEXTS, TEXTS, TEXTS, IDS, TEXTS),
        {"task_pkey"},
    ),
    "reserve": (
        "bigint, text, bigint, text, text",
        ("7", "'node'", "1", "''", "'queue-0'"),
        {"task_pkey"},
    ),
    "requirement_texts": ("text, text[]", ("'lined'", "NULL"), {"task_ready"}),
    "first_in_ready_groups": (
        "text, text[], text[], bigint, bigint, bigint, integer",
        ("'lined'", DEMANDS, "NULL", "1", "0", "7", "100"),
        {"task_ready", "task_pkey"},
    ),
    "position_of": ("bigint", ("7",), {"task_pkey"}),
    "ahead_ready": ("text, bigint, bigint, bigint, bigint", ("'lined'", "1", "0", "7", "1000"), {"task_ready"}),
    "tenants_ahead": ("text, bigint, bigint, bigint, bigint", ("'lined'", "1", "0", "7", "1000"), {"task_ready"}),
    "fair_tags": ("text[], bigint[], text[]", (KINDS, PRIORITIES, KEYS), {"task_ready", "task_started", "task_tenant"}),
    "oldest_with_tags": (
        "text[], text[], text[], bigint[], integer",
        (KINDS, QUEUES, DEMANDS, PRIORITIES, "10"),
        {"task_oldest"},
    ),
    "untagged_tasks": ("bigint[]", (IDS,), {"task_pkey"}),
    "set_fair_tags": ("bigint[], bigint[]", (IDS, IDS), {"task_pkey"}),
    "ahead_in_key_queue": (
        "text, text, text, bigint, bigint, bigint",
        ("'lined'", "'key-7'", "'waiting'", "1", "7", "1000"),
        {"task_key_queue"},
    ),
    "ahead_dependent": (
        "text, text, bigint, bigint, bigint",
        ("'lined'", "NULL", "1", "7", "1000"),
        {"task_dependent"},
    ),
    "running_lock_targets": ("bigint[]", (IDS,), {"task_pkey"}),
    "end_empty_groups": ("bigint[]", (IDS,), {"task_member"}),
    "release_dependents": ("bigint[]", (IDS,), {"task_pkey"}),
    "kinds_of_dependents": ("bigint[]", (IDS,), {"task_pkey"}),
    "unsettled": ("bigint", ("100",), {"task_unsettled"}),
    "due_lock_targets": ("integer", ("100",), {"task_due", "task_expiry"}),
}
"""The types of its parameters, their values, and the indexes of tasks that it may read."""


def mislead(schema: str) -> None:
    """What the planner learnt when there were a few tasks in one line, all of them due long ago."""
    administer(
        f"INSERT INTO {schema}.task (kind, queue, state, priority, run_at, payload, enqueued_at, limit_key) "
        "SELECT 'lined', 'queue-0', 'scheduled', 0, now() - interval '1 day', '{}', now(), 'key-7' "
        "FROM generate_series(1, 50)"
    )
    administer(f"ANALYZE {schema}.task")
    administer(f"DELETE FROM {schema}.task")


def fill(schema: str) -> None:
    """Nearly everybody waits in a line; a few are ready or run, one of a hundred in its own time."""
    administer(
        f"INSERT INTO {schema}.task (kind, queue, state, priority, run_at, payload, enqueued_at, limit_key, node_id) "
        "SELECT 'lined', 'queue-' || number % 4, CASE WHEN number < 1000 THEN 'running' WHEN number < 2000 THEN "
        "'ready' WHEN number % 100 = 0 THEN 'scheduled' ELSE 'waiting' END, number % 3, now(), '{}', now(), "
        f"'key-' || number % {LINES}, CASE WHEN number < 1000 THEN 'node' END "
        f"FROM generate_series(0, {ROWS} - 1) AS number"
    )
    administer(f"INSERT INTO {schema}.queue SELECT 'queue-' || number FROM generate_series(0, 3) AS number")


@pytest.fixture(params=[STANDARD, DISTRIBUTED], ids=["standard", "distributed"], scope="module")
def profile(request: pytest.FixtureRequest) -> Profile:
    """Either."""
    found: Profile = request.param
    return found


@pytest.fixture
async def connection(profile: Profile) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection with the settings of the store, over a backlog that the planner knows nothing of."""
    store = PostgresStore(store_url() if profile is STANDARD else distributed_url())
    await store.open()
    await store.close()
    schema = store.address.schema
    mislead(schema)
    fill(schema)
    opened: asyncpg.Connection[Any] = await asyncpg.connect(server_url(), server_settings=dict(profile.settings))
    yield opened
    await opened.close()
    administer(f"TRUNCATE {schema}.task; ANALYZE {schema}.task")


async def test_no_statement_reads_those_who_wait(profile: Profile, connection: asyncpg.Connection[Any]) -> None:
    schema = SCHEMA if profile is STANDARD else DISTRIBUTED_SCHEMA
    sql = profile.statements(schema)
    names = STATEMENTS.keys() & sql.keys()
    assert profile is not STANDARD or names == STATEMENTS.keys()
    for name in names:
        types, _, _ = STATEMENTS[name]
        await connection.execute(f"PREPARE its_{name} {f'({types})' if types else ''} AS {sql[name]}")
    if profile is STANDARD:  # the settings of which keep it from reading everything, whatever it believes
        assert await wrong_scans(connection, names) == {}
    administer("; ".join(f"ANALYZE {schema}.{table}" for table in ("task", "queue", "rate", "task_group")))
    assert await wrong_scans(connection, names) == {}


async def wrong_scans(connection: asyncpg.Connection[Any], names: Iterable[str]) -> dict[str, set[str]]:
    """What is read that should not be, by statement."""
    wrong: dict[str, set[str]] = {}
    for name in names:
        _, arguments, expected = STATEMENTS[name]
        for mode, number in product(PLANS, (1, 200)):
            given = ", ".join(literal(argument, number) for argument in arguments)
            found = await scans(connection, mode, f"its_{name}{f' ({given})' if given else ''}")
            if not found <= expected:
                wrong[f"{name}, {number}, {mode}"] = found - expected
    return wrong


def literal(argument: str | list[str], number: int) -> str:
    """The argument in SQL; a list has so many members."""
    if isinstance(argument, str):
        return argument
    return f"'{{{', '.join(argument[0].format(one * 7) for one in range(1, number + 1))}}}'"


async def scans(connection: asyncpg.Connection[Any], mode: str, call: str) -> set[str]:
    """Which indexes of tasks it reads."""
    await connection.execute(f"SET plan_cache_mode = {mode}")
    text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {call}")
    return set(_scans(json.loads(text)[0]["Plan"]))


def _scans(plan: dict[str, Any]) -> Iterator[str]:
    index = str(plan.get("Index Name", ""))
    if index.startswith("task_") and not index.startswith(("task_limit", "task_group")):
        yield index
    if plan["Node Type"] == "Seq Scan" and plan["Relation Name"] == "task":
        yield "everything"
    for inner in plan.get("Plans", []):
        yield from _scans(inner)


async def test_commands_for_servers_without_room_are_not_read(
    profile: Profile, connection: asyncpg.Connection[Any]
) -> None:
    schema = SCHEMA if profile is STANDARD else DISTRIBUTED_SCHEMA
    administer(
        f"INSERT INTO {schema}.task (kind, queue, state, priority, run_at, payload, enqueued_at, is_command, provider, "
        "target) SELECT 'stop', 'queue-0', 'ready', 0, now(), '{}', now(), true, 'gpu', CASE WHEN number < 5000 "
        "THEN 'full' WHEN number < 5003 THEN 'open' END FROM generate_series(0, 5004) AS number"
    )
    types, _, _ = STATEMENTS["ready_commands"]
    sql = profile.statements(schema)["ready_commands"]
    await connection.execute(f"PREPARE commands ({types}) AS {sql}")
    call = "commands ('{stop}', '{gpu}', 1000, '{gpu}', '{open}', '{}', NULL, 'node')"
    assert len(await connection.fetch(f"EXECUTE {call}")) == 5
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {call}")
    assert sum(_rows_read(json.loads(text)[0]["Plan"])) == 1 + 5  # one to know that there are any


def _rows_read(plan: dict[str, Any]) -> Iterator[int]:
    if plan.get("Relation Name") == "task":
        yield (int(plan["Actual Rows"]) + int(plan.get("Rows Removed by Filter", 0))) * int(plan["Actual Loops"])
    for inner in plan.get("Plans", []):
        yield from _rows_read(inner)
