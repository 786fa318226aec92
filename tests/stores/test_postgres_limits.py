"""What is particular to limits on PostgreSQL: who meets between lock, count and write; callers' transactions."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import asyncpg
import pytest
from tests.postgres_server import administer, distributed_url, server_url, store_url
from tests.stores.actions import (
    HOUR,
    PATIENCE_SECONDS,
    Worker,
    add,
    add_many,
    check_lines,
    declare_limit,
    states,
    until,
)
from tests.stores.slow_postgres import ROOMS, SlowStore, alike, exchange, is_done, settled

from synergon.model.claims import KindRequest
from synergon.model.lifecycle import FINAL, State
from synergon.model.limits import NewLimit, NewProvider, NewServer
from synergon.model.task_records import TaskQuery
from synergon.model.tasks import NewTask, Reprioritizing
from synergon.stores.columns import Form
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres import new_tasks as rows_of_new_tasks

PROCESSES: Final = 4
PLACES: Final = 2
TASKS: Final = 14
"""Of each kind."""
LICENSED: Final = ("named", "both", "named alike")
LINES: Final = ("key:lined", "key:covered line")
PREFIX: Final = "http://web"


def url_of(profile: str) -> str:
    return store_url() if profile == "standard" else distributed_url()


@pytest.fixture(params=["standard", "distributed"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[PostgresStore]:
    """An open store of either profile, with a limit of each sort."""
    opened = PostgresStore(url_of(request.param))
    await opened.open()
    limits = [NewLimit(name=name, value=PLACES) for name in ("license", *LINES, PREFIX)]
    providers = {"gpu": ["a"], "web": [f"{PREFIX}/one", f"{PREFIX}/two"]}
    await opened.declare(
        limits,
        [
            NewProvider(name=name, servers=tuple(NewServer(address=one, capacity=PLACES) for one in addresses))
            for name, addresses in providers.items()
        ],
    )
    yield opened
    await check_lines(opened)
    await opened.close()


def new_tasks(number: int) -> list[NewTask]:
    """So many of each kind."""
    plain = [NewTask(kind=kind) for kind in ("served", *LICENSED, "covered") for _ in range(number)]
    lines = [name.removeprefix("key:") for name in LINES]
    return plain + [NewTask(kind=kind, limit_key=f"{kind}-{count % 3}") for kind in lines for count in range(number)]


# ---------------------------------------------------------------- never too many


def watch(schema: str) -> None:
    """Let the database itself write down who starts and who stops, and dawdle before somebody does.

    A start that another one's end has made room for is written after that end was committed, hence gets a later number:
    read in the order of their numbers, starts and ends tell how many ran at once.
    """
    administer(
        f"""
        DROP TABLE IF EXISTS {schema}.audit;
        CREATE TABLE {schema}.audit (
            number bigserial, change integer, kind text, limit_key text, server text, slot integer
        );
        CREATE OR REPLACE FUNCTION {schema}.watch() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'UPDATE' AND NEW.state = 'running' AND OLD.state <> 'running' THEN
                INSERT INTO {schema}.audit (change, kind, limit_key, server, slot)
                VALUES (1, NEW.kind, NEW.limit_key, NEW.server, NEW.slot);
            ELSIF OLD.state = 'running' AND (TG_OP = 'DELETE' OR NEW.state <> 'running') THEN
                INSERT INTO {schema}.audit (change, kind, limit_key, server, slot)
                VALUES (-1, OLD.kind, OLD.limit_key, OLD.server, OLD.slot);
            END IF;
            RETURN NULL;
        END $$;
        CREATE OR REPLACE FUNCTION {schema}.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_sleep(random() * 0.004);
            RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
        END $$;
        DROP TRIGGER IF EXISTS dawdle ON {schema}.task;
        CREATE TRIGGER dawdle BEFORE UPDATE OR DELETE ON {schema}.task FOR EACH ROW EXECUTE FUNCTION {schema}.dawdle();
        DROP TRIGGER IF EXISTS watch ON {schema}.task;
        CREATE TRIGGER watch AFTER UPDATE OR DELETE ON {schema}.task FOR EACH ROW EXECUTE FUNCTION {schema}.watch();
        """
    )


def largest_crowds(schema: str) -> Counter[str]:
    """The most that ever held each limit at once."""
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for change, *what in administer(
        f"SELECT change, kind, limit_key, server, slot FROM {schema}.audit ORDER BY number"
    ):
        for name in _held(*what):
            now[name] += change
            most[name] = max(most[name], now[name])
    assert not +now, "everything has ended"
    return most


def _held(kind: str, limit_key: str | None, server: str | None, slot: int | None) -> list[str]:
    held = [f"line {limit_key}"] if limit_key is not None else []
    held += [f"server {server}", f"slot {server}/{slot}"] if server is not None else []
    held += [PREFIX] if server is not None and server.startswith(PREFIX) else []
    return held + (["license"] if kind in LICENSED else [])


async def test_processes_that_meet_at_every_step_never_take_more_than_there_is_room_for(store: PostgresStore) -> None:
    schema = store.address.schema
    watch(schema)
    try:
        (last, *_) = await store.insert([NewTask(kind="last", delay=HOUR), *new_tasks(TASKS // 2)])
        command = [sys.executable, "-m", "tests.stores.slow_postgres", store.url]
        processes = [await asyncio.create_subprocess_exec(*command, f"node-{one}") for one in range(PROCESSES)]
        for task in new_tasks(TASKS // 2):  # lines grow while they are worked off
            await store.insert([task])
        await store.cancel([last.id])  # before that nobody believes that nothing is left
        async with asyncio.timeout(6 * PATIENCE_SECONDS):
            assert [await process.wait() for process in processes] == [0] * PROCESSES
        assert await is_done(store)
        crowds = largest_crowds(schema)
    finally:
        for made in (f"TRIGGER watch ON {schema}.task", f"TRIGGER dawdle ON {schema}.task", f"TABLE {schema}.audit"):
            administer(f"DROP {made}")
    assert {name: size for name, size in crowds.items() if size > (1 if name.startswith("slot") else PLACES)} == {}
    assert max(crowds.values()) == PLACES


# ---------------------------------------------------------------- never in a ring


async def test_nobody_waits_in_a_ring(store: PostgresStore) -> None:
    """Whatever two do at once, the database never has to undo one of them because they wait for each other."""
    doers = [SlowStore(store.url, is_proud=True) for _ in range(4)]
    for doer in doers:
        await doer.open()
    await store.insert(new_tasks(TASKS))
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    async with asyncio.timeout(6 * PATIENCE_SECONDS):
        await asyncio.gather(
            *(_do_things(doer, f"node-{one}", random.Random(seed + one)) for one, doer in enumerate(doers))
        )
    for doer in doers:
        await doer.close()
    await store.resume(["default"])
    for name in LINES:
        await store.set_limit(name, PLACES)


async def _do_things(store: PostgresStore, node_id: str, chance: random.Random) -> None:
    worker = await Worker.start(store, node_id)

    async def some(number: int) -> list[int]:
        live = TaskQuery(kinds=("lined",), states=frozenset({State.READY, State.WAITING, State.SCHEDULED}), limit=30)
        ids = [task.id for task in await store.list_tasks(live)]
        return chance.sample(ids, min(number, len(ids)))

    async def work() -> None:
        claims = await worker.claim_kinds(*ROOMS, limit=6)
        chance.shuffle(claims)
        await store.finish([settled(claim) for claim in claims[2:]])
        if claims:
            await exchange(worker, claims[:2], chance.choice([alike(claims[0].kind), ROOMS, ROOMS[:3]]))

    async def cancel() -> None:
        await store.cancel(await some(2))

    async def prioritize() -> None:
        await store.set_priority([Reprioritizing(id=one, priority=chance.randrange(3)) for one in await some(4)])

    async def bring_back() -> None:
        await store.retry([task.id for task in await store.list_tasks(TaskQuery(states=FINAL, limit=3))])

    things: list[Callable[[], Awaitable[Any]]] = [
        *(work, work, work, cancel, cancel, prioritize, prioritize, bring_back),
        lambda: store.insert(new_tasks(2)),
        lambda: store.insert(new_tasks(2)),
        lambda: store.set_limit(chance.choice(LINES), chance.choice([1, 2, 5, None])),
        lambda: chance.choice([store.pause, store.resume, store.resume])(["default"]),
        lambda: store.wake(100),
        lambda: store.reap([], 100),
    ]
    for _ in range(25):
        await chance.choice(things)()


# ---------------------------------------------------------------- never before a command


async def test_a_command_that_comes_while_a_claim_waits_for_its_servers_goes_first(store: PostgresStore) -> None:
    tasks = await add_many(store, 2, kind="served")
    mine: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    transaction = mine.transaction()
    await transaction.start()
    await mine.fetch(f"SELECT 1 FROM {store.address.schema}.server FOR UPDATE")
    worker = await Worker.start(store)
    commands = KindRequest(kind="stop", count=1, provider="gpu", is_command=True)
    claiming = asyncio.create_task(worker.claim_kinds(commands, KindRequest(kind="served", count=9, provider="gpu")))
    await until(somebody_waits)
    command = await add(store, kind="stop", is_command=True, provider="gpu", max_attempts=1)
    await transaction.commit()
    assert [claim.id for claim in await claiming] == [command, tasks[0]]  # and the servers have no more places
    await mine.close()


# ---------------------------------------------------------------- callers' transactions


async def test_a_callers_transaction_holds_up_nobody_and_the_alarm_puts_its_tasks_in_line(store: PostgresStore) -> None:
    await store.announce_queues(["default"])
    mine: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    transaction = mine.transaction()
    await transaction.start()
    inserted = await store.insert_on(mine, [NewTask(kind="lined", limit_key="ada") for _ in range(3)])
    assert {entry.state for entry in inserted} == {State.SCHEDULED}
    async with asyncio.timeout(PATIENCE_SECONDS):
        (other,) = await store.insert([NewTask(kind="lined", limit_key="ada")])
        await store.set_limit("key:lined", 3)
    await transaction.commit()
    woken = await store.wake(100)
    assert woken.kinds == {"lined": 3}  # the other one came later, and has lost its place to one of them
    ids = [entry.id for entry in inserted]
    assert await states(store, [*ids, other.id]) == [State.READY] * 3 + [State.WAITING]
    await mine.close()


async def test_whoever_is_replaced_in_a_callers_transaction_leaves_its_place_to_the_next(store: PostgresStore) -> None:
    await store.set_limit("key:lined", 1)
    first = await add(store, kind="lined", limit_key="ada", key="k")
    second = await add(store, kind="lined", limit_key="ada")
    mine: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    async with mine.transaction():
        later = NewTask(kind="lined", limit_key="bob", key="k", on_conflict="replace", delay=10**9)
        await store.insert_on(mine, [later])
    await mine.close()
    await store.wake(100)
    assert await states(store, [first, second]) == [State.SCHEDULED, State.READY]


# ---------------------------------------------------------------- limits that come later


async def test_a_limit_that_is_made_while_a_task_comes_in_counts_that_task(store: PostgresStore) -> None:
    """Whoever finds no limit lets everybody in; whoever makes one waits for those, and puts their lines in order."""
    mine: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    transaction = mine.transaction()
    await transaction.start()
    await mine.fetch(store._sql["find_no_limit"])
    tasks = [NewTask(kind="fresh", limit_key="ada") for _ in range(3)]
    new, parameters = rows_of_new_tasks._rows_of(tasks, Form.BOUND, first=2)
    await mine.fetch(store._sql["insert_bound"].replace("{new}", new), "ready", *parameters)
    declaring = asyncio.create_task(declare_limit(store, "key:fresh", 1))
    await until(somebody_waits)
    assert not declaring.done()
    await transaction.commit()
    await declaring
    await mine.close()
    counts = {state: number for (_, kind, state), number in (await store.counts()).items() if kind == "fresh"}
    assert counts == {State.READY: 1, State.WAITING: 2}


async def test_who_declares_the_first_limit_of_a_line_waits_for_others_before_that(store: PostgresStore) -> None:
    """A transaction holds the lock of one line and finds no limit for another; limits of both are declared."""
    mine: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    transaction = mine.transaction()
    await transaction.start()
    await mine.fetch(store._sql["lock_limits"], ["key:lined", "key:newer"])
    limits = [NewLimit(name="key:newer", value=1), NewLimit(name="key:lined", value=PLACES + 1)]
    proud = SlowStore(store.url, is_proud=True)
    await proud.open()
    declaring = asyncio.create_task(proud.declare(limits, []))
    await until(somebody_waits)
    await mine.fetch(store._sql["find_no_limit"])  # a deadlock if the other one has this lock and waits for the first
    await transaction.commit()
    await declaring
    await proud.close()
    await mine.close()
    assert {limit.name: limit.value for limit in await store.limits()}.items() >= {
        "key:newer": 1,
        "key:lined": 3,
    }.items()


async def somebody_waits() -> bool:
    return bool(administer("SELECT 1 FROM pg_locks WHERE NOT granted"))


async def test_more_lines_than_fit_into_one_statement_are_put_in_order(store: PostgresStore) -> None:
    tasks = [NewTask(kind="lined", limit_key=f"key-{number % 700}") for number in range(2100)]
    inserted = await store.insert(tasks)
    assert [entry.state for entry in inserted] == [State.READY] * 1400 + [State.WAITING] * 700
    worker = await Worker.start(store)
    claims = await worker.claim("lined", limit=2000, kind_request=2000)
    assert len(claims) == 1400
    await store.finish([settled(claim) for claim in claims])
    assert await states(store, [entry.id for entry in inserted[1400:]]) == [State.READY] * 700


async def test_a_line_with_many_places_is_filled_at_once(store: PostgresStore) -> None:
    ids = await add_many(store, 100, kind="lined", limit_key="ada")
    assert await states(store, ids) == [State.READY] * 2 + [State.WAITING] * 98
    await store.set_limit("key:lined", 60)
    assert await states(store, ids) == [State.READY] * 60 + [State.WAITING] * 40
