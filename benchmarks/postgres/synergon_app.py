"""synergon on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import synergon.node.node  # noqa: F401  loaded before the first measurement, as in a running worker
from benchmarks.postgres.app import App
from synergon import Engine


class SynergonApp(App):
    """A node as installed; producers tell it by hints."""

    package = "synergon"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._engine = Engine(url)

        @self._engine.task(name="nothing")
        async def nothing(number: int) -> None:
            self.nothing(number)

        @self._engine.task(name="stamp")
        async def stamp(number: int) -> None:
            self.stamp(number)

        self._nothing, self._stamp = nothing, stamp

    async def set_up(self) -> None:
        async with self._engine:
            pass

    async def connect(self) -> None:
        await self._engine.connect()

    async def disconnect(self) -> None:
        await self._engine.close()

    async def fill(self, numbers: Sequence[int]) -> None:
        await self._nothing.enqueue_many((number,) for number in numbers)

    async def enqueue(self, number: int) -> None:
        await self._stamp.enqueue(number)

    async def schedule(self, number: int, due: datetime) -> None:
        await self._stamp.with_options(run_at=due).enqueue(number)

    async def work(self) -> None:
        async with self._engine, self._engine.worker():
            await asyncio.Event().wait()


APP = SynergonApp
