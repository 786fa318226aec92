"""The profile for databases that spread their tables over many machines, forced on PostgreSQL.

The conformance suite and the model run with it too; here is what only it has to promise.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from tests.conftest import NewEngine
from tests.postgres_server import (
    DISTRIBUTED_SCHEMA,
    SCHEMA,
    administer,
    distributed_url,
    server_url,
    store_url,
    url_with,
)
from tests.stores.actions import (
    HOUR,
    KIND,
    OUTCOMES,
    PATIENCE_SECONDS,
    Worker,
    add,
    add_many,
    check_counts,
    listed,
)
from tests.stores.everything import do_everything, do_everything_with_demands, do_everything_with_limits

from synergon.errors import ConfigurationError, SchemaError, StoreError
from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.lifecycle import State
from synergon.model.tasks import Cutoffs
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.distributed import claim
from synergon.stores.postgres.profile import DISTRIBUTED, PROFILES, STANDARD

ROOT: Final = Path(__file__).parents[2]
SHARDS: Final = 8
SUCCEEDED: Final = OUTCOMES["succeeded"]
EVERYTHING_IS_OLD: Final = Cutoffs(succeeded=-HOUR, failed=-HOUR, cancelled=-HOUR)

LACKING: Final = re.compile(
    r"SKIP\s+LOCKED|pg_current_|xid8|\bLISTEN\b|\bUNLISTEN\b|\bNOTIFY\b|pg_notify|pg_advisory|fillfactor|autovacuum"
    r"|\bAS\s+(NOT\s+)?(MATERIALIZED\s*)?\(\s*(INSERT|UPDATE|DELETE)\b",
    re.IGNORECASE,
)
"""What such databases lack, or had for a short time only."""


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(distributed_url())
    await store.open()
    yield store
    await check_counts(store)
    await store.close()


def request(node_id: str, limit: int, *kinds: str) -> ClaimRequest:
    kind_requests = tuple(KindRequest(kind=kind, count=limit) for kind in kinds or (KIND,))
    return ClaimRequest(node_id=node_id, kinds=kind_requests, limit=limit)


# ---------------------------------------------------------------- the URL and the schema


def test_a_profile_that_nobody_knows_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"standard, distributed.*'spread'"):
        PostgresStore("postgresql://localhost/db?profile=spread")


def test_it_does_not_listen_and_does_not_take_the_wish_to() -> None:
    assert not PostgresStore("postgresql://localhost/db?profile=distributed").capabilities.listens
    assert not PostgresStore("postgresql://localhost/db?profile=distributed&listen=false").capabilities.listens
    with pytest.raises(ConfigurationError, match="listen=yes needs NOTIFY, which profile=distributed does without"):
        PostgresStore("postgresql://localhost/db?profile=distributed&listen=yes")


async def test_a_schema_of_one_profile_is_refused_by_the_other_and_both_are_named(store: PostgresStore) -> None:
    with pytest.raises(SchemaError, match=r"made with profile=distributed.*has profile=standard; use \?profile=dist"):
        await PostgresStore(url_with(schema=DISTRIBUTED_SCHEMA)).open()
    usual = PostgresStore(store_url())
    await usual.open()
    await usual.close()
    with pytest.raises(SchemaError, match=r"made with profile=standard.*has profile=distributed; use \?profile=stan"):
        await PostgresStore(url_with(schema=SCHEMA, profile="distributed")).open()


async def test_a_schema_from_before_there_were_profiles_is_a_usual_one() -> None:
    usual = PostgresStore(store_url())
    await usual.open()
    await usual.close()
    administer(f"DELETE FROM {SCHEMA}.meta WHERE name = 'profile'")
    try:
        with pytest.raises(SchemaError, match="made with profile=standard"):
            await PostgresStore(url_with(schema=SCHEMA, profile="distributed")).open()
        await usual.open()
        await usual.close()
    finally:
        administer(f"INSERT INTO {SCHEMA}.meta VALUES ('profile', 'standard')")


async def test_of_two_that_create_it_at_once_one_chooses_the_profile() -> None:
    administer("DROP SCHEMA IF EXISTS contended CASCADE")
    stores = [PostgresStore(url_with(schema="contended", pool=1, profile=name)) for name in [*PROFILES] * 3]
    answers = await asyncio.gather(*(store.open() for store in stores), return_exceptions=True)
    (chosen,) = [value for (value,) in administer("SELECT value FROM contended.meta WHERE name = 'profile'")]
    for store, answer in zip(stores, answers, strict=True):
        if store.address.profile.name == chosen:
            assert answer is None
            await add(store)
        else:
            assert isinstance(answer, SchemaError)
        await store.close()
    administer("DROP SCHEMA contended CASCADE")


async def test_the_printed_sql_is_that_of_the_profile_and_may_be_run_again() -> None:
    administer("DROP SCHEMA IF EXISTS by_hand CASCADE")
    store = PostgresStore(url_with(schema="by_hand", profile="distributed"))
    for _ in range(2):  # an interrupted script is not undone everywhere
        administer(store.schema_sql())
    await store.open()
    await add(store)
    await store.close()
    administer("DROP SCHEMA by_hand CASCADE")


def columns_of(schema: str) -> set[tuple[Any, ...]]:
    return {
        tuple(row)
        for row in administer(
            "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name <> 'mine'",
            schema,
        )
    }


def indexes_of(schema: str) -> set[str]:
    return {name for (name,) in administer("SELECT indexname FROM pg_indexes WHERE schemaname = %s", schema)}


async def test_both_profiles_have_the_same_tables_but_for_the_shard_and_the_transaction(store: PostgresStore) -> None:
    usual = PostgresStore(store_url())
    await usual.open()
    await usual.close()
    assert columns_of(DISTRIBUTED_SCHEMA) - columns_of(SCHEMA) == {("task", "shard", "integer", "NO")}
    assert columns_of(SCHEMA) - columns_of(DISTRIBUTED_SCHEMA) == {("history", "ended_in", "xid8", "NO")}
    assert indexes_of(SCHEMA) - indexes_of(DISTRIBUTED_SCHEMA) == {"history_ending", "history_success"}
    assert indexes_of(DISTRIBUTED_SCHEMA) <= indexes_of(SCHEMA)
    assert len(DISTRIBUTED.scripts("any")) == len(STANDARD.scripts("any"))


async def test_the_facts_for_people_name_the_profile(store: PostgresStore) -> None:
    facts = await store.describe()
    assert facts["profile"] == "distributed"
    assert re.fullmatch(r"PostgreSQL [\d.]+", facts["server"])


# ---------------------------------------------------------------- what is said to the database


def test_no_text_of_the_profile_needs_what_such_databases_lack() -> None:
    for name, text in DISTRIBUTED.statements("any").items():
        assert not LACKING.search(text), name
    for script in DISTRIBUTED.scripts("any"):
        assert not LACKING.search(re.sub("--.*", "", script))


def test_a_migration_that_was_interrupted_can_be_repeated() -> None:
    for script in DISTRIBUTED.scripts("any"):
        assert not re.search(r"CREATE (?:TABLE|(?:UNIQUE )?INDEX) (?!IF NOT EXISTS)", script)
        assert not re.search(r"INSERT (?![^;]*ON CONFLICT DO NOTHING)", script)


def test_the_usual_statements_would_be_found_out() -> None:
    found = {name for name, text in STANDARD.statements("any").items() if LACKING.search(text)}
    assert found == {
        *("claim", "claim_kind", "end", "expired", "make_due_ready", "notify", "orphans", "succeed"),
        "succeed_together",
        *("demote", "prune", "prune_rates", "prune_succeeded", "queue_due", "release_reservation", "reserve", "take"),
        *("snapshot", "endings", "pruned", "due_schedules", "prune_by_keep_for", "prune_tasks_of_groups"),
    }


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Everything that any connection of asyncpg says from now on."""
    texts: set[str] = set()
    real = asyncpg.Connection.__init__

    def init(self: asyncpg.Connection[Any], *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        self.add_query_logger(lambda record: texts.add(record.query))

    monkeypatch.setattr(asyncpg.Connection, "__init__", init)
    return texts


def _starts(text: str) -> Callable[[str], bool]:
    """Whether a text begins with that of the statement, in which each call writes the source of new tasks or a key."""
    pattern = re.compile(".*?".join(map(re.escape, re.split("{new}|{key}", text))), re.DOTALL)
    return lambda said: pattern.match(said) is not None


async def test_nothing_is_said_that_such_databases_lack(said: set[str]) -> None:
    administer("DROP SCHEMA IF EXISTS said CASCADE")
    store = PostgresStore(url_with(schema="said", profile="distributed"))
    await store.open()
    await do_everything(store)
    await do_everything_with_limits(store)
    await do_everything_with_demands(store)
    await store.close()
    statements = DISTRIBUTED.statements("said")
    unsaid = {name for name, text in statements.items() if not any(map(_starts(text), said))}
    assert unsaid == set()  # lists are followed by conditions
    assert {text for text in said if LACKING.search(re.sub("--.*", "", text))} == set()
    administer("DROP SCHEMA said CASCADE")


# ---------------------------------------------------------------- shards


async def test_ready_tasks_are_spread_over_the_shards_and_come_in_order(store: PostgresStore) -> None:
    worker = await Worker.start(store)
    low = await add_many(store, 150)
    high = await add_many(store, 150, priority=1)
    shards = {shard for (shard,) in administer(f"SELECT DISTINCT shard FROM {DISTRIBUTED_SCHEMA}.task")}
    assert shards == set(range(SHARDS))
    assert await worker.claim_ids(limit=200) == high + low[:50]
    assert await worker.claim_ids() == low[50:]


# ---------------------------------------------------------------- beside others


Interlude = Callable[[], Coroutine[Any, Any, None]]


class Runs:
    """Runs all work of a claim by one function."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.write = self.statement = run


def interrupted(store: PostgresStore, between: Interlude) -> Runs:
    """Run work of the store, and once something else between the first look and what follows."""
    interludes = [between]

    async def run(work: Callable[..., Any], *arguments: Any) -> Any:
        answer = await store.statement(work, *arguments)
        if work is claim._read_candidates and interludes:
            await interludes.pop()()
        return answer

    return Runs(run)


async def test_a_claimer_that_lost_everything_it_saw_takes_what_comes_next(store: PostgresStore) -> None:
    quick, slow = await Worker.start(store, "quick"), await Worker.start(store, "slow")
    ids = await add_many(store, 20)

    async def others_are_quicker() -> None:
        assert await quick.claim_ids(limit=10) == ids[:10]

    claims, _ = await claim.claim_optimistically(interrupted(store, others_are_quicker), request(slow.node_id, 10))
    assert [claim.id for claim in claims] == ids[10:]


async def test_a_claimer_that_lost_a_part_fills_up_and_keeps_to_its_rooms(store: PostgresStore) -> None:
    quick, slow = await Worker.start(store, "quick"), await Worker.start(store, "slow")
    ids = await add_many(store, 20)
    others = await add_many(store, 20, kind="other")

    async def others_are_quicker() -> None:
        assert await quick.claim_ids(limit=3) == ids[:3]

    kind_requests = (KindRequest(kind=KIND, count=5), KindRequest(kind="other", count=2))
    wanted = ClaimRequest(node_id=slow.node_id, kinds=kind_requests, limit=100)
    claims, _ = await claim.claim_optimistically(interrupted(store, others_are_quicker), wanted)
    assert [claim.id for claim in claims] == ids[3:8] + others[:2]


async def test_what_changed_since_the_look_is_asked_again(store: PostgresStore) -> None:
    worker = await Worker.start(store)
    await add_many(store, 3, queue="x")

    async def pause() -> None:
        await store.pause(["x"])

    claims, _ = await claim.claim_optimistically(interrupted(store, pause), request(worker.node_id, 10))
    assert claims == []


async def test_what_is_taken_is_not_lost_when_a_later_look_fails(store: PostgresStore) -> None:
    quick, slow = await Worker.start(store, "quick"), await Worker.start(store, "slow")
    ids = await add_many(store, 10)
    looks = 0

    async def run(work: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal looks
        looks += work is claim._read_candidates
        if looks == 2:
            raise StoreError("away")
        answer = await store.statement(work, *arguments)
        if work is claim._read_candidates:
            await quick.claim_ids(limit=1)
        return answer

    claims, _ = await claim.claim_optimistically(Runs(run), request(slow.node_id, 5))
    assert [claim.id for claim in claims] == ids[1:5]


@asynccontextmanager
async def held(*ids: int) -> AsyncIterator[None]:
    """Somebody's own transaction, which holds these tasks and does not end."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"SELECT 1 FROM {DISTRIBUTED_SCHEMA}.task WHERE id = ANY ($1) FOR UPDATE", ids)
    yield
    await transaction.rollback()
    await connection.close()


async def test_a_task_that_somebody_holds_keeps_nobody_from_the_others(store: PostgresStore) -> None:
    worker = await Worker.start(store)
    ids = await add_many(store, 20)
    async with held(ids[0], ids[7]), asyncio.timeout(PATIENCE_SECONDS):
        assert await worker.claim_ids(limit=1) == [ids[1]]
        assert await worker.claim_ids() == ids[2:7] + ids[8:]
        assert await worker.claim_ids() == []
    assert await worker.claim_ids() == [ids[0], ids[7]]


async def test_a_claim_gives_up_when_everything_is_held(store: PostgresStore) -> None:
    worker = await Worker.start(store)
    ids = await add_many(store, 500)
    tries = 0

    async def run(work: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        return await store.statement(work, *arguments)

    async with held(*ids), asyncio.timeout(PATIENCE_SECONDS):
        claims, _ = await claim.claim_optimistically(Runs(run), request(worker.node_id, 500))
        assert claims == []
    assert tries < 3 * claim.MOST_REJECTIONS
    assert await worker.claim_ids() == ids


async def test_many_claimers_at_once_take_each_task_once_and_leave_none(store: PostgresStore) -> None:
    ids = await add_many(store, 1000)
    workers = [await Worker.start(store, f"node-{number}") for number in range(6)]

    async def drain(worker: Worker) -> list[int]:
        taken: list[int] = []
        while claimed := await worker.claim_ids(limit=25):
            taken += claimed
        return taken

    async with asyncio.timeout(60):
        taken = await asyncio.gather(*(drain(worker) for worker in workers))
    assert sorted(task_id for some in taken for task_id in some) == ids


async def test_two_processes_drain_together_and_each_task_runs_once(store: PostgresStore) -> None:
    ids = await add_many(store, 1000)
    command = (sys.executable, "-m", "tests.stores.drainer", store.url)
    drainers = [
        await asyncio.create_subprocess_exec(*command, name, stdin=PIPE, stdout=PIPE, cwd=ROOT)
        for name in ("one", "two")
    ]
    for drainer in drainers:
        assert drainer.stdout is not None
        assert await drainer.stdout.readline() == b"ready\n"
    answers = await asyncio.gather(*(drainer.communicate(b"\n") for drainer in drainers))
    taken = [json.loads(out) for out, _ in answers]
    assert all(taken), "one of them got nothing"
    assert sorted(task_id for some in taken for task_id in some) == ids
    assert administer(f"SELECT count(*), max(claim_no) FROM {DISTRIBUTED_SCHEMA}.history") == [(1000, 1)]
    assert administer(f"SELECT count(*) FROM {DISTRIBUTED_SCHEMA}.task") == [(0,)]


# ---------------------------------------------------------------- transactions that are made again


@asynccontextmanager
async def failures(events: str) -> AsyncIterator[None]:
    """The database undoes the next two writes, as it does when it cannot put transactions in a row."""
    administer(
        f"CREATE SEQUENCE {DISTRIBUTED_SCHEMA}.failures;"
        f"CREATE FUNCTION {DISTRIBUTED_SCHEMA}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('{DISTRIBUTED_SCHEMA}.failures') <= 2 THEN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; "
        "END IF; RETURN NULL; END $$;"
        f"CREATE TRIGGER fail AFTER {events} ON {DISTRIBUTED_SCHEMA}.task "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {DISTRIBUTED_SCHEMA}.fail()"
    )
    try:
        yield
        assert administer(f"SELECT last_value FROM {DISTRIBUTED_SCHEMA}.failures")[0][0] > 2
    finally:
        administer(
            f"DROP TRIGGER fail ON {DISTRIBUTED_SCHEMA}.task; DROP FUNCTION {DISTRIBUTED_SCHEMA}.fail; "
            f"DROP SEQUENCE {DISTRIBUTED_SCHEMA}.failures"
        )


async def test_what_the_database_undoes_is_made_again_as_a_whole(store: PostgresStore) -> None:
    worker = await Worker.start(store)
    async with failures("INSERT"):
        task_id = await add(store)
    async with failures("UPDATE"):
        claim = await worker.claim_one()
    assert (claim.id, claim.claim_no) == (task_id, 1)
    async with failures("DELETE"):
        verdict = await worker.finish(claim, SUCCEEDED)
    assert verdict.state is State.SUCCEEDED
    assert await listed(store) == [task_id]


# ---------------------------------------------------------------- a whole engine


async def test_a_worker_finds_what_came_by_way_of_a_callers_transaction(new_engine: NewEngine) -> None:
    url = distributed_url()
    producer, consumer = new_engine(url), new_engine(url, sweep=0.1)

    @consumer.task
    async def double(number: int) -> int:
        return number * 2

    async with producer, consumer, consumer.worker(), asyncio.timeout(PATIENCE_SECONDS):
        connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
        async with connection.transaction():
            (handle,) = await producer.enqueue([producer.call("double", number=21)], conn=connection)
        await connection.close()
        assert await handle.result() == 42
