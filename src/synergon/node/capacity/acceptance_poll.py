"""The poll of one kind with `can_accept`: decides which of its ready tasks this node takes.

Every candidate is read, even behind many rejected ones. The function is not called again for a candidate while its
answer holds. One call of the function runs at a time. A call that raises, exceeds its timeout or returns an invalid
answer counts as a rejection and is logged. Only this kind waits for the call, for at most twice the timeout. While a
late call has not ended, all candidates of the kind are rejected without a call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final

import msgspec

from synergon.errors import PayloadError
from synergon.model.clock import Clock
from synergon.model.task_records import TaskRecord
from synergon.node.callbacks.callbacks import Callbacks
from synergon.node.capacity.candidate_cursor import CandidateCursor, Position
from synergon.node.claims.admission import Admission
from synergon.node.signals import Signals
from synergon.options.acceptor import Candidate, accepted_ids
from synergon.stores.base import Store
from synergon.task import AnyTask

PAGE: Final = 100
"""How many candidates are read at once."""
LONGEST_PAGE: Final = 1000
"""The maximum number of candidates that are read at once. Pages grow up to it while all candidates of a page have
answers."""
FEW: Final = 10
"""How many candidates are read first at a position where new ones are possible but unlikely."""


class Answer(msgspec.Struct, frozen=True):
    """The answer of `can_accept` for a task, and until when it holds by the monotonic clock."""

    is_accepted: bool
    until: float


class AcceptancePoll:
    """Reads the candidates of one kind when there may be new ones, and continues after those that it has read. The
    scheduler starts the poll (`begin`), and reports which accepted tasks were claimed (`note_claim_result`)."""

    def __init__(
        self,
        task_type: AnyTask,
        store: Store,
        admission: Admission,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        callbacks: Callbacks,
        signals: Signals,
    ) -> None:
        assert task_type.acceptor is not None
        self._task_type = task_type
        self._acceptor = task_type.acceptor
        self._store = store
        self._clock = clock
        self._logger = logger
        self._callbacks = callbacks
        self._known_as = f"can_accept of {task_type.kind} ({task_type.acceptor.name})"
        self._admission = admission
        self._signals = signals
        self._answers: dict[int, Answer] = {}
        """The answers by task, oldest first."""
        self._accepted: dict[int, float] = {}
        """Accepted candidates that the next claim may take, and until when their answers hold."""
        self._cursor = CandidateCursor(clock.monotonic())
        self._is_at_end = False
        self._may_have_new = True
        self._must_start_over = True
        """Whether all candidates must be read again, not only new ones."""
        self._is_any_unfit = False
        self._has_passed_over = False
        """Whether the last pass skipped candidates: it read only positions where new ones are likely."""
        self._has_logged = False
        self._wanted = asyncio.Event()
        self._late_call: asyncio.Task[Any] | None = None
        self._thread_is_gone = asyncio.Event()
        self._thread_is_gone.set()
        self._may_wait = False
        """Whether the poll may still wait for a late call. It waits only once."""
        self._expiry: asyncio.TimerHandle | None = None

    def _capacity(self) -> int:
        """How many tasks of the kind can start now. 0 while the node may not claim."""
        return self._admission.free_count(self._task_type.kind) if self._admission.is_open else 0

    # ------------------------------------------------------------ calls of the scheduler

    def note_new_candidates(self) -> None:
        """Note that there may be new candidates, at any position in claim order."""
        self._may_have_new = True

    def start_over(self) -> None:
        """Have the next pass read all candidates again, from the first one on."""
        self._may_have_new = self._must_start_over = True

    def begin(self) -> bool:
        """Start the poll if no accepted candidate is left and there is capacity. Returns whether the kind must not be
        claimed yet. The poll signals its end by `Signals.accepted`."""
        if self.offers() or self._capacity() <= 0:
            return False
        if self._may_have_new or self._is_any_unfit or not self._is_at_end:
            self._wanted.set()
        return True

    def offers(self) -> tuple[int, ...]:
        """The accepted candidates that the next claim may take. If an answer has expired, the next pass reads all
        candidates again."""
        now = self._clock.monotonic()
        if any(until <= now for until in self._accepted.values()):
            self._accepted = {task_id: until for task_id, until in self._accepted.items() if until > now}
            self.start_over()
        return tuple(self._accepted)

    def note_claim_result(
        self, offered: Iterable[int], taken: Collection[int], *, was_enough: bool, is_any_unfit: bool
    ) -> bool:
        """Note which of the offered tasks a claim has taken. Returns whether another claim is worthwhile.

        `was_enough` means that the claim had capacity for more tasks than it took. Then the offered tasks that it did
        not take run elsewhere or do not fit. They are dropped here, so that they do not block the tasks after them. If
        they are still ready, the next poll finds them again.
        """
        for task_id in offered if was_enough else taken:
            self._accepted.pop(task_id, None)
        self._is_any_unfit |= is_any_unfit
        return bool(self._accepted) or self._may_have_new or not self._is_at_end

    def is_rejected(self, task_id: int) -> bool:
        """Whether this node has rejected the task, and the rejection has not expired."""
        return self.rejected_for(task_id) is not None

    def rejected_for(self, task_id: int) -> float | None:
        """For how many more seconds a rejection of the task holds. None if it is not rejected."""
        verdict = self._answers.get(task_id)
        left = 0.0 if verdict is None or verdict.is_accepted else verdict.until - self._clock.monotonic()
        return left if left > 0 else None

    # ------------------------------------------------------------ reading candidates

    async def step(self) -> None:
        """Wait until the scheduler starts the poll, then call `can_accept` for as many candidates as there is capacity
        for."""
        await self._wanted.wait()
        self._wanted.clear()
        try:
            await self.read_all()
        except BaseException:
            self.start_over()
            self._wanted.set()
            raise
        if self._accepted or self._may_have_new or not self._is_at_end:
            self._signals.accepted(self._task_type.kind)

    async def read_all(self) -> None:
        """Read new candidates, then those after the cursor, until enough are accepted or all are read."""
        began_at = self._clock.monotonic()
        self._has_logged = False
        self._forget_expired()
        if self._may_have_new or (self._is_at_end and self._is_any_unfit):
            await self._read_new(began_at)
        limit = PAGE
        while not self._is_at_end and self._wants_more:
            asked_at = self._clock.monotonic()
            page = await self._store.read_candidates(
                self._admission.candidate_query(self._task_type.kind, self._cursor.cursor, limit)
            )
            self._cursor.note(page, self._clock.monotonic() - asked_at)
            was_known = await self._poll_page(page)
            self._is_at_end = len(page) < limit
            limit = min(limit * 2, LONGEST_PAGE) if was_known else PAGE
        self._set_timer(self._clock.monotonic() - began_at)

    @property
    def _wants_more(self) -> bool:
        return len(self._accepted) < self._capacity()

    async def _read_new(self, now: float) -> None:
        """Prepare to read all candidates again, if that is needed or cheap. Otherwise read only where new candidates
        are likely."""
        is_from_the_front = self._must_start_over or self._is_any_unfit or self._cursor.next_at() <= now
        self._may_have_new = self._must_start_over = self._is_any_unfit = self._is_at_end = False
        self._has_passed_over = not is_from_the_front
        if is_from_the_front:
            self._cursor = CandidateCursor(now)
            return
        for position in self._cursor.gaps():
            if not await self._fill(position):
                self.start_over()  # the others follow when there is capacity again
                return

    async def _fill(self, position: Position | None) -> bool:
        """Read the candidates after a position, up to the next rejected one, and judge them. Stops, and returns False,
        when as many are accepted as the node has capacity for."""
        limit = FEW
        while self._wants_more:
            page = await self._store.read_candidates(
                self._admission.candidate_query(self._task_type.kind, position, limit)
            )
            new = list(takewhile(lambda record: not self.is_rejected(record.id), page))
            self._cursor.note(new)
            await self._poll_page(new)
            if len(new) < limit:
                return True
            position, limit = (page[-1].priority, page[-1].fair_tag, page[-1].id), PAGE
        return False

    async def _poll_page(self, page: Sequence[TaskRecord]) -> bool:
        """Note the accepted candidates of the page. Calls the function for candidates without an answer. Returns
        whether all had an answer before."""
        now = self._clock.monotonic()
        unknown: list[TaskRecord] = []
        for record in page:
            verdict = self._answers.get(record.id)
            if verdict is None or verdict.until <= now:
                unknown.append(record)
            elif verdict.is_accepted:
                self._accepted[record.id] = verdict.until
        for start in range(0, len(unknown), PAGE):
            await self._ask_about(unknown[start : start + PAGE])
        return not unknown

    async def _ask_about(self, records: Sequence[TaskRecord]) -> None:
        accepted = await self._accepted_of(records)
        until = self._clock.monotonic() + self._acceptor.holds_seconds
        for record in records:
            self._answers.pop(record.id, None)
            self._answers[record.id] = Answer(record.id in accepted, until)
            if record.id in accepted:
                self._accepted[record.id] = until
        if len(accepted) < len(records):
            self._signals.rejected(self._task_type.kind, len(records) - len(accepted))

    def _forget_expired(self) -> None:
        now = self._clock.monotonic()
        while self._answers and (oldest := next(iter(self._answers.items())))[1].until <= now:
            del self._answers[oldest[0]]

    def _set_timer(self, taken_seconds: float) -> None:
        """Set a timer for the moment at which the first rejections expire, or skipped candidates are to be read. The
        timer is delayed by the duration of this pass, so that all answers of the pass have expired by then and one new
        pass renews them."""
        self.close()
        rejections = (verdict.until for verdict in self._answers.values() if not verdict.is_accepted)
        times = [until + taken_seconds for until in islice(rejections, 1)]
        if self._has_passed_over:
            times.append(self._cursor.next_at())
        if times:
            delay = max(min(times) - self._clock.monotonic(), 0.0)
            self._expiry = asyncio.get_running_loop().call_later(delay, self._renew)

    def _renew(self) -> None:
        self.start_over()
        self._signals.accepted(self._task_type.kind)

    def close(self) -> None:
        """Cancel the timer."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    # ------------------------------------------------------------ calling the function

    async def _accepted_of(self, records: Sequence[TaskRecord]) -> set[int]:
        candidates: list[Candidate] = []
        misfits: set[int] = set()
        for record in records:
            try:
                candidates.append(_candidate(record, self._task_type))
            except PayloadError:  # the function cannot judge it; its attempt fails and says why
                misfits.add(record.id)
        if not candidates:
            return misfits
        try:
            return misfits | accepted_ids(await self._answer(candidates), candidates)
        except Exception:  # noqa: BLE001  it is logged with its traceback
            self._log_failure(len(candidates))
            return misfits

    async def _answer(self, candidates: list[Candidate]) -> Any:
        """Call the function, and return its answer. Raises TimeoutError after its timeout. Returns an empty answer,
        without a call, while the previous call has not ended."""
        if not await self._is_free():
            return ()  # the late call was logged already
        self._may_wait = True
        self._late_call = call = self._callbacks.start(self._known_as, self._call(candidates))
        done, _ = await asyncio.wait([call], timeout=self._acceptor.timeout_seconds)
        if not done:
            call.cancel()
            raise TimeoutError(f"can_accept gave no answer within {self._acceptor.timeout_seconds:g} s")
        return call.result()

    async def _is_free(self) -> bool:
        """Whether no call is running. Waits for a late call once, for at most another timeout: the call may never end,
        but a drain of the node must end."""
        if self._may_wait and self._is_called:
            self._may_wait = False
            with suppress(TimeoutError):
                async with asyncio.timeout(self._acceptor.timeout_seconds):
                    if self._late_call is not None:
                        await asyncio.wait([self._late_call])
                    await self._thread_is_gone.wait()
        return not self._is_called

    @property
    def _is_called(self) -> bool:
        is_lingering = self._late_call is not None and not self._late_call.done()
        return is_lingering or not self._thread_is_gone.is_set()

    async def _call(self, candidates: list[Candidate]) -> Any:
        decide = partial(self._acceptor.decide, candidates)
        if not inspect.iscoroutinefunction(decide):
            self._thread_is_gone.clear()
        return await self._callbacks.call(self._known_as, decide, on_thread_end=self._thread_is_gone.set)

    def _log_failure(self, count: int) -> None:
        """Log a failed call of `can_accept`, once for each pass through the candidates."""
        if self._has_logged:
            return
        self._has_logged = True
        kind = self._task_type.kind
        self._logger.exception(
            "can_accept of %s gave no verdict on %d tasks; they are left to other nodes",
            kind,
            count,
            extra={"kind": kind},
        )


def _candidate(record: TaskRecord, task_type: AnyTask) -> Candidate:
    return Candidate(
        id=record.id,
        kind=record.kind,
        queue=record.queue,
        priority=record.priority,
        arguments=task_type.signature.decode(record.payload),
        attempts=record.attempts,
        enqueued_at=record.enqueued_at,
        tags=record.tags,
        meta=record.meta,
    )
