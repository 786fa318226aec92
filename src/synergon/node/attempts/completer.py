"""The completer: writes outcomes in batches, each guarded by its fence.

Every added outcome is written, through outages and rejections, until the store has given its verdict. Only an outcome
whose value the store can never store is replaced by a failure. Stale outcomes are dropped, counted and logged. While
writes fail, `is_store_failing` stops claims.

Outcomes of kinds that share permits wait for the scheduler, which sends them together with its next claim. The
completer writes them itself if there is no such claim, or if it fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from synergon.errors import DataRejected, StoreError
from synergon.model.clock import Clock
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import Failed, FencedOutcome, Report, Succeeded, Verdict
from synergon.node.attempts import outcomes
from synergon.node.attempts.attempt import Attempt
from synergon.node.callbacks.hooks import Hooks
from synergon.node.duty import pause_after
from synergon.node.signals import Signals
from synergon.stores.base import Store

BATCH: Final = 1000
REPORT_SECONDS: Final = 0.5
"""The minimum time between two writes of progress."""

_SUCCEEDED: Final = State.SUCCEEDED
"""A constant, because the lookup of an enum member is slower than the comparison."""


class Completer:
    """Writes the outcomes of attempts."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        signals: Signals,
        hooks: Hooks,
    ) -> None:
        self._store = store
        self._clock = clock
        self._logger = logger
        self._signals = signals
        self._hooks = hooks
        self._pending: list[FencedOutcome] = []
        """Outcomes without a verdict; those that are being written come first."""
        self._exchanged_kinds: frozenset[str] = frozenset()
        self._exchangeable: list[FencedOutcome] = []
        """Outcomes that are sent together with the next claim."""
        self._exchanging: list[FencedOutcome] = []
        self._event = asyncio.Event()
        self._is_flushed = asyncio.Event()
        self._is_flushed.set()
        self._reports: dict[int, Attempt] = {}
        self._overdue: dict[int, Attempt] = {}
        self._report_event = asyncio.Event()
        self.is_store_failing = False
        self.stale = 0
        """The number of stale outcomes."""
        self.finished = 0

    def add(self, fenced: FencedOutcome) -> None:
        """Write an outcome soon."""
        self._is_flushed.clear()
        if fenced.kind is not None and fenced.kind in self._exchanged_kinds:
            self._exchangeable.append(fenced)
            self._signals.exchangeable()
        else:
            self.write([fenced])

    def write(self, fenced_outcomes: Iterable[FencedOutcome]) -> None:
        """Write these outcomes without a claim."""
        self._pending += fenced_outcomes
        self._event.set()

    def exchange_kinds(self, kinds: frozenset[str]) -> None:
        """Set the kinds whose outcomes wait for the next claim."""
        self._exchanged_kinds = kinds
        waiting, self._exchangeable = self._exchangeable, []
        for fenced in waiting:
            self.add(fenced)

    @property
    def has_exchangeable(self) -> bool:
        """Whether outcomes wait for the next claim."""
        return bool(self._exchangeable)

    def take_exchangeable(self) -> list[FencedOutcome]:
        """The outcomes for the next claim. The caller calls `exchanged` or `not_exchanged` afterwards."""
        self._exchanging, self._exchangeable = self._exchangeable[:BATCH], self._exchangeable[BATCH:]
        return self._exchanging

    def exchanged(self, verdicts: Iterable[Verdict]) -> None:
        """Record the verdicts of the outcomes that were taken."""
        batch, self._exchanging = self._exchanging, []
        self.announce_all(batch, verdicts)

    def not_exchanged(self) -> None:
        """There was no claim, or it failed: the completer writes the outcomes that were taken."""
        outcomes, self._exchanging = self._exchanging, []
        if outcomes:
            self.write(outcomes)

    @property
    def unwritten(self) -> set[int]:
        """The tasks whose outcomes have no verdict yet."""
        waiting = (*self._pending, *self._exchangeable, *self._exchanging)
        return {fenced.id for fenced in waiting}

    def progressed(self, attempt: Attempt) -> None:
        """Write the attempt's progress soon."""
        self._reports[attempt.claim.id] = attempt
        self._report_event.set()

    def mark_overdue(self, attempt: Attempt) -> None:
        """Mark the task as overdue: its function still runs after its deadline."""
        self._overdue[attempt.claim.id] = attempt
        self._report_event.set()

    async def flushed(self) -> None:
        """Return when all added outcomes have their verdicts."""
        await self._is_flushed.wait()

    async def step(self) -> None:
        """Wait for outcomes, then write all of them. If a write fails, the next step continues."""
        await self._event.wait()
        while self._pending:
            batch = self._pending[:BATCH]
            verdicts = await self._write(batch)
            del self._pending[: len(batch)]
            self.announce_all(batch, verdicts)
            self._signals.permits_freed([verdict.kind for verdict in verdicts])
        self._event.clear()
        self._note_flushed()

    def announce_all(self, batch: Collection[FencedOutcome], verdicts: Iterable[Verdict]) -> None:
        """Handle these verdicts."""
        for fenced, verdict in zip(batch, verdicts, strict=True):
            self.announce(fenced, verdict)
        self._signals.ended([fenced.id for fenced in batch])
        self._note_flushed()

    def _note_flushed(self) -> None:
        if not (self._pending or self._exchangeable or self._exchanging):
            self._is_flushed.set()

    async def report_step(self) -> None:
        """Wait for progress, write it, and pause."""
        await self.report_now()
        await self._clock.sleep(REPORT_SECONDS)

    async def report_now(self) -> None:
        """Wait for progress, and write it."""
        await self._report_event.wait()
        self._report_event.clear()
        reports, self._reports = self._reports, {}
        overdue, self._overdue = self._overdue, {}
        notes = [self._report(attempt, overdue) for attempt in {**reports, **overdue}.values()]
        try:
            await self._store.report(notes)
        except DataRejected:
            raise
        except StoreError:
            self._keep_for_later(reports, overdue, notes)
            raise

    def _keep_for_later(self, reports: dict[int, Attempt], overdue: dict[int, Attempt], notes: list[Report]) -> None:
        """Keep progress that could not be written, unless newer progress has been reported."""
        for note in notes:
            attempt = reports.get(note.id) or overdue[note.id]
            attempt.progress = attempt.progress or note.progress
        self._reports = {**reports, **self._reports}
        self._overdue = {**overdue, **self._overdue}
        self._report_event.set()

    @staticmethod
    def _report(attempt: Attempt, overdue: dict[int, Attempt]) -> Report:
        claim, progress = attempt.claim, attempt.progress
        attempt.progress = None
        return Report(id=claim.id, claim_no=claim.claim_no, progress=progress, overdue=claim.id in overdue)

    async def _write(self, batch: list[FencedOutcome]) -> list[Verdict]:
        failures = 0
        while True:
            try:
                verdicts = await self._store.finish(batch)
            except Exception as error:
                if _is_about_the_data(error):
                    if len(batch) > 1:  # the store rejects a value: write the outcomes one by one to find it
                        return [(await self._write([fenced]))[0] for fenced in batch]
                    self._logger.exception("the outcome of task %d cannot be stored; it has failed", batch[0].id)
                    batch = [_rejected(batch[0], error)]
                elif not self.is_store_failing:
                    self.is_store_failing = True
                    self._logger.warning("%d outcomes wait for the store: %s", len(batch), error)
            else:
                if self.is_store_failing:
                    self._logger.info("the store is back, %d outcomes written", len(batch))
                self.is_store_failing = False
                return verdicts
            failures += 1
            await self._clock.sleep(pause_after(failures))

    def announce_now(self, fenced: FencedOutcome, verdict: Verdict) -> None:
        """Handle a verdict that did not come from this completer."""
        self.announce(fenced, verdict)
        self._signals.permits_freed([verdict.kind])
        self._signals.ended([fenced.id])

    def announce(self, fenced: FencedOutcome, verdict: Verdict) -> None:
        """Count a verdict, and signal it to the other parts of the node."""
        self.finished += 1
        if self._hooks.open or self._hooks.feed.open:
            self._hooks.finished(fenced, verdict)
        if verdict.released:
            self._signals.ready(verdict.released)
            self._signals.due_in(0.0)
        if not fenced.is_server_well:  # the server may back off now, and the alarm must know when that ends
            self._signals.due_in(0.0)
        if verdict.state is _SUCCEEDED and not verdict.child_ids:
            return
        match verdict.state:
            case None:
                self.stale += 1
                self._logger.warning(
                    "the outcome of task %d came too late and was rejected: claim %d is not current any more",
                    fenced.id,
                    fenced.claim_no,
                    extra={"task_id": fenced.id},
                )
            case State.READY:
                self._signals.ready([verdict.kind or ""])
            case State.SCHEDULED:
                self._signals.due_in(getattr(fenced.outcome, "delay", 0) / 1_000_000)
        if verdict.child_ids and isinstance(fenced.outcome, Succeeded):
            self._announce_children(fenced.outcome)

    def _announce_children(self, outcome: Succeeded) -> None:
        self._signals.ready([child.kind for child in outcome.children])
        self._signals.children(outcome.children)
        self._signals.due_in(0.0)


def _is_about_the_data(error: Exception) -> bool:
    """Whether the outcome itself is at fault.

    A missing privilege, role or table must not lose a result: such outcomes wait until the database is repaired.
    """
    return isinstance(error, DataRejected) or not isinstance(error, StoreError)


def _rejected(fenced: FencedOutcome, error: Exception) -> FencedOutcome:
    """A failure with the store's rejection, instead of the outcome that could not be stored."""
    outcome = Failed(reason=Reason.ERROR, error=outcomes.describe(error, 0, None))
    return msgspec.structs.replace(fenced, outcome=outcome, progress=None)
