"""Runs attempts for a test: all in this process and in the test's context, and keeps the errors as they were raised."""

from __future__ import annotations

import asyncio
import contextvars
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from synergon.context import Context
from synergon.errors import TaskFailed
from synergon.model.claims import Claim
from synergon.model.outcomes import ErrorRecord, Failed, Outcome, Retrying
from synergon.model.task_records import TaskRecord
from synergon.node.attempts.attempt import Attempt
from synergon.node.attempts.outcomes import find_control
from synergon.node.attempts.runner import Runner

running_task: Final[ContextVar[int | None]] = ContextVar("running_task", default=None)
"""The task whose function is the caller, if any."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt."""

    attempt: Attempt
    error: ErrorRecord
    raised: Exception | None
    """What the task function raised; None if it was stopped at its deadline, or never started."""

    def __str__(self) -> str:
        claim = self.attempt.claim
        return f"task {claim.id} ({claim.kind}): {self.error.type}: {self.error.message}"

    def to_exception(self, record: TaskRecord) -> Exception:
        """The exception of the task function with a note about its task, so that a test can expect its type."""
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
        self.context = contextvars.copy_context()
        """The test's context variables, which task functions see."""
        self.ran: dict[int, None] = {}
        """The started tasks, in order."""
        self.failures: list[Failure] = []
        self.broken: Exception | None = None
        """An error of the runner itself, not of a task function."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._raised: dict[int, BaseException | None] = {}

    async def run(self, attempt: Attempt) -> None:
        """Run an attempt in a copy of the test's context."""
        self.ran[attempt.claim.id] = None
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
        """Cancel task functions that do not end."""
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
        is_wished = raised is not None and find_control(raised) is not None
        if isinstance(outcome, Failed | Retrying) and not is_wished:
            kept = raised if isinstance(raised, Exception) and attempt.stop is None else None
            self.failures.append(Failure(attempt, outcome.error, kept))
        return outcome

    def _outcome_of(
        self, attempt: Attempt, context: Context | None, value: Any, error: BaseException | None
    ) -> Outcome:
        self._raised[attempt.claim.id] = error
        return super()._outcome_of(attempt, context, value, error)
