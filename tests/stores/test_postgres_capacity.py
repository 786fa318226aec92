"""Claims by requirements on PostgreSQL: what does not fit is not read, and concurrent claims are serializable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import asyncpg
import pytest
from tests.postgres_server import administer, distributed_url, server_url, store_url
from tests.stores.actions import PATIENCE_SECONDS, Worker, add, add_many, amounts, demands
from tests.stores.test_capacity import ids_of, kind_request

from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.connection import IDLE_TRANSACTION_TIMEOUT
from synergon.stores.postgres.profile import STANDARD

ROWS: Final = 100_000
KINDS: Final = 50
QUEUES: Final = 2
DEMANDS: Final = ["", demands(cpu=1), demands(cpu=2), demands("elsewhere"), demands(cpu=9)]
SHARDS: Final = 8


@pytest.fixture(autouse=True)
def _patient_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine interrupts claims among 100,000 tasks for seconds, inside their transactions."""
    monkeypatch.setitem(IDLE_TRANSACTION_TIMEOUT, "idle_in_transaction_session_timeout", "60000")


@pytest.fixture(params=["standard", "distributed"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[PostgresStore]:
    """Either profile."""
    store = PostgresStore(store_url() if request.param == "standard" else distributed_url())
    await store.open()
    yield store
    await store.close()


# ---------------------------------------------------------------- what is read


def fill(schema: str) -> None:
    """Ready tasks of many kinds, in two queues, of each requirements as many as of the others."""
    texts = ", ".join(f"'{text}'" for text in DEMANDS)
    administer(
        f"INSERT INTO {schema}.task (kind, queue, state, priority, run_at, payload, enqueued_at, requirements) "
        f"SELECT 'kind-' || number % {KINDS}, 'queue-' || number / {KINDS} % {QUEUES}, 'ready', number % 3, now(), "
        f"'{{}}', now(), (ARRAY[{texts}])[1 + number / {KINDS * QUEUES} % {len(DEMANDS)}] "
        f"FROM generate_series(0, {ROWS} - 1) AS number"
    )
    administer(f"INSERT INTO {schema}.queue SELECT 'queue-' || number FROM generate_series(0, {QUEUES} - 1) AS number")
    administer(f"ANALYZE {schema}.task; ANALYZE {schema}.queue")


@pytest.fixture
async def backlog(store: PostgresStore) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection with the settings of the store, over many ready tasks."""
    fill(store.address.schema)
    settings = dict(store.address.profile.settings)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url(), server_settings=settings)
    yield connection
    await connection.close()
    administer(f"TRUNCATE {store.address.schema}.task; ANALYZE {store.address.schema}.task")


def _scans(plan: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """By what index tasks are read, and how many entries."""
    if plan.get("Relation Name") == "task" and "Scan" in plan["Node Type"] and plan["Actual Loops"]:
        read = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield plan.get("Index Name", "everything"), read * plan["Actual Loops"]
    for inner in plan.get("Plans", []):
        yield from _scans(inner)


async def read(store: PostgresStore, connection: asyncpg.Connection[Any], name: str, *arguments: Any) -> float:
    """How many entries of the index of ready tasks a statement reads, which reads nothing else."""
    sql = store.address.profile.statements(store.address.schema)[name]
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *arguments)
    found = list(_scans(json.loads(text)[0]["Plan"]))
    assert {index for index, _ in found} == {"task_ready"}
    return sum(number for _, number in found)


async def test_a_claim_reads_what_it_may_take_and_one_of_what_does_not_fit(
    store: PostgresStore, backlog: asyncpg.Connection[Any]
) -> None:
    """Each index entry is one that could be taken, the first of a lane that could not, or one of a jump."""
    shards = 1 if store.address.profile is STANDARD else SHARDS
    kinds = [f"kind-{number}" for number in range(KINDS)]
    ready_groups = KINDS * QUEUES * shards
    found = await read(store, backlog, "ready_groups", "node", kinds, [False] * KINDS, None)
    assert found == ready_groups * len(DEMANDS)
    for count in (1, 5):
        asked: tuple[Any, ...] = (kinds[:1], ["queue-1"], DEMANDS[1:2], [count], [], 0, "node", count, False)
        assert await read(store, backlog, "first_ready", *asked) == shards * count
    unfit = [text for text in DEMANDS for _ in kinds]
    queues = ["queue-0"] * len(unfit)
    asked = (kinds * len(DEMANDS), queues, unfit, [1] * len(unfit), [], 0, "node", 1, False)
    assert await read(store, backlog, "first_ready", *asked) == len(unfit) * shards
    await finds_its_own(store)


async def finds_its_own(store: PostgresStore) -> None:
    """Among many that are for others, a node gets what is for it."""
    worker = await Worker.start(store)
    wanted = await add(store, kind="kind-7", priority=9, requirements=demands("here", cpu=1))
    kind_requests = tuple(kind_request(f"kind-{number}") for number in range(KINDS))
    state: dict[str, Any] = {"labels": frozenset({"here"}), "totals": amounts(cpu=1), "free": amounts(cpu=1)}
    claims = await worker.claim_kinds(*kind_requests, limit=4, **state)
    assert claims[0].id == wanted
    assert [claim.requirements for claim in claims[1:]] == [""] * 3


# ---------------------------------------------------------------- at once


async def test_of_many_nodes_at_once_one_keeps_room(store: PostgresStore) -> None:
    workers = [await Worker.start(store, f"node-{number}") for number in range(8)]
    big = await add(store, requirements=demands(cpu=8))
    small = await add_many(store, 30, requirements=demands(cpu=1))
    state: dict[str, Any] = {
        "totals": amounts(cpu=8),
        "free": amounts(cpu=2),
        "patience": 0,
        "shares": (amounts(cpu=1),),
    }
    found = await asyncio.gather(*(worker.claim_kinds(kind_request(), limit=2, **state) for worker in workers))
    assert [claims.reserved.id for claims in found if claims.reserved is not None] == [big]
    taken = [task_id for claims in found for task_id in ids_of(claims)]
    assert sorted(taken) == small[: len(taken)]
    for worker, claims in zip(workers, found, strict=True):
        lacking = 0 if claims.reserved is not None else 2 - len(claims)
        if lacking:  # others were quicker each time that it looked, and it has given up for now
            taken += ids_of(await worker.claim_kinds(kind_request(), limit=lacking, **state))
    assert sorted(taken) == small[:14]


@pytest.mark.parametrize("requirements", ["", demands()], ids=["the short way", "the long way"])
async def test_a_claim_beside_a_cordon_waits_for_it_and_takes_nothing(store: PostgresStore, requirements: str) -> None:
    worker = await Worker.start(store)
    await add(store, requirements=requirements)
    sql = store.address.profile.statements(store.address.schema)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    async with connection.transaction():
        await connection.fetch(sql["lock_lease"], worker.node_id)
        await connection.execute(sql["cordon"], worker.node_id)
        claiming = asyncio.create_task(worker.claim_kinds(kind_request()))
        await _is_waited_for(connection)
        assert not claiming.done()
    async with asyncio.timeout(PATIENCE_SECONDS):
        claims = await claiming
    assert (claims, claims.is_cordoned) == ([], True)
    await connection.close()


async def _is_waited_for(connection: asyncpg.Connection[Any]) -> None:
    """Until somebody waits for what this connection holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not administer(  # noqa: ASYNC110 - the database tells nobody
            "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))", connection.get_server_pid()
        ):
            await asyncio.sleep(0.01)
