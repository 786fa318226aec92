"""Lifecycle hooks: user functions that are called when an attempt starts and when its task has ended.

A hook is called at most once, on the node that ran the task. Hooks for the end are called after the store has the
outcome. Hooks delay and change nothing: errors are logged, and a hook that does not end is abandoned like every
callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from synergon.errors import PayloadError, SynergonError
from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.model.outcomes import (
    Crashed,
    ErrorRecord,
    Failed,
    FencedOutcome,
    Outcome,
    Refused,
    Retrying,
    ServerFault,
    Succeeded,
    Verdict,
    given_back,
)
from synergon.model.record import Record
from synergon.model.task_records import TaskRecord
from synergon.node.attempts.attempt import Attempt
from synergon.node.callbacks.callbacks import Callbacks, awaited
from synergon.node.callbacks.event_feed import EventFeed, ServerSubscriber, Subscriber
from synergon.options.function_names import name_of

CALL_SECONDS: Final = 30.0
"""How many seconds one call of a hook may take."""
STOP_SECONDS: Final = 5.0
"""How many seconds hooks may take when the node stops."""
THREADS: Final = 16


MakeArguments = Callable[[], tuple[Any, ...]]
Fetch = Callable[[Sequence[int]], Awaitable[list[TaskRecord | None]]]


class HookTask(Record, frozen=True, kw_only=True):
    """The task that is passed to a hook."""

    id: int
    kind: str
    attempt: int
    arguments: dict[str, Any]
    """The arguments of the task function, by name."""


class Hooks:
    """Calls the hooks of kinds and their providers. Kinds without hooks cost nothing."""

    def __init__(
        self,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        callbacks: Callbacks,
        subscribers: Sequence[Subscriber] = (),
        server_subscribers: Sequence[ServerSubscriber] = (),
    ) -> None:
        self._clock = clock
        self._logger = logger
        self._callbacks = callbacks
        self.feed: Final = EventFeed(subscribers, clock, logger, callbacks, server_subscribers)
        self.open: dict[tuple[int, int], tuple[Attempt, str]] = {}
        """Running attempts whose kind has hooks, each with the id of its node."""
        self._calls: set[asyncio.Task[None]] = set()
        self._threads = asyncio.Semaphore(THREADS)

    def started(self, attempt: Attempt, node_id: str) -> None:
        """Call `on_start`: the task function of a kind with hooks is about to run."""
        self.watch(attempt, node_id)
        self._call(attempt, "on_start", lambda: ((attempt.leader or attempt).server,))

    def watch(self, attempt: Attempt, node_id: str) -> None:
        """Note an attempt, so that its end calls the other hooks. Called on its own if the task function does not
        run."""
        attempt.started_at = self._clock.monotonic()
        self.open[attempt.claim.id, attempt.claim.claim_no] = (attempt, node_id)

    def finished(self, fenced: FencedOutcome, verdict: Verdict) -> None:
        """Call the hooks for an outcome that ended the task. Calls none if the outcome is stale or the task runs
        again."""
        if self.feed.open:
            self.feed.finished(fenced, verdict)
        attempt, node_id = self.open.pop((fenced.id, fenced.claim_no), (None, ""))
        if attempt is None or verdict.state is None or not State(verdict.state).is_final:
            return
        seconds = self._clock.monotonic() - attempt.started_at
        match fenced.outcome:
            case Succeeded(result=result) if verdict.state == State.SUCCEEDED:
                decode = attempt.task_type.signature.decode_result
                self._call(attempt, "on_success", lambda: (seconds, None if result is None else decode(result)))
            case outcome if verdict.state == State.FAILED:
                error = error_of(outcome, attempt.claim.attempts, node_id)
                self._call(attempt, "on_failure", lambda: (seconds, error))
        self._call(attempt, "on_complete", lambda: (seconds,))

    def expired(self, ids: list[int], fetch: Fetch) -> None:
        """Read these expired tasks from the store, and publish their events. Does nothing without subscribers."""
        if self.feed.subscribers:
            self._start("the events of expired tasks", self._publish_expired(ids, fetch))

    async def _publish_expired(self, ids: list[int], fetch: Fetch) -> None:
        with contextlib.suppress(SynergonError):  # without the store the events are lost, and nothing else
            self.feed.expired(await fetch(ids))

    async def wait_ended(self) -> None:
        """Return when no hook runs and all events are delivered, or when their STOP_SECONDS are over."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=STOP_SECONDS)
        await self.feed.wait_ended()

    def _call(self, attempt: Attempt, name: str, make_arguments: MakeArguments) -> None:
        """Call the hooks of this name. The arguments are made inside the guarded call, because decoding a result that
        does not match its annotation raises."""
        for hook_name, hook in attempt.task_type.hooks:
            if hook_name == name:
                label = f"the hook {name} of {attempt.claim.kind} ({name_of(hook)})"
                self._start(label, self._guarded(attempt, name, label, hook, make_arguments))

    def _start(self, label: str, work: Coroutine[Any, Any, None]) -> None:
        call = self._callbacks.start(label, work)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _guarded(
        self, attempt: Attempt, name: str, label: str, hook: Callable[..., Any], make_arguments: MakeArguments
    ) -> None:
        claim = attempt.claim
        try:
            with self._callbacks.limited(label, CALL_SECONDS) as limit:
                await self._run(label, hook, hook_task(attempt), *make_arguments())
        except Exception:
            problem = f"did not end within {CALL_SECONDS:g} s" if limit.is_over else "raised"
            self._logger.exception(
                "the hook %s of task %d (%s) %s; the task is not affected",
                name,
                claim.id,
                claim.kind,
                problem,
                extra={"task_id": claim.id, "kind": claim.kind},
            )

    async def _run(self, label: str, hook: Callable[..., Any], *arguments: Any) -> None:
        if inspect.iscoroutinefunction(hook):
            await awaited(hook(*arguments))
            return
        await self._threads.acquire()  # released when the thread has really ended, not when its time is over
        await self._callbacks.call(label, partial(hook, *arguments), on_thread_end=self._threads.release)


def error_of(outcome: Outcome, attempt_no: int, node_id: str) -> ErrorRecord:
    """Why the task has failed: its own error, its last crash, or, for a command, that it was handed back."""
    if isinstance(outcome, Failed | Retrying | Crashed | Refused | ServerFault):
        return outcome.error
    return replace(given_back(node_id), attempt=attempt_no)


def hook_task(attempt: Attempt) -> HookTask:
    """The task of an attempt, as hooks get it."""
    claim = attempt.claim
    try:
        arguments = attempt.task_type.signature.decode(claim.payload)
    except PayloadError:  # the hooks of a task whose arguments do not fit
        arguments = attempt.task_type.signature.plain(claim.payload)
    return HookTask(id=claim.id, kind=claim.kind, attempt=claim.attempts, arguments=arguments)
