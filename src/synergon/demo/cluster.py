"""DemoCluster: the database and the worker processes of the demo, and the loop that updates its view."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from synergon.call import Call
from synergon.demo import app
from synergon.demo.summary import Summary
from synergon.demo.task_log import TaskLog
from synergon.demo.view import View
from synergon.demo.worker_processes import WorkerProcess
from synergon.handle import Handle
from synergon.model.lifecycle import FINAL
from synergon.model.task_records import TaskRecord

REFRESH_SECONDS: Final = 0.1
POLL_SECONDS: Final = 0.01
PAGE: Final = 10_000


class DemoCluster:
    """A context manager for the database and the workers. At its end, all worker processes have ended."""

    def __init__(self, folder: Path, view: View, speed: float) -> None:
        self.view = view
        self.log: Final = TaskLog(folder)
        self.workers: list[WorkerProcess] = []
        self.accepted: list[int] = []
        self.cancelled: list[int] = []
        self.speed = speed
        """Divides the pauses of the scenario."""
        self._folder = folder
        self._url = f"sqlite:///{folder}/demo.db"
        self._refresh_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> DemoCluster:
        app.engine.settings = app.engine.settings.changed({"url": self._url}, "the demo")
        await app.engine.connect()
        self._refresh_task = asyncio.ensure_future(self._refresh_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._refresh_task is not None:
            self._refresh_task.cancel()
        for worker in self.workers:
            worker.close()
        await app.engine.stop()

    async def _refresh_forever(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Read the log and the counts, and update the view."""
        self.log.read()
        self.view.draw(await app.engine._store.counts(), self.log, self.workers, len(self.accepted))

    async def wait_until(self, condition: Callable[[], bool | Awaitable[bool]]) -> float:
        """Wait until the condition is true. Returns how many seconds that took."""
        started_at = time.monotonic()
        while True:
            for worker in self.workers:
                worker.check()
            await self.refresh()
            answer = condition()
            if answer if isinstance(answer, bool) else await answer:
                return time.monotonic() - started_at
            await asyncio.sleep(POLL_SECONDS)

    async def pause(self, seconds: float) -> None:
        """Pause, so that the viewer can read."""
        await asyncio.sleep(seconds / self.speed)

    def start_worker(self, name: str) -> WorkerProcess:
        """Start a worker process."""
        self.workers.append(WorkerProcess(name, self._url, self._folder))
        return self.workers[-1]

    async def enqueue(self, calls: Iterable[Call[Any]]) -> list[Handle[Any]]:
        """Enqueue calls, and store the returned ids for the summary."""
        handles = await app.engine.enqueue(calls)
        self.accepted += [handle.id for handle in handles]
        return handles

    async def have_all_ended(self) -> bool:
        """Whether every task is in a final state."""
        return all(state in FINAL for _, _, state in await app.engine._store.counts())

    async def stop_and_summarise(self) -> Summary:
        """Stop the workers and collect the accepted ids, the history and the tasks' log."""
        for worker in self.workers:
            worker.stop()
        self.log.read()
        history = {record.id: record async for record in _history()}
        return Summary(set(self.accepted), set(self.cancelled), history, self.log)


async def _history() -> AsyncIterator[TaskRecord]:
    after: str | None = None
    while True:
        page = await app.engine.tasks(state=FINAL, limit=PAGE, after=after)
        for record in page:
            yield record
        after = page.next
        if after is None:
            return
