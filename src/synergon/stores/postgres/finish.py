"""Attempts end: the one place where `running` becomes something else. All of it happens on locked rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

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
    Report,
    Retrying,
    Snoozed,
    Succeeded,
    Verdict,
)
from synergon.policies import CRASH_LIMIT
from synergon.stores.postgres.follow_ups import draw
from synergon.stores.postgres.insert import bonds_of, store
from synergon.stores.postgres.lock_order import Bond, kinds_and_groups, lock_groups, lock_key_queues
from synergon.stores.postgres.server_health import Health
from synergon.stores.postgres.session import Moves, Session

ERRORS_KEPT: Final = 20
"""A task that fails for ever must not grow for ever."""

NEVER_TWICE: Final = "its node gave it back after it had started; a command is never run twice"

_ERRORS: Final = msgspec.json.Decoder(tuple[ErrorRecord, ...])


async def finish(session: Session, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
    """Settle attempts. Plain successes, which are nearly all, go in bulk; the others one by one."""
    kinds, groups = await kinds_and_groups(session, await _bonds(session, fenced_outcomes))
    await lock_key_queues(session, kinds)
    health = await Health.lock(session, fenced_outcomes)
    await lock_groups(session, groups)
    ids = sorted({fenced.id for fenced in fenced_outcomes})
    running = {row["id"]: row for row in await session.rows("lock_running", ids)}
    succeeded: dict[int, str | None] = {}
    verdicts: list[Verdict | None] = []
    for fenced in fenced_outcomes:
        row = running.get(fenced.id)
        if row is None or row["claim_no"] != fenced.claim_no:
            known = _already(fenced, await session.row("finished", [fenced.id]))
            # What this very call has settled is not written yet: that is asked for again at the end.
            verdicts.append(known if known.state is not None else None)
            continue
        del running[fenced.id]  # a second settlement of the same claim must not be applied again
        if row["limit_key"] is not None or row["group_id"] is not None:
            session.touch(row["kind"], row["limit_key"], row["group_id"])
        if fenced.server is not None:
            health.note(fenced)
        if fenced.progress is not None:
            text = msgspec.json.encode(fenced.progress).decode()
            await session.run("set_progress", fenced.id, fenced.claim_no, text)
        outcome, kind = fenced.outcome, row["kind"]
        if isinstance(outcome, Succeeded) and not row["cancel_requested"]:
            if outcome.children:
                verdicts.append(await _succeed_with_children(session, fenced.id, kind, outcome))
            else:
                succeeded[fenced.id] = _text(outcome.result)
                verdicts.append(Verdict(fenced.id, State.SUCCEEDED, (), kind))
        else:
            verdicts.append(Verdict(fenced.id, await _apply(session, row, outcome), (), kind))
    if succeeded:
        await end(session, succeeded, State.SUCCEEDED, None, by_owner=True)
    await health.write(session)
    moves = await draw(session)
    told = await _fill(session, fenced_outcomes, verdicts)
    if moves:
        told = _with_new_states(told, moves)
    if told and session.released:
        told[-1] = msgspec.structs.replace(told[-1], released=tuple(session.released))
    return told


async def _bonds(session: Session, fenced_outcomes: Sequence[FencedOutcome]) -> list[Bond]:
    """What these attempts and their children are bound to. The kinds stand in the rows."""
    bonds = [bond for entry in fenced_outcomes for bond in bonds_of(getattr(entry.outcome, "children", ()))]
    bound = [entry.id for entry in fenced_outcomes if _is_bound(entry)]
    if bound:
        entering = {
            entry.id: entry.outcome.limit_key for entry in fenced_outcomes if isinstance(entry.outcome, KeyAssigned)
        }
        bonds += [
            (row["kind"], entering.get(row["id"], row["limit_key"]), row["group_id"], None)
            for row in await session.rows("running_bonds", bound)
        ]
    return bonds


async def keyed_kinds(session: Session, fenced_outcomes: Sequence[FencedOutcome]) -> set[str]:
    """The kinds whose key queues these outcomes and their follow-ups concern, as far as the outcomes say so."""
    bonds = [bond for entry in fenced_outcomes for bond in bonds_of(getattr(entry.outcome, "children", ()))]
    for entry in fenced_outcomes:
        limit_key = entry.outcome.limit_key if isinstance(entry.outcome, KeyAssigned) else entry.limit_key
        if entry.kind is not None:
            bonds.append((entry.kind, limit_key, entry.group_id, None))
    kinds, _ = await kinds_and_groups(session, bonds)
    return kinds


def _is_bound(fenced: FencedOutcome) -> bool:
    return fenced.limit_key is not None or fenced.group_id is not None or isinstance(fenced.outcome, KeyAssigned)


def _with_new_states(verdicts: Sequence[Verdict], moves: Moves) -> list[Verdict]:
    """A task that went back into its line may have a place there at once."""
    return [
        msgspec.structs.replace(verdict, state=moves[verdict.id][1])
        if verdict.id in moves and verdict.state is State.WAITING
        else verdict
        for verdict in verdicts
    ]


async def _fill(
    session: Session, fenced_outcomes: Sequence[FencedOutcome], verdicts: Sequence[Verdict | None]
) -> list[Verdict]:
    """Verdicts for settlements that found their claim not running: applied before, or stale."""
    missing = [fenced.id for fenced, verdict in zip(fenced_outcomes, verdicts, strict=True) if verdict is None]
    known = {row["id"]: row for row in await session.rows("finished", missing)} if missing else {}
    return [
        verdict or _already(fenced, known.get(fenced.id))
        for fenced, verdict in zip(fenced_outcomes, verdicts, strict=True)
    ]


def _already(fenced: FencedOutcome, row: Any) -> Verdict:
    if row is None or row["finished_no"] != fenced.claim_no:
        return Verdict(fenced.id, None)
    # Claimed again since then: what this settlement had led to was `ready`, or became that.
    state = State(row["state"])
    return Verdict(fenced.id, State.READY if state is State.RUNNING else state, (), row["kind"])


def _text(value: bytes | None) -> str | None:
    return value.decode() if value is not None else None


async def _succeed_with_children(session: Session, task_id: int, kind: str, outcome: Succeeded) -> Verdict:
    """The parent ends first, so that a child may have its key."""
    await end(session, {task_id: _text(outcome.result)}, State.SUCCEEDED, None, by_owner=True)
    children = [msgspec.structs.replace(child, on_conflict="return") for child in outcome.children]
    inserted = await store(session, children)
    return Verdict(task_id, State.SUCCEEDED, tuple(child.id for child in inserted), kind)


async def _apply(session: Session, row: Any, outcome: Outcome) -> State:
    task_id = row["id"]
    await _charge_for(session, row, outcome)
    if row["cancel_requested"]:
        return await end(session, {task_id: None}, State.CANCELLED, Reason.CANCELLED, by_owner=True)
    match outcome:
        case Cancelled():
            return await end(session, {task_id: None}, State.CANCELLED, Reason.CANCELLED, by_owner=True)
        case Failed(reason=reason):
            return await end(session, {task_id: None}, State.FAILED, reason, by_owner=True)
        case _ if row["is_command"] or (isinstance(outcome, Crashed) and row["crashes"] + 1 >= CRASH_LIMIT):
            return await end(session, {task_id: None}, State.FAILED, Reason.CRASHED, by_owner=True)
        case Retrying(delay=delay) | Snoozed(delay=delay):
            return await release(session, row, delay, by_owner=True)
        case KeyAssigned(limit_key=limit_key):
            return await release(session, row, None, limit_key, by_owner=True)
        case HandedBack(protected_for=protected_for):
            return await release(session, row, None, by_owner=True, protected_for=protected_for)
    return await release(session, row, None, by_owner=True)


async def _charge_for(session: Session, row: Any, outcome: Outcome) -> None:
    match outcome:
        case Failed(error=error) | Retrying(error=error):
            await charge(session, row, error)
        case Crashed(error=error):
            await charge(session, row, error, give_back=1, crashes=1)
        case HandedBack() if row["is_command"] and not row["cancel_requested"]:
            error = ErrorRecord(attempt=0, type="Crash", message=NEVER_TWICE)
            await charge(session, row, error, give_back=1, crashes=1)
        case Snoozed() | HandedBack() | KeyAssigned():
            await charge(session, row, give_back=1)
        case Cancelled(why=why) if why is not None:
            await charge(session, row, ErrorRecord(attempt=0, type="Cancel", message=why))


async def take_back(session: Session, row: Any, error: ErrorRecord, crashes: int) -> State:
    """Its node died under it, and this is how many crashes it has now: back among the ready, unless that was once too
    often, or it was to be cancelled."""
    charged = crashes - row["crashes"]
    await charge(session, row, error if charged else None, give_back=1, crashes=charged)
    session.touch(row["kind"], row["limit_key"], row["group_id"])
    if row["cancel_requested"]:
        return await end(session, {row["id"]: None}, State.CANCELLED, Reason.CANCELLED)
    if row["is_command"] or crashes >= CRASH_LIMIT:
        return await end(session, {row["id"]: None}, State.FAILED, Reason.CRASHED)
    return await release(session, row, None)


async def end(
    session: Session, results: dict[int, str | None], state: State, reason: Reason | None, *, by_owner: bool = False
) -> State:
    """Move rows to the history; `by_owner`: whoever claimed them says so."""
    ids = sorted(results)
    values = [results[task_id] for task_id in ids]
    for queue, kind in await session.profile.move(session, ids, values, state, reason, by_owner):
        session.count(queue, kind, state, 1)
    return state


async def release(
    session: Session,
    row: Any,
    delay: int | None,
    limit_key: str | None = None,
    *,
    by_owner: bool = False,
    protected_for: int = 0,
) -> State:
    """Put a running task back: `scheduled` if it has to wait, else `ready`, or into its line, perhaps a new one."""
    session.touch(row["kind"], limit_key)
    return State(await session.value("release", row["id"], delay, by_owner, limit_key, protected_for))


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
