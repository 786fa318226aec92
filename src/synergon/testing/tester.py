"""The tester of an engine: runs its tasks in a private store for the duration of a block."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from contextvars import copy_context
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from synergon.engine import Engine
from synergon.errors import OptionError, SynergonError
from synergon.model.task_records import TaskRecord
from synergon.options.options import check_count
from synergon.task import AnyTask
from synergon.testing.clock import ManualClock
from synergon.testing.drain import Drain
from synergon.testing.runner import running_task
from synergon.testing.standby import PromptWaiters, StandbyNode, why_not_ended
from synergon.testing.store import TestStore
from synergon.testing.substitution import Substitution, TestPorts, check_engine, close_sync, original_ports
from synergon.testing.wanted import Wanted, kind_of, listing, wanted
from synergon.worker import enter_lifespans

MOST_ATTEMPTS: Final = 10_000
"""How many attempts one drain runs at most. More means that tasks enqueue each other without end."""


class Tester:
    """The tester of a block, which `testing.memory()` and `testing.inline()` return.

    During the block, the engine uses a private store with its own clock, whatever its URL. The code under test may
    connect, disconnect and start workers as usual, but only the tester runs tasks.
    """

    __test__ = False  # not a test class, despite its name

    def __init__(self, engine: Engine, *, is_inline: bool, now: datetime | None) -> None:
        self.engine: Final = check_engine(engine)
        self.clock: Final = ManualClock(now)
        self._is_inline = is_inline
        self._store = TestStore(self.clock, self)
        self._context = copy_context()
        self._drains: dict[asyncio.AbstractEventLoop, Drain] = {}
        self._substitution: Substitution | None = None
        """The substitution of this block. None outside of the block."""

    def __repr__(self) -> str:
        return f"<Tester of {self.engine!r}>"

    # ------------------------------------------------------------ running tasks

    async def drain(self, *, raise_errors: bool = False, limit: int = MOST_ATTEMPTS) -> list[TaskRecord]:
        """Run all due tasks, and those that become due because of them. Returns the tasks that ran or expired, in their
        current state.

        Failures are in the records. With `raise_errors`, the first error is raised after all tasks have run, as the
        task function raised it. A task function that raised Snooze, RetryAfter, Discard or Cancel has not failed.
        """
        self._reject_unless_open()
        if running_task.get() is not None:
            raise SynergonError("drain() inside a task function would wait for that function; let the test call it")
        check_count(limit, "limit")
        while (other := self._drain_here()) is not None:
            await other.until_over()
        drain = await self._run_due(limit)
        records = [record for record in await self._store.get(list(drain.ran)) if record is not None]
        if raise_errors and drain.failures:
            raise self._first_error(drain, records)
        return records

    def drain_sync(self, *, raise_errors: bool = False, limit: int = MOST_ATTEMPTS) -> list[TaskRecord]:
        """`drain` for tests without an event loop."""
        self._reject_unless_open()
        return self.engine.sync_bridge.call(lambda: self.drain(raise_errors=raise_errors, limit=limit))

    async def _run_due(self, limit: int = MOST_ATTEMPTS) -> Drain:
        drain = Drain(self.engine, self._store, self.clock, context=self._context, limit=limit)
        self._drains[drain.loop] = drain
        try:
            async with AsyncExitStack() as stack:
                self.engine.import_modules()
                await enter_lifespans(self.engine, stack)
                await drain.run()
        finally:
            del self._drains[drain.loop]
            self.engine._waiters.wake_followers()
        return drain

    @staticmethod
    def _first_error(drain: Drain, records: Sequence[TaskRecord]) -> Exception:
        first, *others = drain.failures
        error = first.to_exception(next(record for record in records if record.id == first.attempt.claim.id))
        if others:
            error.add_note("\n".join(["and these failed too:", *(f"  {failure}" for failure in others)]))
        return error

    def _drain_here(self) -> Drain | None:
        return self._drains.get(asyncio.get_running_loop())

    # ------------------------------------------------------------ calls of the store and the waiters

    async def note_inserted(self, ids: Sequence[int]) -> None:
        """Wake the drains, because the store has these new tasks. With `inline`, run them, too."""
        self.store_changed()
        if self._is_inline:
            await self.run_or_join(ids)

    async def run_or_join(self, ids: Sequence[int]) -> None:
        """Run these tasks, in the drain that runs here or in a new one. Returns when they have run, as far as they can
        now."""
        drain = self._drain_here()
        if drain is None:
            await self._run_due()
        else:
            await drain.until_quiet(ids)

    def store_changed(self) -> None:
        """Wake the drains, because the store has changed."""
        for drain in list(self._drains.values()):
            drain.store_changed()

    def cancel_running(self, task_id: int) -> None:
        """Request the end of this task's attempt, if it runs in a drain."""
        for drain in list(self._drains.values()):
            drain.cancel(task_id)

    # ------------------------------------------------------------ assertions

    def enqueued(self, task: AnyTask | str | None = None) -> list[TaskRecord]:
        """The tasks that were enqueued during the block, of one kind or all, in order. Includes children and final
        tasks."""
        kind = None if task is None else kind_of(self.engine, task)
        return [record for record in self._store.records() if kind in (None, record.kind)]

    def assert_enqueued(
        self, task: AnyTask | str, /, *args: Any, queue: str | None = None, count: int | None = None, **kwargs: Any
    ) -> list[TaskRecord]:
        """Assert that a task with these arguments was enqueued during the block, or `count` such tasks. Returns them.

        Arguments are given as for the task itself. Those that are left out may have any value. (An argument that is
        named `queue` or `count` must be given by position.)
        """
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise OptionError(f"count must be a whole number from 0 on, got {count!r}")
        meant = wanted(self.engine, task, args, kwargs, queue)
        found = self._matching(meant)
        if count is None and not found:
            raise self._misfit(meant, f"{meant} was not enqueued")
        if count is not None and len(found) != count:
            raise self._misfit(meant, f"{meant} was enqueued {_times(len(found))}, not {_times(count)}")
        return found

    def assert_not_enqueued(self, task: AnyTask | str, /, *args: Any, queue: str | None = None, **kwargs: Any) -> None:
        """Assert that no task with these arguments was enqueued during the block."""
        meant = wanted(self.engine, task, args, kwargs, queue)
        found = self._matching(meant)
        if found:
            raise self._misfit(meant, f"{meant} was enqueued {_times(len(found))}")

    def _matching(self, meant: Wanted) -> list[TaskRecord]:
        return [record for record in self._store.records() if meant.fits(record)]

    def _misfit(self, meant: Wanted, what: str) -> AssertionError:
        return AssertionError(f"{what}; {listing(self._store.records(), meant.kind, self.clock.now)}")

    # ------------------------------------------------------------ begin and end

    async def __aenter__(self) -> Self:
        self._take_over()
        try:
            await self.engine.connect()
        except BaseException:
            self._give_back()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.engine.stop()
        finally:
            self._give_back()

    def __enter__(self) -> Self:
        """Begin a block of a test without an event loop. The engine connects when the code under test needs it."""
        self._take_over()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            close_sync(self.engine, is_failed=error is not None)
        finally:
            self._give_back()

    def _take_over(self) -> None:
        engine = self.engine
        if self._substitution is not None:
            raise SynergonError(f"{self!r} has begun already; make another one for a block inside of it")
        ports = TestPorts(
            original=original_ports(engine),
            clock=self.clock,
            make_store=lambda _url: self._store,
            make_transport=lambda _settings: None,
            make_node=functools.partial(StandbyNode, tester=self),
            make_waiters=functools.partial(PromptWaiters, tester=self),
        )
        self._substitution = Substitution(engine, ports)
        self._store.declare_now(list(engine._declared_schedules.values()))

    def _give_back(self) -> None:
        if self._substitution is not None:
            self._substitution.end()
        self._substitution = None

    def _reject_unless_open(self) -> None:
        if self._substitution is None:
            raise SynergonError("drain() works inside the block of testing.memory() or testing.inline() only")

    def why_not_ended(self, record: TaskRecord) -> str:
        """Why a task has not ended although all due tasks have run."""
        due_in = (record.run_at - self.clock.now).total_seconds()
        return why_not_ended(record, due_in_seconds=due_in, is_known=record.kind in self.engine.kinds)


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
