"""Runs attempts for a test: all in this process, and with the errors kept as they were raised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synergon.context import Context
from synergon.errors import TaskFailed
from synergon.model.claims import Claim
from synergon.model.outcomes import ErrorRecord, Failed, Outcome, Retrying
from synergon.model.task_records import TaskRecord
from synergon.node.attempts.attempt import Attempt
from synergon.node.attempts.outcomes import find_control
from synergon.node.attempts.runner import Runner


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt whose body failed."""

    attempt: Attempt
    error: ErrorRecord
    raised: Exception | None
    """What the body raised; None: it was stopped at its deadline, or never began."""

    def __str__(self) -> str:
        claim = self.attempt.claim
        return f"task {claim.id} ({claim.kind}): {self.error.type}: {self.error.message}"

    def to_exception(self, record: TaskRecord) -> Exception:
        """The body's own exception with a note of where it comes from, so that a test can expect its type."""
        claim = self.attempt.claim
        if self.raised is None:
            return TaskFailed(f"{self}, in attempt {claim.attempts} of {self.attempt.max_attempts}", record)
        self.raised.add_note(
            f"raised by task {claim.id} ({claim.kind}) in attempt {claim.attempts} of {self.attempt.max_attempts}, "
            f"with {claim.payload.decode()}"
        )
        return self.raised


class TestRunner(Runner):
    """A runner without child processes, so that a test's monkeypatches and debuggers reach every body."""

    __test__ = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.failures: list[Failure] = []
        self._raised: dict[int, BaseException | None] = {}

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

    def _judge(self, attempt: Attempt, context: Context | None, value: Any, error: BaseException | None) -> Outcome:
        self._raised[attempt.claim.id] = error
        return super()._judge(attempt, context, value, error)
