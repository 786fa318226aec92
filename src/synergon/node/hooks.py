"""Lifecycle hooks: users' functions that are called when an attempt starts and when its task has ended.

Promise: on the node that ran it, after it is stored, at most once. A hook never holds anything up and never changes
anything: what it raises is logged, and one that will not end is given up.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from synergon.clock import Clock
from synergon.lifecycle import State
from synergon.node.attempt import Attempt
from synergon.node.executors import Executor
from synergon.records import Claim, Failed, Record, Settlement, Succeeded, Verdict

LONGEST_SECONDS: Final = 30.0


class HookTask(Record, frozen=True, kw_only=True):
    """The task as a hook sees it."""

    id: int
    kind: str
    attempt: int
    arguments: dict[str, Any]
    """As the body got them."""


class Hooks:
    """Calls the hooks of kinds and their providers; for kinds without any it costs nothing."""

    def __init__(self, executor: Executor, clock: Clock, logger: logging.LoggerAdapter[logging.Logger]) -> None:
        self._executor = executor
        self._clock = clock
        self._logger = logger
        self._open: dict[tuple[int, int], Attempt] = {}
        """Attempts whose ends somebody wants to hear of."""
        self._calls: set[asyncio.Task[None]] = set()

    def started(self, attempt: Attempt) -> None:
        """Its body is about to run."""
        if not _hooks_of(attempt):
            return
        attempt.started_at = self._clock.monotonic()
        self._open[attempt.claim.id, attempt.claim.claim_no] = attempt
        self._call(attempt, "on_start", attempt.server)

    def settled(self, settlement: Settlement, verdict: Verdict) -> None:
        """The store has its outcome; a stale one is nobody's to tell of."""
        if not self._open:
            return
        attempt = self._open.pop((settlement.id, settlement.claim_no), None)
        if attempt is None or verdict.state is None or not State(verdict.state).is_final:
            return
        seconds = self._clock.monotonic() - attempt.started_at
        match settlement.outcome:
            case Succeeded(result=result) if verdict.state == State.SUCCEEDED:
                self._call(attempt, "on_success", seconds, attempt.task_type.signature.decode_result(result or b"null"))
            case Failed(error=error) if verdict.state == State.FAILED:
                self._call(attempt, "on_failure", seconds, error)
        self._call(attempt, "on_complete", seconds)

    async def ended(self) -> None:
        """Return when no hook is under way."""
        while self._calls:
            await asyncio.wait(self._calls)

    def _call(self, attempt: Attempt, name: str, *what: Any) -> None:
        for hook_name, hook in _hooks_of(attempt):
            if hook_name == name:
                call = asyncio.get_running_loop().create_task(self._guarded(attempt, name, hook, what))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _guarded(self, attempt: Attempt, name: str, hook: Callable[..., Any], what: tuple[Any, ...]) -> None:
        claim = attempt.claim
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                task = _task(attempt, claim)
                if inspect.iscoroutinefunction(hook):
                    await hook(task, *what)
                else:
                    await self._executor.run_in_thread(lambda: hook(task, *what))
        except Exception:
            self._logger.exception(
                "the hook %s of task %d (%s) raised; nothing else is changed by it",
                name,
                claim.id,
                claim.kind,
                extra={"task_id": claim.id, "kind": claim.kind},
            )


def _hooks_of(attempt: Attempt) -> tuple[tuple[str, Callable[..., Any]], ...]:
    provider = attempt.task_type.provider
    own = attempt.task_type.policy.hooks
    return own if provider is None else (*provider.hooks, *own)


def _task(attempt: Attempt, claim: Claim) -> HookTask:
    arguments = attempt.task_type.signature.decode(claim.payload)
    return HookTask(id=claim.id, kind=claim.kind, attempt=claim.attempts, arguments=arguments)
