"""One drain: runs all due tasks on a node that it steps, and ends.

A drain always ends. Nothing in it sleeps, and a limit stops tasks that make themselves due again and again. A task
function that waits for something that cannot happen before the test continues gets an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Final

from synergon.engine import Engine
from synergon.errors import SynergonError
from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.node.attempts.attempt import Stop
from synergon.node.attempts.deadlines import Timeouts
from synergon.node.logger import NodeLogger
from synergon.options.durations import LONGEST_SECONDS
from synergon.stores.base import Store
from synergon.testing.runner import Failure, running_task
from synergon.testing.stepped_node import SteppedNode, ThreadExecutor


@dataclass(eq=False, slots=True)
class Wait:
    """A caller that waits until these tasks have run. `task_id` is the task whose function is the caller, if any."""

    ids: Sequence[int]
    task_id: int | None
    over: asyncio.Future[None]


class Drain:
    """Steps a node until no task is due. Callers that wait for tasks meanwhile continue when these tasks have run, or
    cannot run."""

    def __init__(self, engine: Engine, store: Store, clock: Clock, *, context: Context, limit: int) -> None:
        self.loop: Final = asyncio.get_running_loop()
        self._store = store
        self._limit = limit
        self._waits: list[Wait] = []
        self._news = asyncio.Event()
        self._is_over = asyncio.Event()
        # The test's clock may advance while task functions run, and nothing renews the lease.
        settings = replace(engine.settings, lease=LONGEST_SECONDS)
        logger = NodeLogger(engine.logger, {"node": settings.name})
        self._node = SteppedNode(
            store,
            engine.kinds,
            settings,
            clock,
            ThreadExecutor(settings, engine.kinds.values()),
            logger,
            waiters=self,
            timeouts=Timeouts(settings.timeout, engine.timeout_for, logger),
            schedules=engine._declared_schedules,
            subscribers=engine._subscribers,
            server_subscribers=engine._server_subscribers,
        )
        self._runner = self._node.runner
        self._runner.context = context

    @property
    def ran(self) -> Iterable[int]:
        """The tasks that were started or have expired, in order."""
        return self._runner.ran

    @property
    def failures(self) -> list[Failure]:
        """The attempts that failed."""
        return self._runner.failures

    # ------------------------------------------------------------ running tasks

    async def run(self) -> None:
        """Run due tasks, and those that become due because of them, until none is left."""
        await self._node.start()
        try:
            while await self._go_on():
                await self._wait_for_news()
        finally:
            await self._node.stop(0)
            await self._release_waits(is_stuck=True)
            self._is_over.set()

    async def _go_on(self) -> bool:
        """Start due tasks, and let callers continue. False if there is nothing left to do."""
        self._news.clear()
        started = await self._node.step()
        if self._runner.broken is not None:
            raise self._runner.broken
        self._check_limit()
        await self._release_waits(is_stuck=not started and self._does_everybody_wait())
        return self._node.is_busy or self._news.is_set()

    async def _wait_for_news(self) -> None:
        waits = [asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(self._node.scheduler.woken())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _check_limit(self) -> None:
        if self._runner.admitted > self._limit:
            kinds = sorted({attempt.claim.kind for attempt in self._runner.running.values()})
            raise SynergonError(
                f"drain() has run {self._limit} attempts and more is due ({', '.join(kinds)}): does a task make itself "
                "due again without a pause? If that many are intended, give drain(limit=...)"
            )

    # ------------------------------------------------------------ waiting callers

    def recheck(self, ids: Iterable[int]) -> None:
        """Note that attempts of these tasks have ended, or that the tasks have expired."""
        self._runner.ran.update(dict.fromkeys(ids))
        self._news.set()

    async def until_quiet(self, ids: Sequence[int]) -> None:
        """Wait until none of these tasks is waiting, ready or running, or until nothing can continue before the caller
        does."""
        wait = Wait(ids, running_task.get(), self.loop.create_future())
        self._waits.append(wait)
        self.store_changed()
        try:
            await wait.over
        finally:
            self._waits.remove(wait)

    async def until_over(self) -> None:
        """Wait until the drain has ended."""
        await self._is_over.wait()

    def store_changed(self) -> None:
        """Wake the drain, because the store has changed. Safe from any thread."""
        self.loop.call_soon_threadsafe(self._news.set)

    def cancel(self, task_id: int) -> None:
        """Request the end of this task's attempt, if it runs here. Safe from any thread."""
        self.loop.call_soon_threadsafe(self._runner.stop_one, task_id, Stop.CANCEL)

    def _does_everybody_wait(self) -> bool:
        waiting = {wait.task_id for wait in self._waits if not wait.over.done()}
        return not self._node.is_settling and self._runner.running.keys() <= waiting

    async def _release_waits(self, *, is_stuck: bool) -> None:
        for wait in self._waits:
            if not wait.over.done() and (is_stuck or not await self._is_moving(wait.ids)):
                wait.over.set_result(None)

    async def _is_moving(self, ids: Sequence[int]) -> bool:
        records = await self._store.get(ids)
        return any(
            record is not None and record.state in (State.WAITING, State.READY, State.RUNNING) for record in records
        )
