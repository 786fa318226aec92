"""Applies the options of a claim to its attempt: server, key queue, requirements and overrides."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from synergon.errors import PayloadError, SynergonError
from synergon.model.record import READ_ERRORS
from synergon.model.requirements import UNREADABLE_REQUIREMENTS, parse_requirements, with_kind_defaults
from synergon.node.attempts.attempt import Attempt
from synergon.options.overrides import NO_TIMEOUT, Overrides, RunsIn
from synergon.providers.server import Server
from synergon.task import AnyTask

_OVERRIDES: Final = msgspec.json.Decoder(Overrides)


class ServerLabels:
    """The labels of servers. Task functions may write to them; all attempts of this node on a server share them."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], dict[str, Any]] = {}

    def assign(self, attempt: Attempt) -> None:
        """Give the attempt the server of its claim, with its labels. Does nothing if the claim has no server."""
        claim, provider = attempt.claim, attempt.task_type.provider
        if claim.server is not None and provider is not None:
            labels = self._labels.setdefault((provider.name, claim.server), {})
            attempt.server = Server(claim.server, provider.name, claim.slot or 0, labels)


def assign_key(attempt: Attempt, *, has_results: bool = False) -> None:
    """Compute the limit key of a task that was stored without one: a producer without the task function cannot compute
    it. Does nothing if the kind has no key queues, or the task must not join one now. `has_results` says whether the
    payload contains the results of the dependencies."""
    claim, task_type = attempt.claim, attempt.task_type
    if task_type.key_template is None or claim.limit_key is not None:
        return
    if (claim.has_dependencies and not has_results) or _runs_alone(attempt):
        return
    signature = task_type.signature
    try:
        attempt.limit_key = task_type.key_template.key(signature.template_values(signature.decode(claim.payload)))
    except PayloadError as error:
        attempt.misfit = error


def _runs_alone(attempt: Attempt) -> bool:
    """Whether the task must run alone, and so has left the key queue of its batches
    (`stores.rules.batches.must_run_alone`)."""
    if not attempt.is_batch or not attempt.claim.requirements:
        return False
    requirements = parse_requirements(attempt.claim.requirements)
    return requirements.is_suspect or bool(requirements.refused_by)


def apply_requirements(attempt: Attempt) -> None:
    """Give the attempt the cost by which its task was claimed. If the requirements cannot be read, the attempt gets a
    misfit, and the task fails."""
    parsed, task_type = parse_requirements(attempt.claim.requirements), attempt.task_type
    attempt.cost = with_kind_defaults(
        parsed, task_type.weight, is_isolable=task_type.is_isolable, is_threaded=task_type.is_threaded
    ).cost
    attempt.is_suspect = parsed.is_suspect
    if parsed is UNREADABLE_REQUIREMENTS:
        attempt.is_unreadable = True
        attempt.misfit = PayloadError(f"the requirements of task {attempt.claim.kind!r} cannot be read")


def apply_overrides(attempt: Attempt, encoded: bytes) -> None:
    """Apply the options of the task that replace those of its kind. If they cannot be read, only this attempt gets a
    misfit; the other tasks of the claim can run."""
    try:
        _apply(_OVERRIDES.decode(encoded), attempt)
    except (*READ_ERRORS, SynergonError) as error:
        attempt.misfit = PayloadError(f"the options of task {attempt.claim.kind!r} cannot be read: {error}")


def _apply(overrides: Overrides, attempt: Attempt) -> None:
    attempt.overrides = overrides
    attempt.retry = overrides.retry or attempt.retry
    attempt.scheduled_for = overrides.scheduled_for
    if attempt.is_batch:  # a producer that does not know the kind cannot know that these are its batch's
        return
    if overrides.timeout is not None:
        attempt.timeout = None if overrides.timeout == NO_TIMEOUT else overrides.timeout
    if overrides.runs_in is not None:
        attempt.runs_in = _runs_in(attempt.task_type, overrides.runs_in)


def _runs_in(task_type: AnyTask, requested: RunsIn) -> RunsIn:
    """Where the task function of this claim runs: on the event loop, in a thread or in a child process. Only "process"
    is taken from `requested`: a producer that does not have the function cannot know whether it is a coroutine."""
    if requested == "process":
        return requested
    return "loop" if task_type.is_coroutine else "thread"
