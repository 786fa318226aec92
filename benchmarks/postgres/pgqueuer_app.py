"""PgQueuer: asyncpg with a pool, and batches as large as the concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.core.qm import QueueManager

from benchmarks.postgres.app import CONCURRENCY, App


class PgqueuerApp(App):
    """Its queue manager with batches of 500, and no bound of its own on what runs: a bound costs it time."""

    package = "pgqueuer"
    _queries: Any

    async def set_up(self) -> None:
        await self.connect()
        await self._queries.install()

    async def connect(self) -> None:
        self._queries = Queries(AsyncpgPoolDriver(await asyncpg.create_pool(self.url)))

    async def fill(self, numbers: Sequence[int]) -> None:
        await self._queries.enqueue(
            ["nothing"] * len(numbers), [str(number).encode() for number in numbers], [0] * len(numbers)
        )

    async def enqueue(self, number: int) -> None:
        await self._queries.enqueue("stamp", str(number).encode())

    async def schedule(self, number: int, due: datetime) -> None:
        await self._queries.enqueue("stamp", str(number).encode(), execute_after=due - datetime.now(UTC))

    async def work(self) -> None:
        await self.connect()
        manager = QueueManager(self._queries)

        async def nothing(job: Any) -> None:
            self.nothing(int(job.payload))

        async def stamp(job: Any) -> None:
            self.stamp(int(job.payload))

        manager.entrypoint("nothing")(nothing)
        manager.entrypoint("stamp")(stamp)
        await manager.run(batch_size=CONCURRENCY)


APP = PgqueuerApp
