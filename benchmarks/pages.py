"""The pages of the dashboard over a large history: how long the server takes for each, and what five viewers cost a
node that drains beside them."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from multiprocessing.synchronize import Event
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import asyncpg
import httpx2 as httpx

from benchmarks import isolation
from benchmarks.figures import Measured
from benchmarks.postgres.server import running_server
from benchmarks.sizes import Sizes
from synergon import Engine, Retry, State
from synergon.cli.bench import CHUNK, CONCURRENCY
from synergon.model.lifecycle import LIVE
from synergon.model.task_statistics import BOUNDS, Histogram, KindNumbers, Numbers
from synergon.web.access import Role, User, everybody
from synergon.web.dashboard.app import make_dashboard

KINDS: Final = 200
QUEUES: Final = 10
SCHEDULES: Final = 20
COPIES: Final = 100
"""How often the tasks that were run are in the history."""
FLOW_STEPS: Final = 29
DAY_SECONDS: Final = 86_400
MOMENTS: Final = ("run_at", "enqueued_at", "started_at", "finished_at")
VIEWED: Final = {"overview": 5.0, "queues": 5.0, "tasks": 2.0, "failed_tasks": 2.0, "nodes": 2.0}
"""The pages that viewers keep open, and how often each asks for changes, in seconds."""
ROUNDS: Final = 3
"""How often a drain is measured with viewers, and without. They alternate, so that what else the machine does concerns
both."""
AUTH: Final = everybody(User("viewer", Role.ADMIN))
MINUTE: Final = 60_000_000
PAGES: Final = {
    "overview": "/",
    "overview_of_a_week": "/?since=7d",
    "tasks": "/tasks",
    "failed_tasks": "/tasks?state=failed",
    "tasks_of_a_kind": "/tasks?kind=kind-7",
    "tasks_with_a_tag": "/tasks?tag=rare",
    "task": "/tasks/{failed}",
    "waiting_task": "/tasks/{waiting}",
    "flows": "/flows",
    "flow": "/flows/{flow}",
    "schedules": "/schedules",
    "queues": "/queues",
    "nodes": "/nodes",
    "providers": "/providers",
    "audit": "/audit",
}


def sqlite(folder: Path, sizes: Sizes) -> Measured:
    """On a new SQLite file."""
    return _measure("pages", f"sqlite:///{folder}/pages.db", sizes)


def postgres(folder: Path, sizes: Sizes) -> Measured:
    """On a PostgreSQL server."""
    with running_server(folder) as url:
        return _measure("pg_pages", url, sizes)


def _measure(subject: str, url: str, sizes: Sizes) -> Measured:
    """Fill, look, drain; each in a process of its own."""
    measured = Measured()
    ids, ended = isolation.in_new_process(_fill, url, sizes)
    measured.check(f"{subject}: the history has its tasks", expected=sizes.history + FLOW_STEPS + 1, found=ended)
    for name, seconds in isolation.in_new_process(_time_pages, url, ids, sizes.page_samples).items():
        measured.add(f"{subject}.{name}.p95", "ms", sorted(seconds)[int(len(seconds) * 0.95)] * 1000)
    drains: dict[bool, list[float]] = {True: [], False: []}
    shares: list[float] = []
    for has_viewers in [False, True] * ROUNDS:
        with _viewers(url, ids, shares) if has_viewers else nullcontext():
            drains[has_viewers].append(isolation.in_new_process(_drain, url, sizes.viewed_tasks))
    measured.add(f"{subject}.drain_without_viewers", "/s", max(drains[False]))
    measured.add(f"{subject}.drain_with_viewers", "/s", max(drains[True]))
    measured.add(f"{subject}.viewers_to_without", "×", max(drains[True]) / max(drains[False]))
    measured.add(f"{subject}.viewers_cpu_in_a_second", "ms", min(shares) * 1000)
    return measured


# ---------------------------------------------------------------- the store


def _quiet() -> logging.Logger:
    """A logger that does not report the failures of tasks."""
    logger = logging.getLogger("benchmarks.pages")
    logger.setLevel(logging.CRITICAL)
    return logger


def make_engine(url: str) -> Engine:
    """The engine of an application with many kinds."""
    engine = Engine(url, concurrency=CONCURRENCY, logger=_quiet())
    for number in range(KINDS):

        async def work(order: int) -> int:
            if order % 100 == 0:
                raise LookupError(f"there is no order {order}")
            return order

        title = f"Order {{order}} of kind {number}"
        name, queue = f"kind-{number}", f"queue-{number % QUEUES}"
        engine.task(name=name, queue=queue, title=title, retry=Retry(attempts=1))(work)
    engine.provider("models", servers={f"http://gpu-{number}:8000": 4 for number in range(SCHEDULES)})
    for number in range(SCHEDULES):
        engine.limit(f"limit-{number}", 10)
        engine.schedule(f"schedule {number}", engine.call(f"kind-{number}", 1), every="1h")
    return engine


def _fill(url: str, sizes: Sizes) -> tuple[dict[str, int], int]:
    async def fill_all() -> tuple[dict[str, int], int]:
        engine = make_engine(url)
        async with engine:
            await run_tasks(engine, sizes.history // COPIES)
        await multiply(url, COPIES)
        ids = await fill(engine, sizes.waiting)
        async with engine:
            await _write_past(engine)
            counts = await engine.counts()
        return ids, counts[State.SUCCEEDED] + counts[State.FAILED]

    return asyncio.run(fill_all())


async def fill(engine: Engine, waiting: int) -> dict[str, int]:
    """Run a flow and a few tasks, and leave others waiting in paused queues. Returns the ids of some of them."""
    async with engine:
        flow = engine.flow("report")
        first = flow.add(engine.call("kind-1", 1))
        for number in range(2, 1 + FLOW_STEPS):
            flow.add(engine.call("kind-2", number).with_options(after=[first]))
        run = await flow.enqueue()
        failed = (await engine.enqueue([engine.call("kind-0", 0)]))[0]
        await run_tasks(engine, 0)
        for number in range(QUEUES):
            await engine.pause(f"queue-{number}")
        await _enqueue(engine, waiting)
        (last,) = await engine.tasks(state=State.READY, limit=1)
        return {"failed": failed.id, "waiting": last.id, "flow": run.id}


async def run_tasks(engine: Engine, tasks: int) -> None:
    """Enqueue tasks of all kinds, and run all that are there."""
    await _enqueue(engine, tasks)
    async with engine.worker():
        while sum(number for state, number in (await engine.counts()).items() if state in LIVE):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def multiply(url: str, copies: int) -> None:
    """Copy all tasks of the history, with new ids. They have ended in the last day, in the order of their ids."""
    if url.startswith("sqlite"):
        multiply_in_sqlite(url.removeprefix("sqlite:///"), copies)
        return
    connection = await asyncpg.connect(url)
    try:
        await multiply_in_postgres(connection, "synergon", copies)
    finally:
        await connection.close()


def multiply_in_sqlite(path: str, copies: int) -> None:
    """`multiply`, in a file that no engine has open."""
    with closing(sqlite3.connect(path)) as file, file:
        names = [name for _, name, *_ in file.execute("PRAGMA table_info(synergon_history)")]
        ((last,),) = file.execute("SELECT last_id FROM synergon_sequence")
        for statement in _copy("synergon_", names, last, copies, "{} - {}000000"):
            file.execute(statement)
        file.execute("UPDATE synergon_sequence SET last_id = ?", (last * copies,))


async def multiply_in_postgres(connection: asyncpg.Connection[Any], schema: str, copies: int) -> None:
    """`multiply`, in a schema of PostgreSQL."""
    columns = "SELECT attname FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0"
    rows = await connection.fetch(columns, f"{schema}.history")
    sequence = await connection.fetchval("SELECT pg_get_serial_sequence($1, 'id')", f"{schema}.task")
    last = await connection.fetchval(f"SELECT last_value FROM {sequence}")
    for statement in _copy(f"{schema}.", [row[0] for row in rows], last, copies, "{} - interval '{} s'"):
        await connection.execute(statement)
    await connection.execute("SELECT setval($1::text::regclass, $2)", sequence, last * copies)
    await connection.execute("ANALYZE")


def _copy(prefix: str, names: Sequence[str], last: int, copies: int, earlier: str) -> Iterator[str]:
    """The statements that copy the history. `earlier` is an expression for a moment that is some seconds earlier."""
    table, step = f"{prefix}history", DAY_SECONDS // copies
    for number in range(1, copies):
        values = [
            f"id + {last * number}"
            if name == "id"
            else earlier.format(name, step * (copies - number))
            if name in MOMENTS
            else name
            for name in names
        ]
        yield (
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} FROM {table} "
            f"WHERE id <= {last} AND group_id IS NULL"
        )
    moved = ", ".join(f"{name} = {earlier.format(name, step * copies)}" for name in MOMENTS)
    yield f"UPDATE {table} SET {moved} WHERE id <= {last}"
    yield f"UPDATE {prefix}tally SET count = count * {copies}"


async def _enqueue(engine: Engine, tasks: int) -> None:
    for first in range(0, tasks, CHUNK):
        numbers = range(first, min(first + CHUNK, tasks))
        await engine.enqueue(_call(engine, number) for number in numbers)


def _call(engine: Engine, number: int) -> Any:
    call = engine.call(f"kind-{number % KINDS}", number)
    return call.with_options(tags=["rare"]) if number % 1009 == 0 else call


async def _write_past(engine: Engine) -> None:
    """Statistics of all kinds: of each minute of the last two hours, and of each hour of the last week."""
    now = await engine._store.now()
    minutes = [*range(1, 120), *range(120, 7 * 24 * 60, 60)]
    run = Histogram(counts=(0, 40, 10, *([0] * (len(BOUNDS) - 2))), seconds=0.5)
    numbers = Numbers(accepted=50, started=50, ended={"succeeded": 49, "exhausted": 1}, wait=run, run=run)
    for minute in minutes:
        at = now - now % MINUTE - minute * MINUTE
        counted = [
            KindNumbers(kind=f"kind-{number}", queue=f"queue-{number % QUEUES}", numbers=numbers)
            for number in range(KINDS)
        ]
        await engine._store.append_statistics("worker of the past", at, counted)
    while await engine._store.compact_statistics(100) == 100:
        pass


# ---------------------------------------------------------------- times of pages


def _time_pages(url: str, ids: dict[str, int], samples: int) -> dict[str, list[float]]:
    return asyncio.run(time_pages(make_engine(url), ids, samples))


async def time_pages(engine: Engine, ids: dict[str, int], samples: int) -> dict[str, list[float]]:
    """The seconds that the server took for each page, in turn. Its queues are paused, and a worker is there to be
    seen."""
    seconds: dict[str, list[float]] = {name: [] for name in PAGES}
    async with engine.worker(), _client(engine) as http:
        for turn in range(samples + 1):
            for name, path in PAGES.items():
                began = perf_counter()
                page = await http.get(path.format(**ids))
                if turn:  # the first turn is a warm-up
                    seconds[name].append(perf_counter() - began)
                page.raise_for_status()
    return seconds


def _client(engine: Engine) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=make_dashboard(engine, auth=AUTH))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)


# ---------------------------------------------------------------- viewers


@contextmanager
def _viewers(url: str, ids: dict[str, int], shares: list[float]) -> Iterator[None]:
    """Viewers in a process of their own, as `synergon dashboard` is one. Adds the share of a processor that it took."""
    context = multiprocessing.get_context("spawn")
    has_begun, is_over, share = context.Event(), context.Event(), context.SimpleQueue()
    process = context.Process(target=_view, args=(url, ids, has_begun, is_over, share))
    process.start()
    try:
        assert has_begun.wait(120), "the viewers see their pages"
        yield
    finally:
        is_over.set()
        process.join()
    assert process.exitcode == 0, "every page was shown"
    shares.append(share.get())


def _view(url: str, ids: dict[str, int], has_begun: Event, is_over: Event, share: Any) -> None:
    async def view() -> None:
        engine = make_engine(url)
        async with engine, _client(engine) as http:
            for name in VIEWED:
                await http.get(PAGES[name].format(**ids))
            has_begun.set()
            began, cpu = perf_counter(), process_time()
            await asyncio.gather(*(_look(http, name, ids, is_over) for name in VIEWED))
            share.put((process_time() - cpu) / (perf_counter() - began))

    asyncio.run(view())


async def _look(http: httpx.AsyncClient, name: str, ids: dict[str, int], is_over: Event) -> None:
    """Ask for a page as its script does."""
    headers, asked = {"X-Fragment": "1"}, 0.0
    while not is_over.is_set():
        if perf_counter() - asked >= VIEWED[name]:
            asked = perf_counter()
            page = await http.get(PAGES[name].format(**ids), headers=headers)
            assert page.status_code in (200, 304), page.text
            headers["If-None-Match"] = page.headers["etag"]
        await asyncio.sleep(0.1)


def _drain(url: str, tasks: int) -> float:
    return asyncio.run(drain(url, tasks))


async def drain(url: str, tasks: int) -> float:
    """Tasks per second of a node that has nothing else to do, from its start to the end of the last function."""
    engine = Engine(url, concurrency=CONCURRENCY, logger=_quiet())
    ended = 0
    all_ended = asyncio.Event()

    @engine.task(queue="drained")
    async def drained(number: int) -> int:
        nonlocal ended
        ended += 1
        if ended == tasks:
            all_ended.set()
        return number

    async with engine:
        for first in range(0, tasks, CHUNK):
            await drained.enqueue_many((number,) for number in range(first, min(first + CHUNK, tasks)))
        began = perf_counter()
        async with engine.worker():
            await all_ended.wait()
            return tasks / (perf_counter() - began)
