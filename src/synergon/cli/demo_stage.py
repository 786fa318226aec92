"""What the demo's story happens on: the store, the workers, and whoever watches them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from synergon.cli import demo_app as app
from synergon.cli.demo_log import RunLog
from synergon.cli.demo_summary import Summary
from synergon.cli.demo_view import View
from synergon.cli.demo_workers import WorkerProcess
from synergon.handle import Handle
from synergon.model.lifecycle import FINAL
from synergon.model.task_records import TaskRecord
from synergon.task import Call

LOOK_SECONDS: Final = 0.1
PAGE: Final = 10_000


class Stage:
    """To be entered and left: afterwards no worker is there any more."""

    def __init__(self, folder: Path, view: View, pace: float) -> None:
        self.view = view
        self.log = RunLog(folder)
        self.workers: list[WorkerProcess] = []
        self.accepted: list[int] = []
        self.cancelled: list[int] = []
        self.pace = pace
        """How much faster than told the story is."""
        self._folder = folder
        self._url = f"sqlite:///{folder}/demo.db"
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Stage:
        app.engine.settings = app.engine.settings.changed({"url": self._url}, "the demo")
        await app.engine.connect()
        self._watching = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for worker in self.workers:
            worker.end()
        await app.engine.stop()

    async def _watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """See how things stand."""
        self.log.read()
        self.view.draw(await app.engine.store.counts(), self.log, self.workers, len(self.accepted))

    async def until(self, is_so: Callable[[], bool | Awaitable[bool]]) -> float:
        """Wait until it is so; how long that took."""
        began = time.monotonic()
        while True:
            for worker in self.workers:
                worker.check()
            await self.look()
            answer = is_so()
            if answer if isinstance(answer, bool) else await answer:
                return time.monotonic() - began
            await asyncio.sleep(0.01)

    async def pause(self, seconds: float) -> None:
        """Let the audience see something."""
        await asyncio.sleep(seconds / self.pace)

    def start_worker(self, name: str) -> WorkerProcess:
        """Start a worker process."""
        self.workers.append(WorkerProcess(name, self._url, self._folder))
        return self.workers[-1]

    async def enqueue(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        """Enqueue all of these, and write down what was accepted."""
        handles = await app.engine.enqueue(calls)
        self.accepted += [handle.id for handle in handles]
        return handles

    async def is_all_ended(self) -> bool:
        """Whether no task is left that is not final."""
        return all(state in FINAL for _, _, state in await app.engine.store.counts())

    async def reckon(self) -> Summary:
        """Gather what the three witnesses say."""
        for worker in self.workers:
            worker.stop()
        self.log.read()
        history = {record.id: record async for record in _history()}
        return Summary(set(self.accepted), set(self.cancelled), history, self.log)


async def _history() -> AsyncIterator[TaskRecord]:
    before: int | None = None
    while True:
        page = await app.engine.tasks(state=FINAL, limit=PAGE, before=before)
        for record in page:
            yield record
        before = page.next
        if before is None:
            return
