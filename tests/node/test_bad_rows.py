"""One bad row harms only itself: whatever stands in one column of one row, everything else goes on.

The matrix is made from the schema: each column of each table, with each kind of bad value (`bad_rows`). A table that is
added later is in it, and needs only a row in the fixture `database`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Container, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace
from tests.node.bad_rows import BadRows, Cell, Database, PostgresDatabase, Row, SqliteDatabase
from tests.postgres_server import store_url
from tests.stores.actions import HOUR, new_node
from tests.stores.conftest import make_folder
from tests.support import PATIENCE_SECONDS, all_tasks, until

from synergon import Batch, Context, Engine, Rate, State
from synergon.doctor.diagnosis import diagnose
from synergon.errors import PayloadError
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Cutoffs, Reprioritizing, Rescheduling
from synergon.stores.base import Store

JSON_COLUMNS: Final = (
    "overrides",
    "tags",
    "meta",
    "progress",
    "errors",
    "ended_attempts",
    "requirements",
    "payload",
    "result",
)
GROUP_COLUMNS: Final = ("kind", "queue", "requirements")
"""A claim finds ready tasks by these."""
NAMED_ELSEWHERE: Final = ("process", "published", "value", "definition")
"""JSON in other tables than those of tasks."""
IS_NESTED_READABLE: Final = sys.version_info >= (3, 13)
UNREADABLE_ANYTHING: Final = ("nonsense", "not UTF-8", *(() if IS_NESTED_READABLE else ("deeply nested",)))
"""What cannot be read from columns whose JSON may be anything."""
UNREADABLE_JSON: Final = (
    *UNREADABLE_ANYTHING,
    "with a NUL",
    *(() if IS_NESTED_READABLE else ("a deeply nested field",)),
)


class App:
    """An engine with kinds of every sort."""

    def __init__(self, url: str, name: str) -> None:
        self.logger = logging.getLogger(f"bad rows.{name}")
        self.engine = Engine(url, logger=self.logger, sweep=1, lease=6)
        engine = self.engine

        @engine.task(name="work")
        async def work(number: int = 0) -> int:
            return number

        @engine.task(name="other")
        async def other(ctx: Context, number: int) -> int:
            return number + len(ctx.tags)

        # So slow that the stored rate of a key queue lies in the future, where no pruner deletes it.
        @engine.task(name="keyed", limit_by="{customer}", limit=1, rate=Rate(10_000, per="7d", burst=10_000))
        async def keyed(customer: str) -> str:
            return customer

        @engine.task(name="batched", batch=Batch(size=2, wait="1h", by="{item}"))
        async def batched(names: list[str]) -> list[str]:
            return names

        engine.limit("licence", 2)

        @engine.task(name="limited", limits=["licence"])
        async def limited() -> None: ...

        engine.limit("metered", rate=Rate(10**9, per="1s", burst=10**9))

        @engine.task(name="fair", fair_by="{tenant}", limits=["metered"])
        async def fair(tenant: str) -> str:
            return tenant

        pool = engine.provider("gpu", servers={"http://gpu1:8000": 2, "http://gpu2:8000": 1})

        @pool.task(name="served")
        async def served() -> None: ...

        engine.every("1h", name="declared")(work)

        self.work, self.other, self.keyed, self.limited, self.served = work, other, keyed, limited, served
        self.batched, self.fair = batched, fair

    async def run_good_tasks(self) -> None:
        """Tasks of every kind are stored, run and end, and their waiters are told."""
        handles: list[Any] = [
            *await self.work.enqueue_many([(number,) for number in range(5)]),
            await self.work.with_options(delay=0.01, tags=["a"], meta={"b": 1}).enqueue(5),
            await self.other.with_options(tags=["one"], key="key").enqueue(6),
            await self.keyed.enqueue("alice"),
            await self.keyed.enqueue("alice"),
            *await self.batched.enqueue_many([("dave",), ("dave",)]),
            *await self.fair.enqueue_many([("erin",), ("frank",)]),
            await self.work.with_options(after=[await self.other.enqueue(7)]).enqueue(8),
            await self.limited.enqueue(),
            await self.served.enqueue(),
        ]
        group = await self.engine.group("pair", [self.work.call(1), self.keyed.call("bob")], then=self.work.call(2))
        async with asyncio.timeout(PATIENCE_SECONDS):
            results = [await handle.result() for handle in handles]
            await group.wait()
            assert group.then is not None
            await group.then.result()
        assert results[:14] == [0, 1, 2, 3, 4, 5, 7, "alice", "alice", "dave", "dave", "erin", "frank", 8]


@pytest.fixture(params=("sqlite", "postgres"))
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of each store that has tables."""
    with make_folder() as folder:
        yield f"sqlite:///{folder}/tasks.db" if request.param == "sqlite" else store_url()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """The tables after some work, with a row in each."""
    app = App(url, "before")
    async with app.engine as engine:
        async with engine.worker():
            await app.run_good_tasks()
            failing = await app.work.with_options(tags=["x"], meta={"y": 1}).enqueue(7)
            await failing.result()
            held = await app.work.with_options(key="sample", unique_for="1h").enqueue(10)
            await held.result()
            await (await engine.group("sample", [app.work.call(11)])).wait()
        await engine.pause("paused")
        await engine._store.prune(Cutoffs(succeeded=0), 1)
        await app.work.with_options(tags=["x"], meta={"y": 1}).enqueue(8)
        await app.keyed.enqueue_many([("carol",), ("carol",)])
        await app.batched.enqueue_many([("carol",), ("erin",), ("erin",)])
        await app.fair.enqueue_many([("erin",), ("carol",)])
        await engine._store.register(replace(new_node("sample", HOUR), kinds=("of no task",)))
        assert await engine._store.recount(0, 0)
        await engine._store.declare_retention(Cutoffs(succeeded=HOUR), "sample")
        await engine.schedules.create("sample", app.work.call(9), every="1h")
    is_file = url.startswith("sqlite")
    opened: Database = SqliteDatabase(Path(url.removeprefix("sqlite:///"))) if is_file else PostgresDatabase()
    with closing(opened):
        yield opened


async def test_every_table_has_a_row_of_which_bad_copies_can_be_made(database: Database) -> None:
    empty = [table for table in database.tables if not database.rows(table)]
    assert empty == [], "the fixture `database` makes a row in each table"


def table_of(database: Database, *names: str) -> str:
    """The table with one of these names, with or without a prefix."""
    return next(table for table in database.tables if table.removeprefix("synergon_") in names)


OF_TENANTS: Final = ("kind", "queue", "priority", "requirements", "units", "fair_key", "fair_step", "fair_tag")
OF_BATCHES: Final = ("payload", "claim_no", "node_id", "limit_key", "batch_id", "requirements", "ended_attempts")


def task_samples(database: Database) -> Iterator[tuple[Row, Container[str] | None]]:
    """Good rows of live tasks, and the columns in which copies of them get bad values (None: all). They are ready,
    running on a node that is gone, waiting, of a tenant, and of a batch that ran on such a node."""
    table, gone = table_of(database, "task"), {"state": "running", "node_id": "gone", "claim_no": 1, "attempts": 1}
    (ready,) = database.rows(table, "kind = 'work' AND state = 'ready'")
    yield ready, None
    yield ready | gone, None
    yield database.rows(table, "kind = 'keyed' AND state = 'waiting'")[0], None
    yield database.rows(table, "kind = 'fair' AND state = 'ready'")[0], OF_TENANTS
    (leader,) = database.rows(table, "kind = 'batched' AND state = 'ready'")
    yield leader | gone | {"batch_id": leader["id"]}, OF_BATCHES


def must_be_named(cell: Cell) -> bool:
    """Whether the value of a task cannot be read, however it is used."""
    if cell.column in ("payload", "result"):
        return cell.badness in UNREADABLE_ANYTHING
    if cell.column == "tags" and not cell.table.startswith("synergon_"):
        return False  # PostgreSQL has an array of texts
    if cell.column in JSON_COLUMNS:
        return cell.badness in UNREADABLE_JSON
    return cell.badness == "not UTF-8" and cell.column in ("kind", "queue", "key", "title", "target")


def is_never_run(cell: Cell, record: TaskRecord) -> bool:
    """Whether the function of a live task must not run: how, where or under which claim cannot be read."""
    if record.state.is_final and cell.table.endswith("task") and record.kind == "work":
        if cell.column in ("overrides", "requirements"):
            return cell.badness in UNREADABLE_JSON and cell.badness != "not UTF-8"
        return (cell.column, cell.badness) == ("claim_no", "the greatest")
    return False


async def check_reads(engine: Engine) -> dict[int, TaskRecord]:
    """Everything that reads the whole database; the tasks by id."""
    records = {record.id: record for record in await all_tasks(engine)}
    for state in State:
        await engine.tasks(state=state)
    await engine.tasks(tag="x", kind="work", limit=10)
    await engine.counts()
    await engine.status()
    await engine.flows.list()
    await engine.queues()
    await engine.nodes()
    await engine.limits()
    await engine.servers()
    await engine.audit(1000)
    await engine.schedules.list()
    groups = {record.group_id for record in records.values() if record.group_id is not None}
    await engine._store.groups(sorted(groups))
    return records


async def check_events(engine: Engine, expected: set[int]) -> None:
    """Every end comes once."""
    stream = engine.events()
    async with asyncio.timeout(PATIENCE_SECONDS):
        found = [(await anext(stream)).task_id for _ in expected]
    await stream.aclose()
    assert set(found) == expected


async def check_operations(store: Store, ids: list[int]) -> None:
    """Operators can cancel, retry and delete all tasks, and old ones are pruned."""
    await store.cancel(ids, "bad")
    await store.retry(ids)
    await store.reschedule([Rescheduling(id=task_id, delay=HOUR) for task_id in ids])
    await store.set_priority([Reprioritizing(id=task_id, priority=3) for task_id in ids])
    await store.cancel(ids, "again")
    await store.delete(ids[::2])
    while await store.prune(Cutoffs(succeeded=0, failed=0, cancelled=0), 1000):
        pass
    await store.wake(1000)
    await store.reap([], 1000)


async def problems_of(url: str) -> list[str]:
    """What `synergon doctor` finds."""
    app = App(url, "doctor")
    found = await diagnose(app.engine, app=None, chosen_by="test")
    return [finding.problem for finding in found.problems]


def named_in(texts: list[str]) -> Counter[tuple[str, str]]:
    """How often each unreadable value is named: row and column."""
    found: Counter[tuple[str, str]] = Counter()
    for text in texts:
        if "cannot be read" in text and text.startswith("the column "):
            column, _, row = text.removeprefix("the column ").partition(" cannot be read")[0].partition(" of ")
            found[row, column] += 1
    return found


async def unsettled(engine: Engine, bad: BadRows) -> dict[int, TaskRecord]:
    """The tasks that are ready or running and have not ended yet, without those that no claim can find: they are of an
    unknown kind or queue, or of one that is not UTF-8."""
    hidden = {cell.key for cell in bad.cells if cell.badness == "not UTF-8" and cell.column in GROUP_COLUMNS}
    queues = {queue.name for queue in await engine.queues()}
    return {
        record.id: record
        for record in await all_tasks(engine)
        if record.state in (State.READY, State.RUNNING)
        and record.id not in hidden
        and record.kind in engine.kinds
        and record.queue in queues
    }


async def settle(engine: Engine, bad: BadRows) -> None:
    """Wait until all tasks that a claim can find have ended. However slow the machine is, one after the other ends."""
    stuck = await unsettled(engine, bad)
    number = len(stuck)

    async def has_fewer() -> bool:
        nonlocal stuck
        await asyncio.sleep(0.05)  # to read all these rows keeps the worker from running, on this event loop
        stuck = await unsettled(engine, bad)
        return len(stuck) < number

    while stuck:
        number = len(stuck)
        try:
            await until(has_fewer)
        except TimeoutError:
            cells = [str(cell) for cell in bad.cells if cell.key in stuck]
            raise AssertionError(f"these tasks have not ended: {cells} {list(stuck)}") from None


async def check(url: str, bad: BadRows, caplog: pytest.LogCaptureFixture, good: tuple[int, ...] = ()) -> None:
    """Everything else goes on, the bad rows are named, and end or are shown."""
    caplog.set_level(logging.WARNING)
    app = App(url, "after")
    async with app.engine as engine:
        async with engine.worker():
            await app.run_good_tasks()
            await settle(engine, bad)
            await app.run_good_tasks()
        records = await check_reads(engine)
        for task_id in good:
            assert records[task_id].state is State.SUCCEEDED
        # PostgreSQL delivers ends by the numbers of their transactions; one from the future is not delivered yet.
        later = {cell.key for cell in bad.cells if cell.column == "ended_in" and cell.badness == "the greatest"}
        await check_events(engine, {record.id for record in records.values() if record.state.is_final} - later)
        for cell in {cell.column: cell for cell in bad.cells if cell.key in records}.values():
            await engine.explain(cell.key)
        gone = [str(cell.key) for cell in bad.cells if cell.table.endswith("past_node")]
        assert set(await engine._store.node_names(gone)) <= set(gone)
    logged = named_in([record.getMessage() for record in caplog.records if record.name == "bad rows.after"])
    diagnosed = named_in(await problems_of(url))
    for name, times in logged.items():
        assert times == 1, f"{name} was named {times} times"
    for cell in bad.cells:
        if cell.column in NAMED_ELSEWHERE and cell.badness in UNREADABLE_ANYTHING:
            is_named = any(row.endswith(str(cell.key)) and column == cell.column for row, column in logged)
            assert is_named, f"{cell} is not named in the log"
    tasks = [cell for cell in bad.cells if cell.table.removeprefix("synergon_") in ("task", "history")]
    for cell in tasks:
        assert cell.key in records, f"{cell} is not listed"
        if is_never_run(cell, records[cell.key]):
            assert records[cell.key].state is State.FAILED, f"{cell} has not failed"
            error = records[cell.key].error
            assert error is not None
            assert "cannot" in error.message, f"{cell} failed with {error}"
        if must_be_named(cell):
            name = (f"task {cell.key}", cell.column)
            assert logged[name] == 1, f"{cell} is not named in the log"
            is_cured = cell.column in ("errors", "ended_attempts") and bool(getattr(records[cell.key], cell.column))
            assert diagnosed[name] == 1 or is_cured, f"{cell} is not named by doctor"
            assert cell.column in records[cell.key].unreadable or is_cured, f"{cell} is not shown as unreadable"
    async with App(url, "operator").engine as engine:
        await check_operations(engine._store, [cell.key for cell in tasks if cell.key in records])


async def test_bad_rows_of_live_tasks(url: str, database: Database, caplog: pytest.LogCaptureFixture) -> None:
    bad = BadRows(database)
    table = table_of(database, "task")
    good: list[int] = []
    for sample, columns in task_samples(database):
        good.append(bad.copy(table, sample))
        bad.write(table, sample, columns)
    await check(url, bad, caplog, tuple(good))


async def test_bad_rows_of_final_tasks(url: str, database: Database, caplog: pytest.LogCaptureFixture) -> None:
    bad = BadRows(database)
    table = table_of(database, "history")
    bad.write(table, database.rows(table, "kind = 'work'")[0])
    await check(url, bad, caplog)


async def test_bad_rows_of_nodes(url: str, database: Database, caplog: pytest.LogCaptureFixture) -> None:
    bad = BadRows(database)
    table = table_of(database, "node")
    bad.write(table, database.rows(table, "id = 'sample'")[0])
    await check(url, bad, caplog)


async def test_bad_rows_of_schedules(url: str, database: Database, caplog: pytest.LogCaptureFixture) -> None:
    bad = BadRows(database)
    table = table_of(database, "schedule")
    (later,) = database.rows(table, "name = 'sample'")
    due = later | {"next_at": later["created_at"], "due_at": later["created_at"]}
    for sample in (due, later):
        bad.write(table, sample)
    bad.write(table, due | {"name": "paused", "paused_at": later["created_at"]})
    assert database.insert(table, due | {"name": "sound"})
    await check(url, bad, caplog)
    async with App(url, "schedules").engine as engine:
        records = {record.name: record for record in await engine.schedules.list()}
        assert records["sound"].times_fired == 1
        assert records["sound"].unreadable == ()
        for cell in [cell for cell in bad.cells if cell.column != "name"]:
            is_unreadable = cell.column == "definition" and cell.badness in UNREADABLE_JSON
            assert cell.column in records[cell.key].unreadable or not is_unreadable, cell
            await engine.schedules.delete(cell.key)


SEPARATE: Final = frozenset({"task", "history", "node", "schedule"})
"""The tables whose bad rows have a test of their own."""

ONE_ROW: Final = frozenset({"sequence", "lock_row", "meta", "live_count"})
"""Tables whose rows the engine reads by names that it knows, so that it never reads a copy with another key. The test
`test_bad_values_in_rows_that_are_in_use` writes into the rows themselves."""


async def test_bad_rows_of_other_tables(url: str, database: Database, caplog: pytest.LogCaptureFixture) -> None:
    bad = BadRows(database)
    for table in database.tables:
        if table.removeprefix("synergon_") not in SEPARATE | ONE_ROW:
            rows = database.rows(table)
            assert rows, f"{table} is empty"
            bad.write(table, rows[0])
    await check(url, bad, caplog)


async def test_waiters_of_succeeded_tasks_with_bad_columns_are_told(url: str, database: Database) -> None:
    bad = BadRows(database)
    table = table_of(database, "history")
    bad.write(table, database.rows(table, "kind = 'work'")[0])
    app = App(url, "waiters")
    async with app.engine as engine, asyncio.timeout(PATIENCE_SECONDS):
        for cell in bad.cells:
            record = await engine.wait(cell.key)
            assert record.state.is_final
            if "result" in record.unreadable:
                with pytest.raises(PayloadError, match="cannot be read"):
                    engine.result_of(record, None)
            elif cell.column not in ("state", "result"):
                assert isinstance(engine.result_of(record, None), int), cell


async def test_bad_values_in_rows_that_are_in_use(url: str, database: Database) -> None:
    app = App(url, "in use")
    written = 0
    async with app.engine as engine, engine.worker():
        for table in database.tables:
            if table.removeprefix("synergon_") in ("task", "history", "node", "queue"):
                continue
            for cell, value in cells_in_use(database, table):
                with database.kept(table) as is_kept:
                    if is_kept and database.update(table, cell.column, value):
                        written += 1
                        async with asyncio.timeout(PATIENCE_SECONDS):
                            handles = [await app.work.enqueue(1), await app.other.enqueue(2)]
                            assert [await handle.result() for handle in handles] == [1, 2], cell
        await app.run_good_tasks()
    assert written > 20


def cells_in_use(database: Database, table: str) -> Iterator[tuple[Cell, Any]]:
    """The bad values for the columns of a table that are not its key."""
    for column in database.columns(table):
        if column.name != database.key(table):
            for badness, value in database.bad_values(column):
                yield Cell(table, column.name, badness, None), value
