"""One drain: runs everything that is due, here and now, the way a node would, and is over then.

Promise: it ends. Nothing in it sleeps; a task that makes itself due again and again is stopped by the limit; bodies
that wait for what cannot happen before the test goes on are told so.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from synergon.errors import SynergonError
from synergon.model.claims import ClaimRequest, Claims
from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.model.nodes import NewNode
from synergon.model.outcomes import Progress, Report
from synergon.model.requirements import NO_REQUIREMENTS, PROCESS
from synergon.node.attempts.attempt import Attempt, Services, Stop
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.timeouts import TimeoutFor, Timeouts
from synergon.node.callbacks.callbacks import Callbacks
from synergon.node.callbacks.event_feed import Subscriber
from synergon.node.callbacks.hooks import Hooks
from synergon.node.capacity.acceptance import Acceptance, acceptance_polls
from synergon.node.claims.admission import Admission
from synergon.node.claims.ledger import Ledger
from synergon.node.duty import Duty
from synergon.node.logger import NodeLogger
from synergon.node.processes.executors import LocalExecutor
from synergon.node.signals import Signals
from synergon.options.durations import LONGEST_SECONDS, microseconds
from synergon.options.settings import Settings
from synergon.stores.base import Store, TaskTransaction
from synergon.task import AnyTask
from synergon.testing.runner import Failure, TestRunner
from synergon.version import VERSION

BATCH: Final = 1000
LAST_SECONDS: Final = 2.0
"""How long bodies may take to end when a drain is broken off."""

PLENTY: Final = 2**62
"""Of every resource: what tasks use elsewhere does not matter in a test."""

running_task: Final[ContextVar[int | None]] = ContextVar("running_task", default=None)
"""The task whose body is asking, if a body is."""

_numbers: Final = itertools.count(1)


@dataclass(eq=False, slots=True)
class Wait:
    """Somebody who cannot go on before these tasks have run."""

    ids: Sequence[int]
    task_id: int | None
    over: asyncio.Future[None]


class Drain(Services):
    """A node without loops of its own, for one round of work."""

    def __init__(
        self,
        kinds: Mapping[str, AnyTask],
        store: Store,
        clock: Clock,
        settings: Settings,
        logger: logging.Logger,
        *,
        timeout_for: TimeoutFor | None,
        subscribers: Sequence[Subscriber],
        context: Context,
        limit: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.node_id = f"test-{next(_numbers)}"
        self.ran: dict[int, None] = {}
        """The tasks that were started or expired, in that order."""
        self._kinds = kinds
        self._store = store
        self._settings = settings
        self._timeout_for = timeout_for
        self._subscribers = subscribers
        self._context = context
        self._limit = limit
        self._attempts = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None
        self._waits: list[Wait] = []
        self._news = asyncio.Event()
        self._is_over = asyncio.Event()
        self._executor = ThreadExecutor(settings)
        self._build(clock, NodeLogger(logger, {"node": self.node_id}))

    def _build(self, clock: Clock, logger: NodeLogger) -> None:
        self._callbacks = Callbacks(logger)
        signals = _DrainSignals(self._news)
        names = {PROCESS, *(name for task_type in self._kinds.values() for name in task_type.requirements.cost)}
        ledger = Ledger(self._settings.concurrency, self._settings.child_processes, dict.fromkeys(names, PLENTY))
        self._admission = Admission(self._kinds, ledger, self._settings.queues)
        self._acceptance = Acceptance(
            acceptance_polls(self._store, self._admission, self._kinds, clock, logger, self._callbacks, signals)
        )
        self._hooks = hooks = Hooks(clock, logger, self._callbacks, self._subscribers)
        self._completer = Completer(
            self._store,
            clock,
            logger,
            signals,
            hooks,
        )
        self._runner = TestRunner(
            self._kinds,
            self,
            ledger,
            self._completer,
            self._executor,
            clock,
            logger,
            url=self._store.url,
            timeouts=Timeouts(self._settings.timeout, self._timeout_for, logger),
            hooks=hooks,
            signals=signals,
        )
        self._runner.node_id = self.node_id
        self._completing = Duty("completer", self._completer.step, clock, logger)

    @property
    def failures(self) -> list[Failure]:
        """The attempts whose bodies failed."""
        return self._runner.failures

    # ------------------------------------------------------------ the work

    async def run(self) -> None:
        """Run what is due, and what becomes due by that, until nothing is."""
        await self._join()
        try:
            while await self._go_on():
                await self._news.wait()
        finally:
            await self._leave()

    async def _go_on(self) -> bool:
        """Settle what has ended and start what is due; False: there is nothing left to do."""
        self._news.clear()
        await self._completer.flushed()
        has_started = await self._start_due()
        if self._broken is not None:
            raise self._broken
        await self._release_waits(is_stuck=not has_started and self._does_everybody_wait())
        return bool(self._runner.running)

    async def _start_due(self) -> bool:
        await self._wake()
        claims = await self._claim()
        for attempt in self._runner.admit(claims):
            self._start(attempt)
        self._check_limit(len(claims))
        return bool(claims)

    async def _claim(self) -> Claims:
        await self._acceptance.ask_now()
        request = self._admission.request(self.node_id, self._kinds)
        if request is None:
            return Claims()
        request = self._acceptance.narrowed(_undemanding(request))
        claims = await self._store.claim(request)
        self._acceptance.claimed(request, claims, ())
        return claims

    async def _wake(self) -> None:
        is_more_due = True
        while is_more_due:
            woken = await self._store.wake(BATCH)
            self.ran.update(dict.fromkeys(woken.expired))
            if woken.expired and self._hooks.feed.has_subscribers:
                self._hooks.feed.expired(await self._store.get(woken.expired))
            is_more_due = woken.next_in == 0

    def _start(self, attempt: Attempt) -> None:
        self.ran[attempt.claim.id] = None
        context = self._context.copy()
        context.run(running_task.set, attempt.claim.id)
        task = self.loop.create_task(self._runner.run(attempt), name="synergon-test-function", context=context)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._broken = task.exception()
        self._news.set()

    def _check_limit(self, started: int) -> None:
        self._attempts += started
        if self._attempts > self._limit:
            kinds = sorted({attempt.claim.kind for attempt in self._runner.running.values()})
            raise SynergonError(
                f"drain() has run {self._limit} attempts and more is due ({', '.join(kinds)}): does a task make itself "
                "due again without a pause? If so many are meant, give drain(limit=...)"
            )

    # ------------------------------------------------------------ whoever waits for a task meanwhile

    async def until_quiet(self, ids: Sequence[int]) -> None:
        """Return when none of these tasks is ready or running, or when nothing can go on before the caller does."""
        wait = Wait(ids, running_task.get(), self.loop.create_future())
        self._waits.append(wait)
        self.look()
        try:
            await wait.over
        finally:
            self._waits.remove(wait)

    async def until_over(self) -> None:
        """Return when the drain has ended."""
        await self._is_over.wait()

    def look(self) -> None:
        """Something has changed; safe from any thread."""
        self.loop.call_soon_threadsafe(self._news.set)

    def cancel(self, task_id: int) -> None:
        """If it runs here, ask its body to end; safe from any thread."""
        self.loop.call_soon_threadsafe(self._runner.stop_one, task_id, Stop.CANCEL)

    def _does_everybody_wait(self) -> bool:
        return self._runner.running.keys() <= {wait.task_id for wait in self._waits if not wait.over.done()}

    async def _release_waits(self, *, is_stuck: bool) -> None:
        for wait in self._waits:
            if not wait.over.done() and (is_stuck or not await self._is_moving(wait.ids)):
                wait.over.set_result(None)

    async def _is_moving(self, ids: Sequence[int]) -> bool:
        records = await self._store.get(ids)
        return any(
            record is not None and record.state in (State.WAITING, State.READY, State.RUNNING) for record in records
        )

    # ------------------------------------------------------------ begin and end

    async def _join(self) -> None:
        await self._store.register(
            NewNode(
                id=self.node_id,
                name=self.node_id,
                process=self._executor.identity,
                kinds=tuple(sorted(self._kinds)),
                queues=None,
                concurrency=self._settings.concurrency,
                lease=microseconds(LONGEST_SECONDS),  # the test's clock may be moved while bodies run
                version=VERSION,
            )
        )
        self._completing.start()

    async def _leave(self) -> None:
        """Nothing runs here any more, unless the drain is broken off: then what runs is given back."""
        self._acceptance.close()
        self._runner.stop_all(Stop.SHUTDOWN)
        if self._tasks:
            _, deaf = await asyncio.wait(self._tasks, timeout=LAST_SECONDS)
            for task in deaf:
                task.cancel()
        await self._completer.flushed()
        await self._hooks.wait_ended()
        await self._callbacks.wait_ended()
        await self._completing.stop()
        await self._store.unregister(self.node_id)
        await self._executor.close()
        await self._release_waits(is_stuck=True)
        self._is_over.set()

    # ------------------------------------------------------------ services for bodies

    def report_progress(self, attempt: Attempt, progress: Progress) -> None:
        """Store it at once: a test may look."""
        report = Report(id=attempt.claim.id, claim_no=attempt.claim.claim_no, progress=progress)
        asyncio.run_coroutine_threadsafe(self._store.report([report]), self.loop)

    async def still_owned(self, attempt: Attempt) -> bool:
        """Whether nobody wants the body to end."""
        (record,) = await self._store.get([attempt.claim.id])
        return attempt.stop is None and record is not None and not record.cancel_requested

    async def begin(self) -> TaskTransaction:
        """A store transaction, if the store had any."""
        return await self._store.begin(self._settings.lease)


class _DrainSignals(Signals):
    """Wakes the drain. Waiters need no signal: they ask the drain."""

    def __init__(self, news: asyncio.Event) -> None:
        self._news = news

    def ready(self, kinds: Iterable[str]) -> None:  # noqa: ARG002  every kind is claimed
        """Look for what is ready."""
        self._news.set()

    def due_in(self, seconds: float) -> None:  # noqa: ARG002  the drain asks the store
        """Look for what is due."""
        self._news.set()

    def permits_freed(self, kinds: Iterable[str | None]) -> None:  # noqa: ARG002  every kind is claimed
        """Look for what may start now."""
        self._news.set()

    def capacity_freed(self) -> None:
        """Look for what may start now."""
        self._news.set()


class ThreadExecutor(LocalExecutor):
    """Threads that know, like coroutines do, on behalf of which body they act."""

    async def run_in_thread(self, function: Callable[[], Any], *, is_command: bool = False) -> Any:
        """What `function` returns."""
        context = copy_context()
        return await super().run_in_thread(lambda: context.run(function), is_command=is_command)


def _undemanding(request: ClaimRequest) -> ClaimRequest:
    """The same, whatever labels tasks need."""
    return replace(
        request, kinds=tuple(replace(kind_request, requirements=NO_REQUIREMENTS) for kind_request in request.kinds)
    )
