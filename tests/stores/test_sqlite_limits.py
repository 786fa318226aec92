"""What is particular to limits on SQLite: processes that share a file, callers' transactions, odd keys, the schema."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

import pytest
from tests.stores.actions import HOUR, Worker, add, add_many, check_lines, declare_limit, states
from tests.stores.conftest import make_folder

from synergon.model.claims import KindRequest
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import State
from synergon.model.limits import NewLimit, NewRate
from synergon.model.outcomes import FencedOutcome, Succeeded
from synergon.model.tasks import Cutoffs, NewTask
from synergon.stores.sqlite import SqliteStore

PROCESSES: Final = 3
TASKS: Final = 300
PLACES: Final = 2


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    """An open file."""
    with make_folder() as folder:
        opened = SqliteStore(f"sqlite:///{folder}/tasks.db")
        await opened.open()
        yield opened
        await check_lines(opened)
        await opened.close()


async def _drain(url: str, node_id: str, kind_request: KindRequest) -> None:
    """Take what there is and finish it one by one, until nothing is left."""
    store = SqliteStore(url)
    await store.open()
    worker = await Worker.start(store, node_id)
    while await _live(store):
        for claim in await worker.claim_kinds(kind_request):
            await worker.finish(claim, Succeeded())
    await store.close()


async def _live(store: SqliteStore) -> bool:
    return any(not state.is_final for _, _, state in await store.counts())


def watch(store: SqliteStore) -> None:
    """Let the database itself write down how many run whenever one starts."""
    connection = sqlite3.connect(store.path)
    connection.execute("CREATE TABLE crowd (size INTEGER)")
    connection.execute(
        "CREATE TRIGGER watch AFTER UPDATE OF state ON synergon_task WHEN new.state = 'running' "
        "BEGIN INSERT INTO crowd SELECT count(*) FROM synergon_task WHERE state = 'running'; END"
    )
    connection.close()


def largest_crowd(store: SqliteStore) -> int:
    """The most that ever ran at once."""
    connection = sqlite3.connect(store.path)
    (size,) = connection.execute("SELECT max(size) FROM crowd").fetchone()
    connection.close()
    return int(size)


def drain(url: str, node_id: str, kind_request: KindRequest) -> None:
    """A process of its own."""
    asyncio.run(_drain(url, node_id, kind_request))


@pytest.mark.parametrize("limit", ["license", "key:work"])
async def test_processes_that_share_a_file_never_take_more_than_there_is_room_for(
    store: SqliteStore, limit: str
) -> None:
    is_line = limit.startswith("key:")
    await declare_limit(store, limit, PLACES)
    watch(store)
    await add_many(store, TASKS, limit_key="ada" if is_line else None)
    kind_request = KindRequest(kind="work", count=50, limits=() if is_line else (limit,))
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        draining = [
            loop.run_in_executor(pool, drain, store.url, f"node-{number}", kind_request) for number in range(PROCESSES)
        ]
        await asyncio.gather(*draining)
    assert largest_crowd(store) == PLACES
    assert await store.counts() == {("default", "work", State.SUCCEEDED): TASKS}


async def test_a_callers_transaction_puts_its_line_in_order_at_once(store: SqliteStore) -> None:
    await declare_limit(store, "key:work", 1)
    mine = sqlite3.connect(store.path)
    inserted = await store.insert_on(mine, [NewTask(kind="work", limit_key="ada") for _ in range(3)])
    assert [entry.state for entry in inserted] == [State.READY, State.WAITING, State.WAITING]
    mine.commit()
    mine.close()
    assert await states(store, [entry.id for entry in inserted]) == [entry.state for entry in inserted]


async def test_any_text_may_be_a_limit_key(store: SqliteStore) -> None:
    await declare_limit(store, "key:work", 1)
    worker = await Worker.start(store)
    for key in ("", "a\0b", "a", '"', "[1]", "ä\n😀"):
        first, second = await add_many(store, 2, limit_key=key)
        (claim,) = await worker.claim()
        assert (claim.id, claim.limit_key) == (first, key)
        await worker.finish(claim, Succeeded())
        assert await states(store, [second]) == [State.READY]
        await store.cancel([second])


async def test_a_line_with_many_places_is_filled_at_once(store: SqliteStore) -> None:
    ids = await add_many(store, 100, limit_key="ada")
    await declare_limit(store, "key:work", 0)
    assert await states(store, ids) == [State.WAITING] * 100
    await store.set_limit("key:work", 60)
    assert await states(store, ids) == [State.READY] * 60 + [State.WAITING] * 40


async def test_more_lines_than_fit_into_one_statement_are_put_in_order(store: SqliteStore) -> None:
    await declare_limit(store, "key:work", 1)
    tasks = [NewTask(kind="work", limit_key=f"key-{number % 700}") for number in range(1400)]
    inserted = await store.insert(tasks)
    assert [entry.state for entry in inserted] == [State.READY] * 700 + [State.WAITING] * 700
    worker = await Worker.start(store)
    claims = await worker.claim()
    assert len(claims) == 700
    await store.finish([FencedOutcome(id=one.id, claim_no=one.claim_no, outcome=Succeeded()) for one in claims])
    assert await states(store, [entry.id for entry in inserted[700:]]) == [State.READY] * 700


async def test_pruning_forgets_rates_that_are_past_and_keeps_the_others(store: SqliteStore) -> None:
    await store.declare([NewLimit(name="key:work", value=None, rate=NewRate(per=HOUR))], [])
    await store.declare([NewLimit(name="key:quick", value=None, rate=NewRate(per=1))], [])
    worker = await Worker.start(store)
    await add(store, limit_key="ada")
    await add(store, kind="quick", limit_key="ada")
    await worker.claim_kinds(*(KindRequest(kind=kind, count=1, is_rated=True) for kind in ("work", "quick")))
    await asyncio.sleep(0.01)
    await store.prune(Cutoffs(), 100)
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("SELECT kind FROM synergon_rate").fetchall() == [("work",)]
    connection.close()


@pytest.mark.parametrize(
    "change",
    [
        "state = 'waiting'",
        "holds = 'license'",
        "slot = 1",
        "is_dependent = 1",
        "is_command = 2",
        "state = 'running', node_id = 'node', slot = 1",
        "state = 'running', node_id = 'node', reserved_by = 'node', reserved_until = 1",
        "reserved_by = 'node'",
        "state = 'lost'",
    ],
)
async def test_the_schema_refuses_rows_that_contradict_themselves(store: SqliteStore, change: str) -> None:
    await add(store)
    connection = sqlite3.connect(store.path)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(f"UPDATE synergon_task SET {change}")
    connection.close()


async def test_the_schema_refuses_two_tasks_in_one_place(store: SqliteStore) -> None:
    await add_many(store, 2)
    connection = sqlite3.connect(store.path)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(
            "UPDATE synergon_task SET state = 'running', node_id = 'node', holds = '', provider = 'gpu', "
            "server = 'gpu-1', slot = 0"
        )
    connection.close()


async def test_pruning_forgets_a_group_when_nothing_of_it_is_left(store: SqliteStore) -> None:
    group = await store.open_group(NewGroup(name="night", tasks=(NewTask(kind="work"),), then=NewTask(kind="work")))
    await store.cancel([group.insertions[0].id])
    everything = Cutoffs(succeeded=-HOUR, failed=-HOUR, cancelled=-HOUR)
    await store.prune(everything, 100)
    assert await store.groups([group.id]) != [None]  # what follows it lives
    assert group.then is not None
    await store.cancel([group.then.id])
    await store.prune(everything, 100)
    assert await store.groups([group.id]) == [None]
