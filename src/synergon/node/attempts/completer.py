"""The completer: writes outcomes in batches, each guarded by its fence.

Every added outcome is written, through outages and rejections, until the store has returned its verdict. Only an
outcome with a value that the store can never store is replaced by a failure. Stale outcomes are dropped, counted and
logged. While writes fail, `is_store_failing` is set, and the node claims nothing.

Outcomes of kinds that share permits wait for the scheduler, which sends them together with its next claim request. If
there is no such request, or it fails, the completer writes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from synergon.errors import DataRejected, StoreError, StoreUnavailable
from synergon.model.clock import Clock
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import (
    Failed,
    FencedOutcome,
    Outcome,
    Refused,
    Report,
    ServerFault,
    Succeeded,
    Verdict,
    as_applied,
)
from synergon.node.attempts import outcomes
from synergon.node.attempts.attempt import Attempt
from synergon.node.callbacks.hooks import Hooks
from synergon.node.duty import pause_after
from synergon.node.metrics import Metrics
from synergon.node.signals import Signals
from synergon.node.store_outage import StoreOutage
from synergon.policies import SERVER_FAILURE_LIMIT
from synergon.stores.base import Store

BATCH: Final = 1000
REPORT_SECONDS: Final = 0.5
"""The minimum time in seconds between two writes of progress."""

_SUCCEEDED: Final = State.SUCCEEDED
"""A constant, because looking up the enum member takes longer than the comparison."""


class Completer:
    """Writes the outcomes of attempts."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        signals: Signals,
        hooks: Hooks,
        outage: StoreOutage,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._logger = logger
        self._signals = signals
        self._hooks = hooks
        self._outage = outage
        self._pending: list[FencedOutcome] = []
        """Outcomes that the completer writes itself and that have no verdict yet. Those that are being written come
        first."""
        self._exchanged_kinds: frozenset[str] = frozenset()
        self._exchangeable: list[FencedOutcome] = []
        """Outcomes that wait for the next claim request."""
        self._exchanging: list[FencedOutcome] = []
        self._event = asyncio.Event()
        self._is_flushed = asyncio.Event()
        self._is_flushed.set()
        self._reports: dict[int, Attempt] = {}
        self._overdue: dict[int, Attempt] = {}
        self._report_event = asyncio.Event()
        self.is_store_failing: bool = False
        self.stale: int = 0
        """The number of stale outcomes."""
        self.finished: int = 0
        self._metrics = metrics or Metrics()

    def add(self, fenced: FencedOutcome) -> None:
        """Queue an outcome: for the next exchange if its kind is one of the exchanged kinds, otherwise for the next
        write."""
        self._is_flushed.clear()
        if fenced.kind is not None and fenced.kind in self._exchanged_kinds:
            self._exchangeable.append(fenced)
            self._signals.exchangeable()
        else:
            self.write([fenced])

    def write(self, fenced_outcomes: Iterable[FencedOutcome]) -> None:
        """Queue these outcomes for the next write, without an exchange."""
        self._pending += fenced_outcomes
        self._event.set()

    def exchange_kinds(self, kinds: frozenset[str]) -> None:
        """Set the kinds whose outcomes are exchanged, and queue the waiting outcomes accordingly."""
        self._exchanged_kinds = kinds
        waiting, self._exchangeable = self._exchangeable, []
        for fenced in waiting:
            self.add(fenced)

    @property
    def has_exchangeable(self) -> bool:
        """Whether outcomes wait for the next exchange."""
        return bool(self._exchangeable)

    def take_exchangeable(self) -> list[FencedOutcome]:
        """Take the outcomes for the next exchange. The caller then calls `exchanged` or `not_exchanged`."""
        self._exchanging, self._exchangeable = self._exchangeable[:BATCH], self._exchangeable[BATCH:]
        return self._exchanging

    def exchanged(self, verdicts: Collection[Verdict]) -> None:
        """Handle the verdicts of the outcomes that `take_exchangeable` returned."""
        batch, self._exchanging = self._exchanging, []
        self.announce_all(batch, verdicts)

    def not_exchanged(self) -> None:
        """Queue the outcomes that `take_exchangeable` returned for the next write: there was no claim, or the exchange
        failed."""
        outcomes, self._exchanging = self._exchanging, []
        if outcomes:
            self.write(outcomes)

    @property
    def unwritten(self) -> set[int]:
        """The tasks whose outcomes have no verdict yet."""
        waiting = (*self._pending, *self._exchangeable, *self._exchanging)
        return {fenced.id for fenced in waiting}

    def progressed(self, attempt: Attempt) -> None:
        """Queue the attempt's progress for the next report."""
        self._reports[attempt.claim.id] = attempt
        self._report_event.set()

    def mark_overdue(self, attempt: Attempt) -> None:
        """Queue an overdue mark for the next report: the task function still runs after its deadline."""
        self._overdue[attempt.claim.id] = attempt
        self._report_event.set()

    async def flushed(self) -> None:
        """Return when all added outcomes have their verdicts."""
        await self._is_flushed.wait()

    async def step(self) -> None:
        """Wait for outcomes, then write all of them. A failed write is repeated."""
        await self._event.wait()
        while self._pending:
            batch = self._pending[:BATCH]
            verdicts = await self._write(batch)
            del self._pending[: len(batch)]
            self.announce_all(batch, verdicts)
            self._signals.permits_freed([verdict.kind for verdict in verdicts])
        self._event.clear()
        self._note_flushed()

    def announce_all(self, batch: Collection[FencedOutcome], verdicts: Collection[Verdict]) -> None:
        """Handle the verdicts of a batch, and signal that its tasks have ended."""
        self._metrics.note_finished(batch, verdicts)
        for fenced, verdict in zip(batch, verdicts, strict=True):
            self.announce(fenced, verdict)
        self._signals.ended([fenced.id for fenced in batch])
        self._note_flushed()

    def _note_flushed(self) -> None:
        if not (self._pending or self._exchangeable or self._exchanging):
            self._is_flushed.set()

    async def report_step(self) -> None:
        """Wait for progress or overdue marks, write them, and pause."""
        await self.report_now()
        await self._clock.sleep(REPORT_SECONDS)

    async def report_now(self) -> None:
        """Wait for progress or overdue marks, and write them."""
        await self._report_event.wait()
        self._report_event.clear()
        reports, self._reports = self._reports, {}
        overdue, self._overdue = self._overdue, {}
        notes = [note for attempt in {**reports, **overdue}.values() for note in self._report(attempt, overdue)]
        try:
            await self._store.report(notes)
        except DataRejected:
            raise
        except StoreError:
            self._keep_for_later(reports, overdue, notes)
            raise

    def _keep_for_later(self, reports: dict[int, Attempt], overdue: dict[int, Attempt], notes: list[Report]) -> None:
        """Queue again the reports that could not be written. Newer progress of an attempt replaces older progress."""
        for note in notes:
            attempt = reports.get(note.id) or overdue.get(note.id)
            if attempt is not None:  # else it is a member, whose leader has the progress
                attempt.progress = attempt.progress or note.progress
        self._reports = {**reports, **self._reports}
        self._overdue = {**overdue, **self._overdue}
        self._report_event.set()

    @staticmethod
    def _report(attempt: Attempt, overdue: dict[int, Attempt]) -> list[Report]:
        """The reports of all tasks of an attempt: one, or several if it leads a batch. Clears the progress of the
        attempt."""
        progress, is_overdue = attempt.progress, attempt.claim.id in overdue
        attempt.progress = None
        return [
            Report(id=item.claim.id, claim_no=item.claim.claim_no, progress=progress, overdue=is_overdue)
            for item in attempt.items
        ]

    async def _write(self, batch: list[FencedOutcome]) -> list[Verdict]:
        failures = 0
        while True:
            asked_at = self._clock.monotonic()
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
                    self._log_outage(error, len(batch))
            else:
                if self.is_store_failing:
                    self._outage.end()
                    self._logger.debug("%d outcomes that waited for the store are written", len(batch))
                self.is_store_failing = False
                self._metrics.note_finish(self._clock.monotonic() - asked_at, len(batch))
                return verdicts
            failures += 1
            await self._clock.sleep(pause_after(failures))

    def _log_outage(self, error: Exception, waiting: int) -> None:
        if isinstance(error, StoreUnavailable):
            self._outage.begin(error)
            self._logger.debug("%d outcomes wait for the store", waiting)
        else:  # such as a privilege that is missing
            self._logger.warning("%d outcomes wait for the store: %s", waiting, error)

    def announce_now(self, fenced: FencedOutcome, verdict: Verdict) -> None:
        """Handle a verdict that this completer did not receive itself: the success was committed by
        `ctx.transaction()`."""
        self._metrics.note_finished((fenced,), (verdict,))
        self.announce(fenced, verdict)
        self._signals.permits_freed([verdict.kind])
        self._signals.ended([fenced.id])

    def announce(self, fenced: FencedOutcome, verdict: Verdict) -> None:
        """Count an outcome, call the hooks, and signal to the other parts of the node what the verdict means for
        them."""
        outcome = fenced.outcome
        applied = outcome if verdict.state is _SUCCEEDED else as_applied(outcome, verdict)
        if applied is not outcome:
            if isinstance(outcome, ServerFault):
                self._log_charge(fenced, applied)
            fenced = msgspec.structs.replace(fenced, outcome=applied)
        self.finished += 1
        if self._hooks.open or self._hooks.feed.open:
            self._hooks.finished(fenced, verdict)
        if verdict.released:
            self._signals.ready(verdict.released)
            if verdict.has_scheduled:
                self._signals.due_in(0.0)
        if verdict.ended:
            self._signals.expired(verdict.ended)
        if not fenced.is_server_well:  # the server may back off now, and the alarm must know when that ends
            self._signals.due_in(0.0)
        if verdict.servers:
            self._signals.servers_changed(verdict.servers)
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
            case State.FAILED if isinstance(fenced.outcome, Refused):
                self._logger.warning(
                    "task %d has failed for good (error): its arguments fit no live node of its kind",
                    fenced.id,
                    extra={"task_id": fenced.id},
                )
            case State.FAILED if isinstance(outcome, Succeeded):
                self._logger.error(
                    "task %d has failed for good (error): it is a map, and a task that waits for it holds the unique "
                    "key of an item",
                    fenced.id,
                    extra={"task_id": fenced.id},
                )
            case State.WAITING:  # its batch may be due later
                self._signals.due_in(0.0)
            case State.SCHEDULED:
                self._signals.due_in(getattr(fenced.outcome, "delay", 0) / 1_000_000)
        if verdict.child_ids and isinstance(fenced.outcome, Succeeded):
            self._announce_children(fenced.outcome)

    def _log_charge(self, fenced: FencedOutcome, applied: Outcome) -> None:
        """Log that a task has blamed servers too often."""
        is_final = isinstance(applied, Failed)
        self._logger.log(
            logging.ERROR if is_final else logging.WARNING,
            "task %d has blamed its servers %d times; %s",
            fenced.id,
            SERVER_FAILURE_LIMIT,
            "it has failed for good" if is_final else "from now on this costs it attempts",
            extra={"task_id": fenced.id},
        )

    def _announce_children(self, outcome: Succeeded) -> None:
        self._metrics.note_accepted(outcome.children)
        self._signals.ready([child.kind for child in outcome.children])
        self._signals.children(outcome.children)
        self._signals.due_in(0.0)


def _is_about_the_data(error: Exception) -> bool:
    """Whether the outcome itself is at fault. Other errors, such as a missing privilege or table, do not lose the
    outcome: it waits until the database is repaired."""
    return isinstance(error, DataRejected) or not isinstance(error, StoreError)


def _rejected(fenced: FencedOutcome, error: Exception) -> FencedOutcome:
    """A failure that describes the store's error. It replaces the outcome that could not be stored."""
    outcome = Failed(reason=Reason.ERROR, error=outcomes.describe(error, 0, None))
    return msgspec.structs.replace(fenced, outcome=outcome, progress=None)
