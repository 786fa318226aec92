"""What the pages of the dashboard read does not grow with the history: no statement scans it. SQLite counts the steps
of its machine, PostgreSQL the rows that were read; neither depends on time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx2 as httpx
from benchmarks import pages
from tests.postgres_server import SCHEMA, administer, server_url, store_url
from tests.support import until

from synergon import Engine, State
from synergon.web.dashboard.app import make_dashboard

TASKS: Final = 600
COPIES: Final = 20
FILTERS: Final = {"tasks_of_a_kind", "tasks_with_a_tag"}
"""Pages whose filter has no index. A listing walks over the tasks then, up to a bound, and says where it stopped."""
PATHS: Final = {name: path for name, path in pages.PAGES.items() if name not in FILTERS}


async def run_and_fill(url: str) -> dict[str, int]:
    """A small history, waiting tasks, and the ids of some."""
    engine = pages.make_engine(url)
    async with engine:
        await pages.run_tasks(engine, TASKS)
    return await pages.fill(engine, waiting=200)


@asynccontextmanager
async def opened(engine: Engine) -> AsyncIterator[tuple[httpx.AsyncClient, Engine]]:
    """A client of the pages, and the engine that reads for them."""
    app = make_dashboard(engine, auth=pages.AUTH)
    transport = httpx.ASGITransport(app=app)
    async with engine, httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http, await app.state.dashboard.api.backend.engine()


async def steps_of_pages(url: str, ids: dict[str, int]) -> dict[str, int]:
    """How many hundreds of steps SQLite takes for each page."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    found: dict[str, int] = {}
    async with opened(pages.make_engine(url)) as (http, engine):
        store: Any = engine._store
        store._reader.connection.set_progress_handler(count, 100)
        for name, path in PATHS.items():
            steps = 0
            (await http.get(path.format(**ids))).raise_for_status()
            found[name] = steps
    return found


async def test_pages_on_sqlite_take_as_many_steps_over_a_long_history_as_over_a_short_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    ids = await run_and_fill(url)
    short = await steps_of_pages(url, ids)
    pages.multiply_in_sqlite(f"{tmp_path}/tasks.db", COPIES)
    long = await steps_of_pages(url, ids)
    assert sum(short.values()) > 100, "the steps are counted"
    scanned = TASKS * COPIES // 100  # a scan takes several steps for each row, and this counts hundreds of them
    slow = {name: (short[name], long[name]) for name in PATHS if long[name] > short[name] * 1.2 + scanned / 4}
    assert slow == {}


async def test_pages_on_postgresql_read_few_rows_of_a_long_history() -> None:
    url = store_url()
    ids = await run_and_fill(url)
    connection = await asyncpg.connect(server_url())
    try:
        others = await connection.fetchval(BACKENDS)

        async def have_reported() -> bool:  # a connection reports what it has read when it ends, at the latest
            return bool(await connection.fetchval(BACKENDS) <= others)

        copier = await asyncpg.connect(server_url())
        await pages.multiply_in_postgres(copier, SCHEMA, COPIES)
        await copier.close()
        await until(have_reported)
        administer("SELECT pg_stat_reset()")
        engine = pages.make_engine(url)
        async with opened(engine) as (http, reader):
            assert (await reader.counts())[State.SUCCEEDED] > TASKS * (COPIES - 1)
            for path in PATHS.values():
                (await http.get(path.format(**ids))).raise_for_status()
        await until(have_reported)
        read = {row["relname"]: row["rows"] for row in await connection.fetch(ROWS_READ, SCHEMA)}
    finally:
        await connection.close()
    assert read["task"] > 100, "the rows are counted"
    assert read["history"] < TASKS * 2, f"of {TASKS * COPIES}: {read}"


BACKENDS: Final = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
ROWS_READ: Final = """
SELECT relname, seq_tup_read + coalesce(sum(idx.idx_tup_read), 0) AS rows
FROM pg_stat_user_tables AS stored LEFT JOIN pg_stat_user_indexes AS idx USING (relid, schemaname, relname)
WHERE schemaname = $1 AND relname IN ('task', 'history') GROUP BY relname, seq_tup_read
"""
