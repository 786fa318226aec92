"""Values that a store cannot read: they are replaced or left out, named once, and stop no call."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from tests.postgres_server import administer
from tests.stores.actions import ERROR, HOUR, KIND, Worker, add, demands, listed, new_node, read
from tests.stores.conftest import make_folder, make_store
from tests.support import NESTED, TOO_DEEPLY_NESTED

from synergon.model.claims import LAST_ATTEMPT, LAST_CLAIM_NO
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import Failed, Retrying, Succeeded
from synergon.model.task_statistics import KindNumbers, Numbers, StatisticsQuery
from synergon.stores.base import Store
from synergon.stores.postgres import PostgresStore
from synergon.stores.rules.statistics import start_of
from synergon.stores.sqlite import SqliteStore

BLOBS: Final = ("overrides", "meta", "progress", "errors", "ended_attempts", "payload", "process", "published")
"""Columns that SQLite keeps as bytes."""


@pytest.fixture(params=("sqlite", "postgres", "distributed"))
def unopened(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The stores with tables: no other program writes to memory."""
    with make_folder() as folder:
        yield make_store(request.param, folder)


def damage(store: Store, row_id: int | str, column: str, value: Any, table: str = "task") -> None:
    """Write a value as another program would."""
    if isinstance(store, SqliteStore):
        stored = value.encode() if column in BLOBS else value
        with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
            connection.execute(f"UPDATE synergon_{table} SET {column} = ? WHERE id = ?", (stored, row_id))
    else:
        assert isinstance(store, PostgresStore)
        administer(f"UPDATE {store.address.schema}.{table} SET {column} = %s WHERE id = %s", value, row_id)


# ---------------------------------------------------------------- claims


@pytest.mark.parametrize("text", ["{", NESTED, '{"cost": {"cpu": 0}}', '{"left_to_kind": ["colour"]}', '{"needs": 7}'])
async def test_a_task_with_unreadable_requirements_is_claimed_like_others_of_its_kind(
    store: Store, worker: Worker, text: str
) -> None:
    bad, good, other = await add(store), await add(store, requirements=demands("gpu")), await add(store, kind="other")
    damage(store, bad, "requirements", text)
    claims = await worker.claim(KIND, "other")
    assert {claim.id: claim.requirements for claim in claims} == {bad: text, other: ""}
    assert [claim.id for claim in await worker.claim(KIND, "other")] == []
    assert await listed(store, states=frozenset({State.READY})) == [good]


async def test_a_claim_number_at_its_end_stops_no_claim_and_is_a_fence(store: Store, worker: Worker) -> None:
    bad, good = await add(store), await add(store)
    damage(store, bad, "claim_no", 2**63 - 1)
    damage(store, bad, "attempts", LAST_ATTEMPT)
    claims = {claim.id: claim for claim in await worker.claim()}
    assert claims[good].claim_no == 1
    assert claims[bad].claim_no == LAST_CLAIM_NO
    assert claims[bad].attempts == LAST_ATTEMPT
    verdict = await worker.finish(claims[bad], Failed(reason=Reason.ERROR, error=ERROR))
    assert verdict.state is State.FAILED


async def test_unreadable_tags_are_left_out_of_a_claim(store: Store, worker: Worker) -> None:
    bad, good = await add(store, tags=("a",)), await add(store, tags=("b",))
    if isinstance(store, SqliteStore):  # PostgreSQL has an array
        damage(store, bad, "tags", "no JSON")
        expected: tuple[str, ...] = ()
    else:
        expected = ("a",)
    assert {claim.id: claim.tags for claim in await worker.claim()} == {bad: expected, good: ("b",)}


# ---------------------------------------------------------------- ends


async def test_a_list_of_errors_that_cannot_be_read_begins_anew(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    claim = await worker.claim_one()
    damage(store, task_id, "errors", TOO_DEEPLY_NESTED)
    await worker.finish(claim, Retrying(delay=0, error=ERROR))
    record = await read(store, task_id)
    assert [error.message for error in record.errors] == [ERROR.message]
    assert record.unreadable == ()


async def test_a_task_with_unreadable_columns_is_taken_from_an_unreadable_dead_node(
    store: Store, worker: Worker
) -> None:
    task_id = await add(store)
    await worker.claim_one()
    for column in ("errors", "ended_attempts", "progress", "meta"):
        damage(store, task_id, column, "{")
    damage(store, worker.node_id, "process", "{", table="node")
    (reaped,) = await store.reap([worker.node_id], 100)
    assert (reaped.id, reaped.state) == (task_id, State.READY)
    await store.reap([worker.node_id], 100)  # its row goes with its last task
    await store.register(new_node("other"))
    assert [node.id for node in await store.nodes()] == ["other"]
    (attempt,) = (await read(store, task_id)).ended_attempts
    assert (attempt.node_name, attempt.host) == (f"name of {worker.node_id}", None)


async def test_a_node_that_is_gone_with_an_unreadable_process_has_its_name(store: Store) -> None:
    await store.register(new_node("gone"))
    damage(store, "gone", "process", "{", table="node")
    await store.unregister("gone")
    node = (await store.node_names(["gone"]))["gone"]
    assert (node.name, node.process) == ("name of gone", None)


async def test_the_success_of_a_task_with_unreadable_columns_is_stored(store: Store, worker: Worker) -> None:
    task_id = await add(store)
    for column in ("errors", "meta", "progress"):
        damage(store, task_id, column, "{")
    assert (await worker.finish(await worker.claim_one(), Succeeded(result=b"7"))).state is State.SUCCEEDED
    record = await read(store, task_id)
    assert record.result == 7
    assert set(record.unreadable) == {"errors", "meta", "progress"}


# ---------------------------------------------------------------- records


@pytest.mark.parametrize("column", ["errors", "meta", "progress", "overrides", "payload", "requirements"])
@pytest.mark.parametrize("text", ["{", TOO_DEEPLY_NESTED], ids=["nonsense", "deep"])
async def test_a_record_names_its_unreadable_columns(store: Store, column: str, text: str) -> None:
    if column == "requirements" and text == TOO_DEEPLY_NESTED:
        text = NESTED  # they are in an index
    bad, good = await add(store), await add(store)
    damage(store, bad, column, text)
    assert (await read(store, bad)).unreadable == (column,)
    assert (await read(store, good)).unreadable == ()
    assert await listed(store) == [good, bad]


async def test_an_unreadable_value_is_logged_and_listed_once(
    store: Store, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = await add(store)
    damage(store, task_id, "errors", "{")
    for _ in range(3):
        await listed(store)
    await worker.finish(await worker.claim_one(), Failed(reason=Reason.ERROR, error=ERROR))
    (value,) = store.unreadable
    assert (value.row, value.column) == (f"task {task_id}", "errors")
    (logged,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"the column errors of task {task_id} cannot be read" in logged.getMessage()


async def test_a_node_that_cannot_be_read_is_left_out_and_named(store: Store) -> None:
    for node_id in ("bad", "good"):
        await store.register(new_node(node_id))
    damage(store, "bad", "process", '{"host": 7}', table="node")
    assert [node.id for node in await store.nodes()] == ["good"]
    assert [(value.row, value.column) for value in store.unreadable] == [("node bad", "process")]


async def test_a_status_that_cannot_be_read_is_unknown(store: Store) -> None:
    await store.register(new_node("node"))
    damage(store, "node", "published", TOO_DEEPLY_NESTED, table="node")
    (node,) = await store.nodes()
    assert not node.state.is_published
    assert [(value.row, value.column) for value in store.unreadable] == [("node node", "published")]


# ---------------------------------------------------------------- statistics


@pytest.mark.parametrize(
    "text",
    [
        "{",
        NESTED,
        '{"accepted": -1}',
        '{"accepted": 99999999999999999999999}',
        '{"wait": {"counts": [1, 2]}}',
        '{"errors": {"a": 7}}',
    ],
)
async def test_statistics_that_cannot_be_read_count_nothing_and_stop_nothing(store: Store, text: str) -> None:
    now = await store.now()
    for moment in (now, now - 5 * HOUR):
        counted = [KindNumbers(kind=kind, queue="default", numbers=Numbers(accepted=1)) for kind in ("work", "bad")]
        await store.append_statistics("left", start_of(60, moment), counted)
    damage_statistics(store, text)
    query = StatisticsQuery(age=24 * HOUR)
    assert {one.kind: one.accepted for one in await store.statistics(query)} == {"work": 2, "bad": 0}
    assert {value.column for value in store.unreadable} == {"numbers"}
    assert await store.compact_statistics(10) == 1
    assert {one.kind: one.accepted for one in await store.statistics(query)} == {"work": 2, "bad": 0}


def damage_statistics(store: Store, text: str) -> None:
    """Write into the rows of a kind as another program would."""
    if isinstance(store, SqliteStore):
        with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
            connection.execute("UPDATE synergon_statistics SET numbers = ? WHERE kind = 'bad'", (text,))
    else:
        assert isinstance(store, PostgresStore)
        administer(f"UPDATE {store.address.schema}.statistics SET numbers = %s WHERE kind = 'bad'", text)


# ---------------------------------------------------------------- what no table stores


@pytest.fixture
async def file_store() -> AsyncIterator[SqliteStore]:
    """A store in a file, where a program can write nearly anything."""
    with make_folder() as folder:
        store = SqliteStore(f"sqlite:///{folder}/tasks.db")
        await store.open()
        yield store
        await store.close()


async def test_sqlite_tables_refuse_values_of_a_wrong_type(file_store: SqliteStore) -> None:
    with closing(sqlite3.connect(file_store.path)) as connection:
        found = connection.execute("SELECT name, strict FROM pragma_table_list WHERE name LIKE 'synergon%'").fetchall()
    assert len(found) > 10
    assert {name for name, is_strict in found if not is_strict} == {"synergon_meta"}


async def test_text_that_is_not_utf_8_is_escaped(file_store: SqliteStore) -> None:
    store, worker = file_store, await Worker.start(file_store)
    bad, hidden, good = await add(store), await add(store), await add(store)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("UPDATE synergon_task SET title = CAST(x'61ff' AS TEXT) WHERE id = ?", (bad,))
        connection.execute("UPDATE synergon_task SET queue = CAST(x'61ff' AS TEXT) WHERE id = ?", (hidden,))
    assert [claim.id for claim in await worker.claim(KIND, "other")] == [bad, good]
    record = await read(store, bad)
    assert (record.title, record.unreadable) == ("a\\xff", ("title",))
    assert (await read(store, hidden)).queue == "a\\xff"
