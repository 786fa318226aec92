"""Awa: its asynchronous client, its queue storage, and COPY for many jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import awa

from benchmarks.postgres.app import CONCURRENCY, App

QUEUE: Final = "bench"
CONNECTIONS: Final = 20


@dataclass
class Nothing:
    number: int


@dataclass
class Stamp:
    number: int


class AwaApp(App):
    """Queue storage from the beginning: the faster of its two, and the one that COPY goes to."""

    package = "awa-pg"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client: Any = None

    async def set_up(self) -> None:
        await self.connect()
        await self._client.migrate()
        await self._client.install_queue_storage()
        await self._client.close()

    async def connect(self) -> None:
        # Its driver wants a name there, and goes by the folder of the socket all the same.
        url = self.url.replace("@/", "@localhost/")
        self._client = awa.AsyncClient(url, max_connections=CONNECTIONS)

    async def fill(self, numbers: Sequence[int]) -> None:
        await self._client.enqueue_many_copy([Nothing(number) for number in numbers], queue=QUEUE)

    async def enqueue(self, number: int) -> None:
        await self._client.insert(Stamp(number), queue=QUEUE)

    async def schedule(self, number: int, due: datetime) -> None:
        await self._client.insert(Stamp(number), queue=QUEUE, run_at=due)

    async def work(self) -> None:
        await self.connect()

        async def nothing(job: Any) -> None:
            self.nothing(job.args.number)

        async def stamp(job: Any) -> None:
            self.stamp(job.args.number)

        self._client.task(Nothing, queue=QUEUE)(nothing)
        self._client.task(Stamp, queue=QUEUE)(stamp)
        await self._client.start([{"name": QUEUE, "max_workers": CONCURRENCY}])
        await asyncio.Event().wait()


APP = AwaApp
