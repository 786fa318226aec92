"""Attempts end: the one place where `running` becomes something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from synergon.lifecycle import Reason, State
from synergon.policies import CRASH_LIMIT
from synergon.records import (
    Cancelled,
    Crashed,
    ErrorRecord,
    Failed,
    HandedBack,
    Progress,
    Report,
    Retrying,
    Settlement,
    Snoozed,
    Succeeded,
    Verdict,
    to_datetime,
)
from synergon.stores.sqlite.inserting import insert
from synergon.stores.sqlite.transaction import Transaction

ERRORS_KEPT: Final = 20
"""A task that fails for ever must not grow for ever."""

_ERRORS: Final = msgspec.json.Decoder(tuple[ErrorRecord, ...])


def finish(transaction: Transaction, settlements: Sequence[Settlement]) -> list[Verdict]:
    """Settle attempts. Plain successes, which are nearly all, go in bulk; the others one by one."""
    ids = msgspec.json.encode([settlement.id for settlement in settlements]).decode()
    running = {row[0]: row for row in transaction.rows("running", ids)}
    verdicts: list[Verdict] = []
    ended: list[tuple[Any, ...]] = []
    for settlement in settlements:
        row = running.get(settlement.id)
        if row is None or row[1] != settlement.claim_no:
            verdicts.append(_already(transaction, settlement))
            continue
        del running[settlement.id]  # a second settlement of the same claim must not be applied again
        _, _, kind, cancel = row
        if settlement.progress is not None:
            _set_progress(transaction, settlement.id, settlement.claim_no, settlement.progress)
        outcome = settlement.outcome
        if type(outcome) is Succeeded and not cancel:
            children = insert(transaction, outcome.children) if outcome.children else ()
            ended.append((State.SUCCEEDED, None, outcome.result, transaction.now, settlement.id))
            verdicts.append(Verdict(settlement.id, State.SUCCEEDED, tuple(c.id for c in children), kind))
        else:
            state = _settle(transaction, settlement.id, outcome, cancel=bool(cancel))
            verdicts.append(Verdict(settlement.id, state, (), kind))
    transaction.run_many("end", ended)
    transaction.run_many("forget", [(row[4],) for row in ended])
    return verdicts


def _already(transaction: Transaction, settlement: Settlement) -> Verdict:
    """The verdict of a settlement that finds its claim not running: it was applied before, or it is stale."""
    row = transaction.row("ended_claim", settlement.id) or transaction.row("unclaimed", settlement.id)
    if row is not None and row[0] == settlement.claim_no and row[1] in _possible(settlement):
        return Verdict(settlement.id, State(row[1]), (), row[2])
    return Verdict(settlement.id, None)


def _possible(settlement: Settlement) -> frozenset[State]:
    """The states that this outcome can have led to."""
    match settlement.outcome:
        case Succeeded():
            own = {State.SUCCEEDED}
        case Failed():
            own = {State.FAILED}
        case Retrying() | Snoozed():
            own = {State.SCHEDULED, State.READY}
        case HandedBack():
            own = {State.READY}
        case Crashed():
            own = {State.READY, State.FAILED}
        case Cancelled():
            own = set()
    return frozenset(own | {State.CANCELLED})


def _settle(transaction: Transaction, task_id: int, outcome: Any, *, cancel: bool) -> State:
    match outcome:
        case Failed(reason=reason, error=error):
            _append_error(transaction, task_id, error)
            if not cancel:
                return end(transaction, task_id, State.FAILED, reason)
        case Retrying(delay=delay, error=error):
            _append_error(transaction, task_id, error)
            if not cancel:
                return release(transaction, task_id, transaction.now + delay)
        case Crashed(error=error):
            crashes = charge_crash(transaction, task_id, error)
            if not cancel and crashes >= CRASH_LIMIT:
                return end(transaction, task_id, State.FAILED, Reason.CRASHED)
            if not cancel:
                return release(transaction, task_id, None)
        case Snoozed(delay=delay) if not cancel:
            return release(transaction, task_id, transaction.now + delay, give_back=1)
        case HandedBack() if not cancel:
            return release(transaction, task_id, None, give_back=1)
        case Cancelled(why=why) if why is not None:
            append_why(transaction, task_id, why)
    return end(transaction, task_id, State.CANCELLED, Reason.CANCELLED)


def end(transaction: Transaction, task_id: int, state: State, reason: Reason | None) -> State:
    """Move the row to the history."""
    transaction.run("end", state, reason, None, transaction.now, task_id)
    transaction.run("forget", task_id)
    return state


def release(transaction: Transaction, task_id: int, run_at: int | None, *, give_back: int = 0) -> State:
    """Put a running task back: `scheduled` if `run_at` is yet to come, else `ready`."""
    state = State.SCHEDULED if run_at is not None and run_at > transaction.now else State.READY
    transaction.run("release", state, run_at, give_back, 0, task_id)
    return state


def charge_crash(transaction: Transaction, task_id: int, error: ErrorRecord) -> int:
    """Give the attempt back, charge a crash instead; how many it has now."""
    _append_error(transaction, task_id, error)
    transaction.run("charge", 1, 1, task_id)
    crashes: int = transaction.row("errors", task_id)[2]
    return crashes


def append_why(transaction: Transaction, task_id: int, why: str) -> None:
    """Keep what was said with a cancel."""
    _append_error(transaction, task_id, ErrorRecord(attempt=0, type="Cancel", message=why))


def _append_error(transaction: Transaction, task_id: int, error: ErrorRecord) -> None:
    stored, attempts, _ = transaction.row("errors", task_id)
    errors = decode_errors(stored)
    error = msgspec.structs.replace(error, at=to_datetime(transaction.now), attempt=error.attempt or attempts)
    transaction.run("set_errors", msgspec.json.encode((*errors, error)[-ERRORS_KEPT:]), task_id)


def decode_errors(stored: bytes | None) -> tuple[ErrorRecord, ...]:
    """The list of errors from the row."""
    return _ERRORS.decode(stored) if stored else ()


def report(transaction: Transaction, reports: Sequence[Report]) -> list[bool]:
    """Write notes of running attempts."""
    return [_report(transaction, entry) for entry in reports]


def _report(transaction: Transaction, entry: Report) -> bool:
    fresh = True
    if entry.progress is not None:
        fresh = _set_progress(transaction, entry.id, entry.claim_no, entry.progress)
    if entry.overdue and fresh:
        fresh = transaction.run("set_overdue", entry.id, entry.claim_no) == 1
    return fresh


def _set_progress(transaction: Transaction, task_id: int, claim_no: int, progress: Progress) -> bool:
    return transaction.run("set_progress", msgspec.json.encode(progress), task_id, claim_no) == 1
