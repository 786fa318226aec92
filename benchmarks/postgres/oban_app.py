"""Oban: its pool, one queue, leadership as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

import oban
from oban import Oban
from oban.schema import install

from benchmarks.postgres.app import CONCURRENCY, App

QUEUE: Final = "bench"


class ObanApp(App):
    """Workers are classes that Oban finds by their names, so they know the app by a variable of the class."""

    package = "oban"
    current: ClassVar[ObanApp]
    _oban: Any

    def __init__(self, url: str) -> None:
        super().__init__(url)
        ObanApp.current = self

    async def set_up(self) -> None:
        await install(await self._pool())

    async def _pool(self) -> Any:
        return await Oban.create_pool(self.url, max_size=20)

    async def connect(self) -> None:
        self._oban = await Oban(pool=await self._pool()).start()

    async def fill(self, numbers: Sequence[int]) -> None:
        await self._oban.enqueue_many([Nothing.new({"number": number}) for number in numbers])

    async def enqueue(self, number: int) -> None:
        await self._oban.enqueue(Stamp.new({"number": number}))

    async def schedule(self, number: int, due: datetime) -> None:
        await self._oban.enqueue(Stamp.new({"number": number}, scheduled_at=due))

    async def work(self) -> None:
        async with Oban(pool=await self._pool(), queues={QUEUE: CONCURRENCY}):
            await asyncio.Event().wait()


class _Nothing:
    async def process(self, job: Any) -> None:
        ObanApp.current.nothing(job.args["number"])


class _Stamp:
    async def process(self, job: Any) -> None:
        ObanApp.current.stamp(job.args["number"])


Nothing: Any = oban.worker(queue=QUEUE)(_Nothing)
Stamp: Any = oban.worker(queue=QUEUE)(_Stamp)

APP = ObanApp
