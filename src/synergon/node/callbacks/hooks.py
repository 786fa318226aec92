"""Lifecycle hooks: users' functions that are called when an attempt starts and when its task has ended.

Promise: on the node that ran it, after it is stored, at most once. A hook never holds anything up and never changes
anything: what it raises is logged, and one that will not end is given up, as all callbacks are.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from synergon.errors import SynergonError
from synergon.model.claims import Claim
from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.model.outcomes import Failed, FencedOutcome, Succeeded, Verdict
from synergon.model.record import Record
from synergon.model.task_records import TaskRecord
from synergon.node.attempts.attempt import Attempt
from synergon.node.callbacks.callbacks import Callbacks, awaited
from synergon.node.callbacks.event_feed import EventFeed, Subscriber
from synergon.options.function_names import name_of

LONGEST_SECONDS: Final = 30.0
LAST_SECONDS: Final = 5.0
"""How long hooks may take when the node stops."""
THREADS: Final = 16


What = Callable[[], tuple[Any, ...]]
Fetch = Callable[[Sequence[int]], Awaitable[list[TaskRecord | None]]]


class HookTask(Record, frozen=True, kw_only=True):
    """The task as a hook sees it."""

    id: int
    kind: str
    attempt: int
    arguments: dict[str, Any]
    """As the body got them."""


class Hooks:
    """Calls the hooks of kinds and their providers; for kinds without any it costs nothing."""

    def __init__(
        self,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        callbacks: Callbacks,
        subscribers: Sequence[Subscriber] = (),
    ) -> None:
        self._clock = clock
        self._logger = logger
        self._callbacks = callbacks
        self.feed = EventFeed(subscribers, clock, logger, callbacks)
        self._open: dict[tuple[int, int], Attempt] = {}
        """Attempts whose ends somebody wants to hear of."""
        self._calls: set[asyncio.Task[None]] = set()
        self._threads = asyncio.Semaphore(THREADS)

    def started(self, attempt: Attempt) -> None:
        """Its body is about to run."""
        if not attempt.task_type.hooks:
            return
        attempt.started_at = self._clock.monotonic()
        self._open[attempt.claim.id, attempt.claim.claim_no] = attempt
        self._call(attempt, "on_start", lambda: (attempt.server,))

    def settled(self, settlement: FencedOutcome, verdict: Verdict) -> None:
        """The store has its outcome; a stale one is nobody's to tell of."""
        self.feed.settled(settlement, verdict)
        if not self._open:
            return
        attempt = self._open.pop((settlement.id, settlement.claim_no), None)
        if attempt is None or verdict.state is None or not State(verdict.state).is_final:
            return
        seconds = self._clock.monotonic() - attempt.started_at
        match settlement.outcome:
            case Succeeded(result=result) if verdict.state == State.SUCCEEDED:
                decode = attempt.task_type.signature.decode_result
                self._call(attempt, "on_success", lambda: (seconds, decode(result or b"null")))
            case Failed(error=error) if verdict.state == State.FAILED:
                self._call(attempt, "on_failure", lambda: (seconds, error))
        self._call(attempt, "on_complete", lambda: (seconds,))

    def expired(self, ids: list[int], fetch: Fetch) -> None:
        """These have ended without having been run; what they were stands in the store."""
        if self.feed.is_heard:
            self._do("the news of expired tasks", self._tell_expired(ids, fetch))

    async def _tell_expired(self, ids: list[int], fetch: Fetch) -> None:
        with contextlib.suppress(SynergonError):  # events may be missed, nothing else is
            self.feed.ended_unrun(await fetch(ids))

    async def ended(self) -> None:
        """Return when no hook is under way, or all have had the time for it."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=LAST_SECONDS)
        await self.feed.ended()

    def _call(self, attempt: Attempt, name: str, what: What) -> None:
        """What to call it with is found out where nothing else suffers: a result need not fit its annotation."""
        for hook_name, hook in attempt.task_type.hooks:
            if hook_name == name:
                known_as = f"the hook {name} of {attempt.claim.kind} ({name_of(hook)})"
                self._do(known_as, self._guarded(attempt, name, known_as, hook, what))

    def _do(self, known_as: str, work: Coroutine[Any, Any, None]) -> None:
        call = self._callbacks.begin(known_as, work)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _guarded(self, attempt: Attempt, name: str, known_as: str, hook: Callable[..., Any], what: What) -> None:
        claim = attempt.claim
        try:
            with self._callbacks.limited(known_as, LONGEST_SECONDS) as limit:
                await self._made(known_as, hook, _task(attempt, claim), *what())
        except Exception:
            became = f"did not end within {LONGEST_SECONDS:g} s" if limit.is_over else "raised"
            self._logger.exception(
                "the hook %s of task %d (%s) %s; nothing else is changed by it",
                name,
                claim.id,
                claim.kind,
                became,
                extra={"task_id": claim.id, "kind": claim.kind},
            )

    async def _made(self, known_as: str, hook: Callable[..., Any], *what: Any) -> None:
        """A thread's place is taken until it has really ended."""
        if inspect.iscoroutinefunction(hook):
            await awaited(hook(*what))
            return
        await self._threads.acquire()
        await self._callbacks.call(known_as, partial(hook, *what), on_thread_end=self._threads.release)


def _task(attempt: Attempt, claim: Claim) -> HookTask:
    arguments = attempt.task_type.signature.decode(claim.payload)
    return HookTask(id=claim.id, kind=claim.kind, attempt=claim.attempts, arguments=arguments)
