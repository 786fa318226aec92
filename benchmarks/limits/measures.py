"""The subjects: limits on SQLite, on PostgreSQL and in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.figures import Measured
from benchmarks.limits import customers, one_at_a_time, raised, servers, tenants
from benchmarks.postgres.server import running_server
from benchmarks.sizes import Sizes
from benchmarks.synergon_bench import SYNCED, synchronous
from synergon import Engine


def sqlite(folder: Path, sizes: Sizes) -> Measured:
    """On new SQLite files."""
    return _measure("limits", f"sqlite:///{folder}/limits.db", sizes)


def postgres(folder: Path, sizes: Sizes) -> Measured:
    """On a new PostgreSQL server."""
    with running_server(folder) as url:
        return _measure("pg_limits", url, sizes)


def memory(_: Path, sizes: Sizes) -> Measured:
    """In memory there are no processes to share with: only servers and tenants."""
    measured = Measured()
    asyncio.run(servers.measure("memory", "memory://", sizes.tasks, measured))
    asyncio.run(tenants.measure("memory", "memory://", sizes.tenant_tasks, measured))
    return measured


def one_at_a_time_on_sqlite(folder: Path, sizes: Sizes) -> Measured:
    """The limit of one, on a new SQLite file."""
    measured = Measured()
    asyncio.run(one_at_a_time.measure("limits", f"sqlite:///{folder}/one.db", sizes.one_at_a_time, measured))
    return measured


def one_at_a_time_on_postgres(folder: Path, sizes: Sizes) -> Measured:
    """The limit of one, on a new PostgreSQL server."""
    measured = Measured()
    with running_server(folder) as url:
        asyncio.run(one_at_a_time.measure("pg_limits", url, sizes.one_at_a_time, measured))
    return measured


def _measure(subject: str, url: str, sizes: Sizes) -> Measured:
    measured = Measured()
    customers.measure(subject, url, sizes, measured)
    asyncio.run(servers.measure(subject, url, sizes.server_tasks, measured))
    asyncio.run(tenants.measure(subject, url, sizes.tenant_tasks, measured))
    asyncio.run(raised.measure(subject, url, sizes.raises, measured))
    asyncio.run(_check(subject, url, measured))
    return measured


async def _check(subject: str, url: str, measured: Measured) -> None:
    async with Engine(url) as engine:
        found = await synchronous(engine)
    measured.check(f"{subject}: every commit is synced", expected=True, found=found in SYNCED)
