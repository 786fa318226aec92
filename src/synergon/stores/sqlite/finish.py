"""Attempts end: the one place where `running` becomes something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    ErrorRecord,
    Failed,
    FencedOutcome,
    HandedBack,
    KeyAssigned,
    Outcome,
    Progress,
    Report,
    Retrying,
    Snoozed,
    Succeeded,
    Verdict,
)
from synergon.model.record import to_datetime
from synergon.policies import CRASH_LIMIT
from synergon.stores.sqlite import server_health
from synergon.stores.sqlite.follow_ups import draw
from synergon.stores.sqlite.insert import store
from synergon.stores.sqlite.transaction import Moves, Transaction, as_json

ERRORS_KEPT: Final = 20
"""A task that fails for ever must not grow for ever."""

NEVER_TWICE: Final = "its node gave it back after it had started; a command is never run twice"

_ERRORS: Final = msgspec.json.Decoder(tuple[ErrorRecord, ...])


def finish(transaction: Transaction, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
    """Settle attempts. Plain successes, which are nearly all, go in bulk; the others one by one."""
    running = {row[0]: row for row in transaction.rows("running", as_json(entry.id for entry in fenced_outcomes))}
    succeeded: list[tuple[int, str | None]] = []
    counts: Counter[tuple[str, str]] = Counter()
    wellness: list[tuple[str, str, bool]] = []
    verdicts: list[Verdict | None] = []
    for fenced in fenced_outcomes:
        row = running.get(fenced.id)
        if row is None or row[1] != fenced.claim_no:
            known = _already(transaction, fenced)
            # What this very call has settled is not written yet: that is asked for again at the end.
            verdicts.append(known if known.state is not None else None)
            continue
        del running[fenced.id]  # a second settlement of the same claim must not be applied again
        _, _, kind, queue, cancel, is_command, limit_key, group_id = row
        if limit_key is not None or group_id is not None:
            transaction.touch(kind, limit_key, group_id)
        if fenced.server is not None:
            wellness.append((*fenced.server, fenced.is_server_well))
        if fenced.progress is not None:
            _set_progress(transaction, fenced.id, fenced.claim_no, fenced.progress)
        outcome = fenced.outcome
        if cancel or type(outcome) is not Succeeded:
            state = _apply(transaction, fenced.id, outcome, cancel=bool(cancel), is_command=bool(is_command))
            verdicts.append(Verdict(fenced.id, state, (), kind))
        elif outcome.children:
            verdicts.append(_succeed_with_children(transaction, fenced.id, kind, outcome))
        else:
            succeeded.append((fenced.id, _text(outcome.result)))
            counts[queue, kind] += 1
            verdicts.append(Verdict(fenced.id, State.SUCCEEDED, (), kind))
    _end_all(transaction, succeeded, State.SUCCEEDED, None, counts, by_owner=True)
    if wellness:
        server_health.note(transaction, wellness)
    moves = draw(transaction)
    if not moves and not transaction.released and None not in verdicts:
        return cast("list[Verdict]", verdicts)
    found = [
        _with_new_states(verdict, moves) if verdict is not None else _already(transaction, fenced)
        for fenced, verdict in zip(fenced_outcomes, verdicts, strict=True)
    ]
    if found and transaction.released:
        released, transaction.released = tuple(transaction.released), []
        found[-1] = msgspec.structs.replace(found[-1], released=released)
    return found


def _with_new_states(verdict: Verdict, moves: Moves) -> Verdict:
    """A task that went back into its line may have a place there at once."""
    if verdict.id not in moves:
        return verdict
    return msgspec.structs.replace(verdict, state=moves[verdict.id][1])


def _text(result: bytes | None) -> str | None:
    return result.decode() if result is not None else None


def _succeed_with_children(transaction: Transaction, task_id: int, kind: str, outcome: Succeeded) -> Verdict:
    """The parent ends first, so that a child may have its key."""
    counts = _leave(transaction, [task_id])
    _end_all(transaction, [(task_id, _text(outcome.result))], State.SUCCEEDED, None, counts, by_owner=True)
    children = [msgspec.structs.replace(child, on_conflict="return") for child in outcome.children]
    return Verdict(task_id, State.SUCCEEDED, tuple(child.id for child in store(transaction, children)), kind)


def _end_all(
    transaction: Transaction,
    ended: Sequence[tuple[int, str | None]],
    state: State,
    reason: Reason | None,
    counts: Counter[tuple[str, str]],
    *,
    by_owner: bool,
) -> None:
    """Move rows, given as pairs of id and result, to the history; `counts` says how many of which queue and kind."""
    if not ended:
        return
    transaction.run("end", state, reason, by_owner, transaction.now, as_json(ended))
    transaction.run("forget", as_json(task_id for task_id, _ in ended))
    for (queue, kind), count in counts.items():
        transaction.run("tally", queue, kind, state, count)


def _already(transaction: Transaction, fenced: FencedOutcome) -> Verdict:
    """The verdict of a settlement that finds its claim not running: it was applied before, or it is stale."""
    row = transaction.row("finished", id=fenced.id, claim_no=fenced.claim_no)
    if row is None:
        return Verdict(fenced.id, None)
    state, kind = row
    # Claimed again since then: what this settlement had led to was `ready`, or became that.
    return Verdict(fenced.id, State.READY if state == State.RUNNING else State(state), (), kind)


def _apply(transaction: Transaction, task_id: int, outcome: Outcome, *, cancel: bool, is_command: bool) -> State:
    match outcome:
        case Failed(error=error) | Retrying(error=error):
            append_error(transaction, task_id, error)
        case Crashed(error=error):
            charge_crash(transaction, task_id, error)
        case HandedBack() if is_command and not cancel:
            charge_crash(transaction, task_id, ErrorRecord(attempt=0, type="Crash", message=NEVER_TWICE))
        case Snoozed() | HandedBack() | KeyAssigned():
            transaction.run("charge", 1, 0, task_id)
        case Cancelled(why=why) if why is not None:
            append_why(transaction, task_id, why)
    if cancel:
        return end(transaction, [task_id], State.CANCELLED, Reason.CANCELLED, by_owner=True)
    return _move(transaction, task_id, outcome, is_command=is_command)


def _move(transaction: Transaction, task_id: int, outcome: Outcome, *, is_command: bool) -> State:
    match outcome:
        case Failed(reason=reason):
            return end(transaction, [task_id], State.FAILED, reason, by_owner=True)
        case Cancelled():
            return end(transaction, [task_id], State.CANCELLED, Reason.CANCELLED, by_owner=True)
        case _ if is_command or (isinstance(outcome, Crashed) and crashes_of(transaction, task_id) >= CRASH_LIMIT):
            return end(transaction, [task_id], State.FAILED, Reason.CRASHED, by_owner=True)
        case Retrying(delay=delay) | Snoozed(delay=delay):
            return release(transaction, task_id, transaction.now + delay, by_owner=True)
        case KeyAssigned(limit_key=limit_key):
            transaction.run("enter_key_queue", limit_key, task_id)
        case HandedBack(protected_for=protected_for) if protected_for > 0:
            transaction.run("protect", transaction.now + protected_for, task_id)
    return release(transaction, task_id, None, by_owner=True)


def end(
    transaction: Transaction, ids: Sequence[int], state: State, reason: Reason | None, *, by_owner: bool = False
) -> State:
    """Move rows without a result to the history; `by_owner`: whoever claimed them says so."""
    counts = _leave(transaction, ids)
    _end_all(transaction, [(task_id, None) for task_id in ids], state, reason, counts, by_owner=by_owner)
    return state


def _leave(transaction: Transaction, ids: Sequence[int]) -> Counter[tuple[str, str]]:
    """Tasks are about to end: how many of which queue and kind they are; their lines and groups are written down."""
    counts: Counter[tuple[str, str]] = Counter()
    for queue, kind, limit_key, group_id in transaction.rows("memberships", as_json(ids)):
        transaction.touch(kind, limit_key, group_id)
        counts[queue, kind] += 1
    return counts


def release(transaction: Transaction, task_id: int, run_at: int | None, *, by_owner: bool = False) -> State:
    """Put a running task back: `scheduled` if `run_at` is yet to come, else `ready`, or into its line."""
    _, kind, *_, limit_key, _ = transaction.row("live", task_id)
    if run_at is not None and run_at > transaction.now:
        state = State.SCHEDULED
    else:
        state = State.READY if limit_key is None else State.WAITING
    transaction.touch(kind, limit_key)
    transaction.run("release", state, run_at, by_owner, task_id)
    return state


def give_attempt_back(transaction: Transaction, task_id: int) -> int:
    """Charge nothing for the attempt; how many crashes it has."""
    transaction.run("charge", 1, 0, task_id)
    return crashes_of(transaction, task_id)


def charge_crash(transaction: Transaction, task_id: int, error: ErrorRecord) -> int:
    """Give the attempt back, charge a crash instead; how many it has now."""
    append_error(transaction, task_id, error)
    transaction.run("charge", 1, 1, task_id)
    return crashes_of(transaction, task_id)


def crashes_of(transaction: Transaction, task_id: int) -> int:
    """How often its process has died under it."""
    crashes: int = transaction.row("errors", task_id)[2]
    return crashes


def append_why(transaction: Transaction, task_id: int, why: str) -> None:
    """Keep what was said with a cancel."""
    append_error(transaction, task_id, ErrorRecord(attempt=0, type="Cancel", message=why))


def append_error(transaction: Transaction, task_id: int, error: ErrorRecord) -> None:
    """Add to the list of errors, which keeps the latest."""
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
    if transaction.row("is_running", entry.id, entry.claim_no) is None:
        return False
    if entry.progress is not None:
        _set_progress(transaction, entry.id, entry.claim_no, entry.progress)
    if entry.overdue:
        transaction.run("set_overdue", entry.id, entry.claim_no)
    return True


def _set_progress(transaction: Transaction, task_id: int, claim_no: int, progress: Progress) -> None:
    transaction.run("set_progress", msgspec.json.encode(progress), task_id, claim_no)
