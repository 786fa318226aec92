"""Runs attempts for a test: all of them in this process and in the test's context. Stores the errors as they were
raised."""

from __future__ import annotations

import asyncio
import contextvars
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from synergon.context import Context
from synergon.errors import BatchErrors, TaskFailed
from synergon.model.claims import Claim
from synergon.model.outcomes import ErrorRecord, Failed, Outcome, Refused, Retrying
from synergon.model.task_records import TaskRecord
from synergon.node.attempts.attempt import Attempt
from synergon.node.attempts.outcomes import find_control, outcome_of_item
from synergon.node.attempts.runner import Runner

running_task: Final[ContextVar[int | None]] = ContextVar("running_task", default=None)
"""The task whose function is the caller. None if the caller is no task function."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt."""

    attempt: Attempt
    error: ErrorRecord
    raised: Exception | None
    """The exception that the task function raised. None if the function was stopped, or never started."""

    def __str__(self) -> str:
        claim = self.attempt.claim
        return f"task {claim.id} ({claim.kind}): {self.error.type}: {self.error.message}"

    def to_exception(self, record: TaskRecord) -> Exception:
        """The exception of the task function with a note about its task, so that a test can expect its type. TaskFailed
        if there is none."""
        claim = self.attempt.claim
        if self.raised is None:
            return TaskFailed(f"{self}, in attempt {claim.attempts} of {self.attempt.max_attempts}", record)
        self.raised.add_note(
            f"raised by task {claim.id} ({claim.kind}) in attempt {claim.attempts} of {self.attempt.max_attempts}, "
            f"with {claim.payload.decode()}"
        )
        return self.raised


class TestRunner(Runner):
    """A runner without child processes, so that monkeypatches and debuggers of a test reach every task function."""

    __test__ = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context: contextvars.Context = contextvars.copy_context()
        """The test's context variables, which task functions see."""
        self.ran: dict[int, None] = {}
        """The started and expired tasks, in order."""
        self.failures: list[Failure] = []
        self.broken: Exception | None = None
        """An error of the runner itself, not of a task function. None if there is none."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._raised: dict[int, BaseException | None] = {}

    async def run(self, attempt: Attempt) -> None:
        """Run an attempt in a copy of the test's context."""
        self.ran.update(dict.fromkeys(item.claim.id for item in attempt.items))
        context = self.context.copy()
        context.run(running_task.set, attempt.claim.id)
        task = self._loop.create_task(super().run(attempt), name="synergon-test-function", context=context)
        self._tasks.add(task)
        try:
            await task
        except Exception as error:  # noqa: BLE001  the drain raises it
            self.broken = error
        finally:
            self._tasks.discard(task)

    def cancel_all(self) -> None:
        """Cancel the asyncio tasks of all attempts that still run."""
        for task in self._tasks:
            task.cancel()

    def _prepare(self, claim: Claim) -> Attempt:
        attempt = super()._prepare(claim)
        if attempt.runs_in == "process":
            attempt.runs_in = "loop" if attempt.task_type.is_coroutine else "thread"
        return attempt

    async def _execute(self, attempt: Attempt) -> Outcome:
        outcome = await super()._execute(attempt)
        raised = self._raised.pop(attempt.claim.id, None)
        for item in attempt.items:
            self._note_failure(item, outcome_of_item(item, outcome), _raised_for(item, attempt, raised))
        return outcome

    def _note_failure(self, attempt: Attempt, outcome: Outcome, raised: BaseException | None) -> None:
        is_wished = raised is not None and find_control(raised) is not None
        if isinstance(outcome, Failed | Refused | Retrying) and not is_wished:
            is_stopped = (attempt.leader or attempt).stop is not None
            own_error = raised if isinstance(raised, Exception) and not is_stopped else None
            self.failures.append(Failure(attempt, outcome.error, own_error))

    def _outcome_of(
        self, attempt: Attempt, context: Context | None, value: Any, error: BaseException | None
    ) -> Outcome:
        self._raised[attempt.claim.id] = error
        return super()._outcome_of(attempt, context, value, error)


def _raised_for(item: Attempt, execution: Attempt, raised: BaseException | None) -> BaseException | None:
    """The error that the task function raised for this item of a batch. None if it raised none for it."""
    if not (execution.is_batch and isinstance(raised, BatchErrors)):
        return raised
    return raised.errors.get(execution.included.index(item)) if item.fixed_outcome is None else None
