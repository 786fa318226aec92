"""ChildAttempts: runs attempts in child processes.

A child is killed at the deadline of its attempt, and its crash does not affect the node's own process.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from typing import Any, Final

import msgspec

from synergon.errors import Cancel, Control, Discard, RetryAfter, Snooze
from synergon.model.clock import Clock
from synergon.model.outcomes import Crashed, ErrorRecord, HandedBack, Outcome, Progress, Snoozed, Succeeded
from synergon.node.attempts import outcomes
from synergon.node.attempts.attempt import Attempt, Services, Stop
from synergon.node.attempts.deadlines import Deadlines
from synergon.node.processes.child_job import BEGINS, ChildAnswer, ChildControl, ChildJob
from synergon.node.processes.child_pool import ChildDied, ChildError, ChildFailure, ChildNotStarted
from synergon.node.processes.executors import Executor
from synergon.options.durations import microseconds
from synergon.task import AnyTask

START_SECONDS: Final = 60.0
"""How long a child may take to import the module of its task function."""

MAX_ISOLATED: Final = 64
"""How many suspect tasks may run at once, each alone in a child, if there is memory for that many."""

NOT_STARTED_SECONDS: Final = 5.0
"""How long a task is deferred after no child could be started for it."""

_ANSWER: Final = msgspec.json.Decoder(ChildAnswer)
_PROGRESS: Final = msgspec.json.Decoder(Progress)


class ChildAttempts:
    """Runs attempts in child processes, and bounds how many run at once."""

    def __init__(
        self,
        services: Services,
        executor: Executor,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        *,
        url: str,
        max_children: int,
        deadlines: Deadlines,
    ) -> None:
        self._services = services
        self._executor = executor
        self._clock = clock
        self._logger = logger
        self._deadlines = deadlines
        self.is_stopping = False
        """The node was told to stop: a child that dies now charges no crash."""
        self._slots = asyncio.Semaphore(max_children)
        self._isolated_slots = asyncio.Semaphore(max(max_children, executor.children_that_fit(MAX_ISOLATED)))
        self._url = url
        self._kinds_with_transaction: set[str] = set()

    def why_not_in_child(self, task_type: AnyTask) -> str | None:
        """Why this kind cannot run in a child process; None if it can."""
        if task_type.kind in self._kinds_with_transaction:
            return "it uses ctx.transaction()"
        return task_type.why_not_importable()

    async def run(self, attempt: Attempt, node_id: str) -> Outcome:
        """Run a claimed attempt and return its outcome.

        A claim takes no more tasks for child processes than there are free ones, so these attempts never wait. Isolated
        attempts (of suspect tasks) may have to wait. They have processes of their own, and many of them: after the
        death of a node with many long tasks, all of these should run again soon.
        """
        slots = self._isolated_slots if attempt.is_isolated else self._slots
        attempt.asyncio_task = asyncio.current_task()  # so that a cancel can interrupt the wait for a slot
        try:
            await slots.acquire()
        except asyncio.CancelledError:
            if attempt.stop is None:
                raise
            return outcomes.of_stop(attempt, node_id, self._clock.chance)
        finally:
            attempt.asyncio_task = None
        attempt.has_begun = True
        try:
            return await self._run(attempt, node_id)
        finally:
            slots.release()

    async def _run(self, attempt: Attempt, node_id: str) -> Outcome:
        def on_message(message: bytes) -> Any:
            if message == BEGINS:  # the timeout counts from here: it does not include the start of the process
                start_timer.cancel()
                self._deadlines.arm(attempt)
                return None
            if message == b"still_owned":
                return self._answer_ownership(attempt)
            self._services.report_progress(attempt, _PROGRESS.decode(message))
            return None

        is_fresh = attempt.claim.crashes > 0
        attempt.child = self._executor.start_child(_job_of(attempt, self._url), on_message, fresh=is_fresh)
        start_timer = asyncio.get_running_loop().call_later(START_SECONDS, attempt.child.kill)
        try:
            answer = _ANSWER.decode(await attempt.child.result())
        except ChildFailure as failure:
            return self._of_failure(attempt, failure, node_id)
        finally:
            attempt.child = None
            start_timer.cancel()
            self._deadlines.disarm(attempt)
        if attempt.stop in (Stop.TIMEOUT, Stop.CANCEL):
            return outcomes.of_stop(attempt, node_id, self._clock.chance)
        if attempt.stop is not None and attempt.has_seen_stop:  # the function ended because it saw the stop
            return HandedBack()
        if answer.wants_transaction and attempt.task_type.policy.runs_in != "process":
            self._kinds_with_transaction.add(attempt.claim.kind)  # it ran in a child only because it is suspect
            return HandedBack()
        return self._of_answer(attempt, answer, node_id)

    async def _answer_ownership(self, attempt: Attempt) -> bytes:
        return b"yes" if await self._services.still_owned(attempt) else b"no"

    def _of_failure(self, attempt: Attempt, failure: ChildFailure, node_id: str) -> Outcome:
        if attempt.stop is not None:
            return outcomes.of_stop(attempt, node_id, self._clock.chance)
        match failure:
            case ChildDied() if self.is_stopping:  # most often the child got the signal that stops the node
                self._logger.warning("task %d (%s) is handed back: %s", attempt.claim.id, attempt.claim.kind, failure)
                return HandedBack()
            case ChildDied():
                return Crashed(error=_error(attempt, "Crash", failure, node_id))
            case ChildNotStarted():  # not the task's fault, and an immediate retry would fail too
                self._logger.warning(
                    "task %d (%s) is deferred by %g s: %s",
                    attempt.claim.id,
                    attempt.claim.kind,
                    NOT_STARTED_SECONDS,
                    failure,
                )
                return Snoozed(delay=microseconds(NOT_STARTED_SECONDS))
            case ChildError():
                error = _error(attempt, "ChildError", failure, node_id)
                return outcomes.of_record(attempt, error, self._clock.chance)
            case _:  # killed because the node lost its lease
                return HandedBack()

    def _of_answer(self, attempt: Attempt, answer: ChildAnswer, node_id: str) -> Outcome:
        if answer.control is not None:
            return outcomes.of_error(attempt, _control(answer.control), node_id, self._clock.chance)
        if answer.error is not None:
            error = msgspec.structs.replace(answer.error, node_id=node_id)
            if answer.is_payload_error:
                attempt.is_own_fault = True
                return outcomes.of_payload_record(error)
            return outcomes.of_record(attempt, error, self._clock.chance)
        return Succeeded(result=answer.result, children=answer.children)


def _error(attempt: Attempt, type_name: str, failure: ChildFailure, node_id: str) -> ErrorRecord:
    return ErrorRecord(attempt=attempt.claim.attempts, type=type_name, message=str(failure), node_id=node_id)


def _job_of(attempt: Attempt, url: str) -> bytes:
    claim = attempt.claim
    return msgspec.json.encode(
        ChildJob(
            module=attempt.task_type.registered_in,
            function_module=attempt.task_type.function.__module__,
            name=attempt.task_type.function.__qualname__,
            path=sys.path,
            url=url,
            task_id=claim.id,
            kind=claim.kind,
            queue=claim.queue,
            payload=claim.payload,
            attempt=claim.attempts,
            claim_no=claim.claim_no,
            tags=claim.tags,
            meta=claim.meta,
            scheduled_for=attempt.scheduled_for,
            # Labels stay in the node's process: they need not be JSON.
            server=None if attempt.server is None else replace(attempt.server, labels={}),
        )
    )


def _control(received: ChildControl) -> Control:
    match received.name:
        case "Snooze":
            return Snooze(received.seconds, received.message)
        case "RetryAfter":
            return RetryAfter(received.seconds, received.message)
        case "Cancel":
            return Cancel(received.message)
        case _:
            return Discard(received.message)
