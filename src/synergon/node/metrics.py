"""Metrics: counts what the node and the engine of this process do, in memory.

Each number is counted once and has two readers: `health/exposition.py` turns the numbers into the text that Prometheus
reads, and `node/statistics_writer.py` writes them to the store. The parts of a node call this module once for each task
and step, so it must be fast.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from synergon.model.claims import Claim
from synergon.model.lifecycle import State
from synergon.model.outcomes import (
    Crashed,
    Failed,
    FencedOutcome,
    HandedBack,
    KeyAssigned,
    Outcome,
    Refused,
    ServerFault,
    Snoozed,
    Verdict,
    as_applied,
)
from synergon.model.schedules import FiredTask
from synergon.model.task_statistics import (
    BOUNDS,
    LATENCIES,
    SUCCEEDED,
    Buckets,
    ErrorCount,
    Histogram,
    Numbers,
    commonest,
    fingerprint,
)
from synergon.model.tasks import NewTask

MAX_NAMES: Final = 1000
"""How many pairs of kind and queue are counted separately."""
OTHER: Final = ("other", "other")
"""The pair under which all further kinds and queues are counted."""
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)

MAX_COUNTED_ERRORS: Final = 200
"""How many different errors of a minute are counted. The commonest of them are written."""

KindAndQueue = tuple[str, str]

_MICROSECONDS: Final = tuple(int(bound * 1_000_000) for bound in BOUNDS)
_SUCCEEDED: Final = State.SUCCEEDED
"""A constant, because looking up the enum member takes longer than the comparison."""


class Tally:
    """Counts what happened to the tasks of one kind and queue."""

    __slots__ = ("accepted", "ended", "errors", "run", "started", "succeeded", "wait", "waited")

    def __init__(self) -> None:
        self.accepted: int = 0
        self.started: int = 0
        self.succeeded: int = 0
        self.ended: dict[str, int] = {}
        """How many attempts ended for each reason, without successes."""
        self.wait: list[int] = [0] * (len(BOUNDS) + 1)
        self.waited: int = 0
        """The total time that tasks have waited, in microseconds."""
        self.run: Buckets = Buckets(BOUNDS)
        self.errors: dict[str, ErrorCount] = {}
        """The errors since the statistics of the last minute were written, by fingerprint."""

    @property
    def version(self) -> tuple[int, ...]:
        """A value that differs whenever one of the numbers has changed."""
        return self.accepted, self.started, self.succeeded, *self.ended.values()

    def numbers(self) -> Numbers:
        """The current numbers."""
        ended = {SUCCEEDED: self.succeeded, **self.ended} if self.succeeded else dict(self.ended)
        return Numbers(
            accepted=self.accepted,
            started=self.started,
            ended=ended,
            wait=Histogram(counts=tuple(self.wait), seconds=self.waited / 1_000_000),
            run=Histogram(counts=tuple(self.run.counts), seconds=self.run.sum),
            errors=commonest(self.errors),
        )


class Metrics:
    """The numbers of one engine and its node since the engine was connected. Only the engine's event loop writes
    them."""

    def __init__(self) -> None:
        self.tallies: dict[KindAndQueue, Tally] = {}
        self.claim_seconds: Final = Buckets(LATENCIES)
        self.claim_sizes: Final = Buckets(SIZES)
        self.finish_seconds: Final = Buckets(LATENCIES)
        self.finish_sizes: Final = Buckets(SIZES)
        self._open: dict[int, Tally] = {}
        """For each task with a started attempt whose outcome has no verdict yet, the tally that counts it."""

    def note_accepted(self, tasks: Iterable[NewTask | FiredTask]) -> None:
        """Count tasks that this process has created. Tasks of a caller's own transaction are not counted, because it is
        not known whether it commits."""
        for task in tasks:
            self.tally(task.kind, task.queue).accepted += 1

    def note_started(self, claims: Iterable[Claim]) -> None:
        """Count the attempts that the node starts, and how long their tasks have waited."""
        opened, tallies = self._open, self.tallies
        for claim in claims:
            tally = tallies.get((claim.kind, claim.queue)) or self.tally(claim.kind, claim.queue)
            opened[claim.id] = tally
            waited = claim.waited
            tally.started += 1
            tally.wait[bisect_left(_MICROSECONDS, waited)] += 1
            tally.waited += waited

    def note_run(self, claim: Claim, seconds: float) -> None:
        """Note how long an attempt has run."""
        # The second case: its success was committed by the task function.
        run = (self._open.get(claim.id) or self.tally(claim.kind, claim.queue)).run
        run.counts[bisect_left(BOUNDS, seconds)] += 1  # as `_observe` does, without a call
        run.sum += seconds

    def note_finished(self, outcomes: Iterable[FencedOutcome], verdicts: Iterable[Verdict]) -> None:
        """Count the ends of attempts, once the store has their outcomes. A claim that never started here is not
        counted."""
        opened = self._open
        for fenced, verdict in zip(outcomes, verdicts, strict=True):
            tally = opened.get(fenced.id)
            if tally is None:
                continue
            if verdict.state is _SUCCEEDED:
                del opened[fenced.id]
                tally.succeeded += 1
            else:
                self._note_unsuccessful(tally, fenced, verdict)

    def _note_unsuccessful(self, tally: Tally, fenced: FencedOutcome, verdict: Verdict) -> None:
        if verdict.state is not None:  # otherwise a later attempt of the task may run here
            del self._open[fenced.id]
        outcome = as_applied(fenced.outcome, verdict)
        reason = reason_of(outcome, verdict.state)
        tally.ended[reason] = tally.ended.get(reason, 0) + 1
        error = getattr(outcome, "error", None)
        if error is not None:
            _note_error(tally, error.type, error.message)

    def note_claim(self, seconds: float, size: int) -> None:
        """Note how long the store took for a claim, and how many tasks it gave."""
        _observe(self.claim_seconds, seconds)
        _observe(self.claim_sizes, size)

    def note_finish(self, seconds: float, size: int) -> None:
        """Note how long the store took to write outcomes, and how many."""
        _observe(self.finish_seconds, seconds)
        _observe(self.finish_sizes, size)

    def tally(self, kind: str, queue: str) -> Tally:
        """The numbers of a kind and queue; those of `OTHER` if there are too many names."""
        found = self.tallies.get((kind, queue))
        if found is None:
            name = OTHER if len(self.tallies) >= MAX_NAMES else (kind, queue)
            found = self.tallies.setdefault(name, Tally())
        return found


def _observe(buckets: Buckets, value: float) -> None:
    """Like `Buckets.observe`, but without passing through another module for every task."""
    buckets.counts[bisect_left(buckets.bounds, value)] += 1
    buckets.sum += value


def _note_error(tally: Tally, type_name: str, message: str) -> None:
    key, common = fingerprint(type_name, message)
    known = tally.errors.get(key)
    if known is None and len(tally.errors) >= MAX_COUNTED_ERRORS:
        return
    tally.errors[key] = ErrorCount(type=type_name, message=common, count=1 if known is None else known.count + 1)


def reason_of(outcome: Outcome, state: State | None) -> str:
    """Why an attempt has ended: `succeeded`, `cancelled`, `stale`, the reason of a final failure, or what happens with
    the task instead, such as `retried`."""
    match state, outcome:
        case None, _:
            return "stale"
        case ((State.SUCCEEDED | State.CANCELLED), _):
            return str(state)
        case State.FAILED, Failed(reason=reason):
            return str(reason)
        case State.FAILED, Refused():
            return "error"
        case State.FAILED, _:
            return "crashed"
        case _, Snoozed():
            return "snoozed"
        case _, HandedBack():
            return "handed_back"
        case _, KeyAssigned():
            return "key_assigned"
        case _, Refused():
            return "refused"
        case _, ServerFault():
            return "server_failed"
        case _, Crashed():
            return "crash_retried"
    return "retried"
