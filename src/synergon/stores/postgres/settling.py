"""Attempts end: the one place where `running` becomes something else. All of it happens on locked rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
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
    Outcome,
    Report,
    Retrying,
    Settlement,
    Snoozed,
    Succeeded,
    Verdict,
)
from synergon.stores.postgres.inserting import insert
from synergon.stores.postgres.session import Session

ERRORS_KEPT: Final = 20
"""A task that fails for ever must not grow for ever."""

_ERRORS: Final = msgspec.json.Decoder(tuple[ErrorRecord, ...])


async def finish(session: Session, settlements: Sequence[Settlement]) -> list[Verdict]:
    """Settle attempts. Plain successes, which are nearly all, go in bulk; the others one by one."""
    ids = sorted({settlement.id for settlement in settlements})
    running = {row["id"]: row for row in await session.rows("lock_running", ids)}
    succeeded: dict[int, str | None] = {}
    verdicts: list[Verdict | None] = []
    for settlement in settlements:
        row = running.get(settlement.id)
        if row is None or row["claim_no"] != settlement.claim_no:
            known = _already(settlement, await session.row("settled", [settlement.id]))
            # What this very call has settled is not written yet: that is asked for again at the end.
            verdicts.append(known if known.state is not None else None)
            continue
        del running[settlement.id]  # a second settlement of the same claim must not be applied again
        if settlement.progress is not None:
            text = msgspec.json.encode(settlement.progress).decode()
            await session.run("set_progress", settlement.id, settlement.claim_no, text)
        outcome, kind = settlement.outcome, row["kind"]
        if isinstance(outcome, Succeeded) and not row["cancel_requested"]:
            if outcome.children:
                verdicts.append(await _succeed_with_children(session, settlement.id, kind, outcome))
            else:
                succeeded[settlement.id] = _text(outcome.result)
                verdicts.append(Verdict(settlement.id, State.SUCCEEDED, (), kind))
        else:
            verdicts.append(Verdict(settlement.id, await _apply(session, row, outcome), (), kind))
    if succeeded:
        await end(session, succeeded, State.SUCCEEDED, None, by_owner=True)
    return await _fill(session, settlements, verdicts)


async def _fill(
    session: Session, settlements: Sequence[Settlement], verdicts: Sequence[Verdict | None]
) -> list[Verdict]:
    """Verdicts for settlements that found their claim not running: applied before, or stale."""
    missing = [settlement.id for settlement, verdict in zip(settlements, verdicts, strict=True) if verdict is None]
    known = {row["id"]: row for row in await session.rows("settled", missing)} if missing else {}
    return [
        verdict or _already(settlement, known.get(settlement.id))
        for settlement, verdict in zip(settlements, verdicts, strict=True)
    ]


def _already(settlement: Settlement, row: Any) -> Verdict:
    if row is None or row["settled_no"] != settlement.claim_no:
        return Verdict(settlement.id, None)
    # Claimed again since then: what this settlement had led to was `ready`, or became that.
    state = State(row["state"])
    return Verdict(settlement.id, State.READY if state is State.RUNNING else state, (), row["kind"])


def _text(value: bytes | None) -> str | None:
    return value.decode() if value is not None else None


async def _succeed_with_children(session: Session, task_id: int, kind: str, outcome: Succeeded) -> Verdict:
    """The parent ends first, so that a child may have its key."""
    await end(session, {task_id: _text(outcome.result)}, State.SUCCEEDED, None, by_owner=True)
    children = [msgspec.structs.replace(child, on_conflict="return") for child in outcome.children]
    inserted = await insert(session, children)
    return Verdict(task_id, State.SUCCEEDED, tuple(child.id for child in inserted), kind)


async def _apply(session: Session, row: Any, outcome: Outcome) -> State:
    task_id, cancel = row["id"], row["cancel_requested"]
    match outcome:
        case Failed(reason=reason, error=error):
            await charge(session, row, error)
            if not cancel:
                return await end(session, {task_id: None}, State.FAILED, reason, by_owner=True)
        case Retrying(delay=delay, error=error):
            await charge(session, row, error)
            if not cancel:
                return await release(session, task_id, delay, by_owner=True)
        case Crashed(error=error):
            return await crash(session, row, error, by_owner=True)
        case Snoozed(delay=delay):
            await charge(session, row, give_back=1)
            if not cancel:
                return await release(session, task_id, delay, by_owner=True)
        case HandedBack():
            await charge(session, row, give_back=1)
            if not cancel:
                return await release(session, task_id, None, by_owner=True)
        case Cancelled(why=why) if why is not None:
            await charge(session, row, ErrorRecord(attempt=0, type="Cancel", message=why))
    return await end(session, {task_id: None}, State.CANCELLED, Reason.CANCELLED, by_owner=True)


async def crash(session: Session, row: Any, error: ErrorRecord, *, by_owner: bool) -> State:
    """The process died under it: back among the ready, unless that was once too often, or it was to be cancelled."""
    await charge(session, row, error, give_back=1, crashes=1)
    if row["cancel_requested"]:
        return await end(session, {row["id"]: None}, State.CANCELLED, Reason.CANCELLED, by_owner=by_owner)
    if row["crashes"] + 1 >= CRASH_LIMIT:
        return await end(session, {row["id"]: None}, State.FAILED, Reason.CRASHED, by_owner=by_owner)
    return await release(session, row["id"], None, by_owner=by_owner)


async def end(
    session: Session, results: dict[int, str | None], state: State, reason: Reason | None, *, by_owner: bool = False
) -> State:
    """Move rows to the history; `by_owner`: whoever claimed them says so."""
    ids, values = list(results), list(results.values())
    for queue, kind in await session.profile.move(session, ids, values, state, reason, by_owner):
        session.count(queue, kind, state, 1)
    return state


async def release(session: Session, task_id: int, delay: int | None, *, by_owner: bool = False) -> State:
    """Put a running task back: `scheduled` if it has to wait, else `ready`."""
    return State(await session.value("release", task_id, delay, by_owner))


async def charge(
    session: Session, row: Any, error: ErrorRecord | None = None, *, give_back: int = 0, crashes: int = 0
) -> None:
    """What the attempt costs the task."""
    errors = await appended(session, row, error) if error is not None else None
    await session.run("charge", row["id"], errors, give_back, crashes)


async def appended(session: Session, row: Any, error: ErrorRecord) -> str:
    """The list of errors with one more."""
    now: datetime = await session.value("now")
    dated = msgspec.structs.replace(error, at=now, attempt=error.attempt or row["attempts"])
    return msgspec.json.encode((*decode_errors(row["errors"]), dated)[-ERRORS_KEPT:]).decode()


def decode_errors(stored: str | None) -> tuple[ErrorRecord, ...]:
    """The list of errors from the row."""
    return _ERRORS.decode(stored) if stored else ()


async def report(session: Session, reports: Sequence[Report]) -> list[bool]:
    """Write notes of running attempts, in the order of ids, so that two callers do not wait for each other."""
    fresh: dict[tuple[int, int], bool] = {}
    for entry in sorted(reports, key=lambda entry: entry.id):
        progress = msgspec.json.encode(entry.progress).decode() if entry.progress is not None else None
        changed = await session.run("report", entry.id, entry.claim_no, progress, entry.overdue)
        fresh[entry.id, entry.claim_no] = changed == 1
    return [fresh[entry.id, entry.claim_no] for entry in reports]
