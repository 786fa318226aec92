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

from synergon.errors import Cancel, Control, Discard, RetryAfter, ServerFailed, Snooze
from synergon.model.clock import Clock
from synergon.model.outcomes import Crashed, ErrorRecord, HandedBack, Outcome, Progress, Succeeded
from synergon.node.attempts import outcomes
from synergon.node.attempts.attempt import Attempt, Services, Stop
from synergon.node.attempts.batch_results import DescribedError, ItemEnd
from synergon.node.attempts.deadlines import Deadlines
from synergon.node.capacity.machine import usable_processors
from synergon.node.claims.short_kinds import WAIT_SECONDS, ShortKinds
from synergon.node.processes.child_job import BEGINS, EXTENDS, ChildAnswer, ChildControl, ChildItemEnd, ChildJob
from synergon.node.processes.child_pool import ChildDied, ChildError, ChildFailure, ChildNotStarted
from synergon.node.processes.executors import Executor
from synergon.options.durations import microseconds

START_SECONDS: Final = 60.0
"""How many seconds a child may take to import the module of its task function."""

NOT_STARTED_SECONDS: Final = 5.0
"""For how many seconds a task is deferred if no child has started its function."""

_ANSWER: Final = msgspec.json.Decoder(ChildAnswer)
_PROGRESS: Final = msgspec.json.Decoder(Progress)


class ChildAttempts:
    """Runs attempts in child processes, and bounds how many run and how many start at once.

    A child that starts needs a processor: it imports the application. No more of them start at once than there are
    processors, so that the node can renew its lease meanwhile.
    """

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
        short_kinds: ShortKinds,
    ) -> None:
        self._services = services
        self._executor = executor
        self._clock = clock
        self._logger = logger
        self._node_name = str((logger.extra or {}).get("node", ""))
        self._deadlines = deadlines
        self._short_kinds = short_kinds
        self.is_stopping = False
        """Whether the node is stopping. If a child dies then, its task is handed back, and no crash is charged."""
        self._slots = asyncio.Semaphore(max_children)
        self._waiting: set[Attempt] = set()
        """The attempts that wait for one of the slots."""
        self._starts = asyncio.Semaphore(usable_processors())
        self._url = url

    async def run(self, attempt: Attempt, node_id: str) -> Outcome:
        """Run a claimed attempt and return its outcome. An attempt waits while other children start, and if its task
        was claimed ahead."""
        if not await self._gets_slot(attempt):
            if attempt.stop is Stop.NO_CHILD:
                self._short_kinds.forget()
            return outcomes.of_stop(attempt, node_id, self._clock.chance)
        try:
            if not await self._enters(attempt, self._starts):
                return outcomes.of_stop(attempt, node_id, self._clock.chance)
            attempt.has_begun = True
            return await self._run(attempt, node_id)
        finally:
            self._slots.release()

    async def _gets_slot(self, attempt: Attempt) -> bool:
        """Wait until fewer attempts than `max_children` run. Returns False if the attempt was asked to end before
        that."""
        if not self._slots.locked():
            return await self._enters(attempt, self._slots)
        attempt.waits_for_child = True
        self._waiting.add(attempt)
        timer = asyncio.get_running_loop().call_later(WAIT_SECONDS, attempt.ask_to_stop, Stop.NO_CHILD)
        try:
            return await self._enters(attempt, self._slots)
        finally:
            attempt.waits_for_child = False
            self._waiting.discard(attempt)
            timer.cancel()

    @staticmethod
    async def _enters(attempt: Attempt, semaphore: asyncio.Semaphore) -> bool:
        """Wait for the semaphore. Returns False if the attempt was asked to end before that."""
        attempt.asyncio_task = asyncio.current_task()  # so that a cancel can interrupt the wait
        try:
            await semaphore.acquire()
        except asyncio.CancelledError:
            if attempt.stop is None:
                raise
            return False
        finally:
            attempt.asyncio_task = None
        return True

    async def _run(self, attempt: Attempt, node_id: str) -> Outcome:
        has_function_begun = False
        begun_at = 0.0

        def on_message(message: bytes) -> Any:
            if message == BEGINS:  # the timeout counts from here: it does not include the start of the process
                nonlocal has_function_begun, begun_at
                has_function_begun = True
                begun_at = self._clock.monotonic()
                self._starts.release()
                start_timer.cancel()
                self._deadlines.arm(attempt)
                return None
            if message == b"still_owned":
                return self._answer_ownership(attempt)
            if message.startswith(EXTENDS):
                self._services.extend_timeout(attempt, float(message.removeprefix(EXTENDS)))
                return None
            self._services.report_progress(attempt, _PROGRESS.decode(message))
            return None

        job = _job_of(attempt, self._url, self._node_name)
        attempt.child = self._executor.start_child(job, on_message, fresh=attempt.is_suspect)
        start_timer = asyncio.get_running_loop().call_later(START_SECONDS, attempt.child.kill)
        try:
            answer = _ANSWER.decode(await attempt.child.result())
        except ChildFailure as failure:
            return self._of_failure(attempt, failure, node_id, has_function_begun=has_function_begun)
        finally:
            if not has_function_begun:
                self._starts.release()
            attempt.child = None
            start_timer.cancel()
            self._deadlines.disarm(attempt)
        if has_function_begun:
            self._short_kinds.note(attempt.claim.kind, self._clock.monotonic() - begun_at)
        if attempt.stop in (Stop.TIMEOUT, Stop.CANCEL):
            return outcomes.of_stop(attempt, node_id, self._clock.chance)
        if attempt.stop is not None and attempt.has_seen_stop:  # the function ended because it saw the stop
            return outcomes.of_all(attempt, HandedBack())
        if answer.wants_transaction and attempt.is_isolated:
            attempt.task_type.uses_transaction = True  # the next attempt runs alone on its node
            return outcomes.of_all(attempt, HandedBack())
        return self._of_answer(attempt, answer, node_id)

    async def _answer_ownership(self, attempt: Attempt) -> bytes:
        return b"yes" if await self._services.still_owned(attempt) else b"no"

    def _of_failure(
        self, attempt: Attempt, failure: ChildFailure, node_id: str, *, has_function_begun: bool
    ) -> Outcome:
        """The outcome of a job without an answer. Only the death of a child whose task function had begun is evidence
        against the task: before that the child imports the application, whatever its task is."""
        if attempt.stop is not None:
            return outcomes.of_stop(attempt, node_id, self._clock.chance)
        match failure:
            case ChildDied() if self.is_stopping:  # most often the child got the signal that stops the node
                self._logger.warning("task %d (%s) is handed back: %s", attempt.claim.id, attempt.claim.kind, failure)
                return outcomes.of_all(attempt, HandedBack())
            case ChildDied() if has_function_begun:
                is_shared = len(attempt.included) > 1
                return outcomes.of_all(
                    attempt, Crashed(error=_error(attempt, "Crash", failure, node_id), is_shared=is_shared)
                )
            case ChildDied() | ChildNotStarted():  # not the task's fault, and an immediate retry would fail too
                self._logger.warning(
                    "task %d (%s) is deferred by %g s, because its function has not started: %s",
                    attempt.claim.id,
                    attempt.claim.kind,
                    NOT_STARTED_SECONDS,
                    f"its child process {failure.description}" if isinstance(failure, ChildDied) else failure,
                )
                return outcomes.of_all(attempt, HandedBack(delay=microseconds(NOT_STARTED_SECONDS)))
            case ChildError():
                error = _error(attempt, "ChildError", failure, node_id)
                return outcomes.of_record(attempt, error, self._clock.chance)
            case _:  # killed because the node lost its lease, so nothing else may start before it joins again
                for waiting in self._waiting:
                    waiting.ask_to_stop(Stop.LEASE_LOST)
                return outcomes.of_all(attempt, HandedBack())

    def _of_answer(self, attempt: Attempt, answer: ChildAnswer, node_id: str) -> Outcome:
        if answer.control is not None:
            return outcomes.of_error(attempt, _control(answer.control), node_id, self._clock.chance)
        if answer.error is not None:
            error = msgspec.structs.replace(answer.error, node_id=node_id)
            if answer.is_payload_error:
                return outcomes.of_each(attempt, lambda item: outcomes.of_payload_record(item, error))
            return outcomes.of_record(attempt, error, self._clock.chance, is_retried=answer.is_retried)
        if answer.items is not None:
            ends = [_item_end(end, node_id) for end in answer.items]
            return outcomes.of_items(attempt, ends, answer.children, node_id, self._clock.chance)
        # The child may have registered the function under another policy.
        result = answer.result if attempt.task_type.policy.keep_result else None
        return Succeeded(result=result, children=answer.children)


def _error(attempt: Attempt, type_name: str, failure: ChildFailure, node_id: str) -> ErrorRecord:
    return ErrorRecord(attempt=attempt.claim.attempts, type=type_name, message=str(failure), node_id=node_id)


def _item_end(end: ChildItemEnd, node_id: str) -> ItemEnd:
    if end.control is not None:
        return _control(end.control)
    if end.error is not None:
        return DescribedError(msgspec.structs.replace(end.error, node_id=node_id), end.is_retried)
    return end.result or b"null"


def _job_of(attempt: Attempt, url: str, node: str) -> bytes:
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
            items=tuple(item.claim.payload for item in attempt.included) if attempt.is_batch else (),
            batch_items=attempt.batch_items,
            attempt=claim.attempts,
            claim_no=claim.claim_no,
            node=node,
            trace=None if attempt.tracer is None else attempt.tracer.current(),
            log_level=logging.getLogger().level,
            tags=claim.tags,
            meta=claim.meta,
            scheduled_for=attempt.scheduled_for,
            dependencies=tuple(msgspec.structs.replace(entry, result_json=None) for entry in attempt.dependencies),
            results=tuple(
                None if entry.result_json is None else bytes(entry.result_json) for entry in attempt.dependencies
            ),
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
        case "ServerFailed":
            return ServerFailed(received.message)
        case _:
            return Discard(received.message)
