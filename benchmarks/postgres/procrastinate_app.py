"""Procrastinate: psycopg with a pool, as many tasks at once as connections."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import procrastinate

from benchmarks.postgres.app import App

CONCURRENCY: Final = 30
CONNECTIONS: Final = 32


class ProcrastinateApp(App):
    """A worker that is told by NOTIFY. It takes and ends jobs one by one: more at once than connections is no use."""

    package = "procrastinate"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        connector = procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=CONNECTIONS)
        self._app = procrastinate.App(connector=connector)

        async def nothing(number: int) -> None:
            self.nothing(number)

        async def stamp(number: int) -> None:
            self.stamp(number)

        self._nothing: Any = self._app.task(name="nothing")(nothing)
        self._stamp: Any = self._app.task(name="stamp")(stamp)

    async def set_up(self) -> None:
        await self.connect()
        await self._app.schema_manager.apply_schema_async()
        await self._app.close_async()

    async def connect(self) -> None:
        await self._app.open_async()

    async def fill(self, numbers: Sequence[int]) -> None:
        await self._nothing.batch_defer_async(*({"number": number} for number in numbers))

    async def enqueue(self, number: int) -> None:
        await self._stamp.defer_async(number=number)

    async def schedule(self, number: int, due: datetime) -> None:
        await self._stamp.configure(schedule_at=due).defer_async(number=number)

    async def work(self) -> None:
        await self.connect()
        await self._app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)


APP = ProcrastinateApp
