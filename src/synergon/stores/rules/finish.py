"""Applies outcomes of attempts: the only rule by which a node moves its tasks out of `running`.

An outcome is applied once, and only if its claim is the current one. A repeated outcome gets the verdict of the first,
so a node may send an outcome again if no answer has arrived. An outcome of an older claim changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

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
    given_back,
)
from synergon.model.record import to_datetime
from synergon.policies import CRASH_LIMIT
from synergon.stores.rows import FinishedClaim, LiveTask
from synergon.stores.rules import follow_ups, insert, server_health
from synergon.stores.session import Moves, Session

ERRORS_KEPT: Final = 20
"""A task that fails for ever must not grow for ever."""

ClaimName = tuple[int, int]
"""The id of a task, and the number of the claim."""


async def finish(session: Session, outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
    """Apply outcomes and return their verdicts, in order. The last verdict also lists the kinds of tasks that were
    released."""
    await session.locks.for_outcomes(outcomes)
    tasks = await _current_tasks(session, outcomes)
    others = [entry for entry, task in zip(outcomes, tasks, strict=True) if task is None]
    finished = await _finished(session, others)
    applied = [(entry, task) for entry, task in zip(outcomes, tasks, strict=True) if task is not None]
    verdicts = await _apply_all(session, applied)
    if any(entry.server is not None for entry, _ in applied):
        await server_health.note(session, [entry for entry, _ in applied])
    moves = await follow_ups.apply_follow_ups(session) if session.touched else {}
    # One that was not known before may repeat an outcome of this very call.
    finished |= await _finished(session, [entry for entry in others if (entry.id, entry.claim_no) not in finished])
    told = [
        _repeated(entry, finished) if task is None else _with_new_state(verdicts[task.id], moves)
        for entry, task in zip(outcomes, tasks, strict=True)
    ]
    if told and session.touched.released:
        told[-1] = replace(told[-1], released=tuple(session.touched.released))
    return told


async def _current_tasks(session: Session, outcomes: Sequence[FencedOutcome]) -> list[LiveTask | None]:
    """The task of each outcome. None if the claim is stale, or an earlier outcome of the list is for this claim."""
    running = await session.tasks.running({entry.id for entry in outcomes})
    found: list[LiveTask | None] = []
    for entry in outcomes:
        task = running.get(entry.id)
        if task is not None and task.claim_no == entry.claim_no:
            del running[entry.id]
            found.append(task)
        else:
            found.append(None)
    return found


async def _finished(session: Session, outcomes: Sequence[FencedOutcome]) -> dict[ClaimName, FinishedClaim]:
    if not outcomes:
        return {}
    claims = await session.tasks.finished_claims({entry.id for entry in outcomes})
    return {(claim.id, claim.claim_no): claim for claim in claims.values()}


def _repeated(entry: FencedOutcome, finished: dict[ClaimName, FinishedClaim]) -> Verdict:
    """The verdict of an outcome that was not applied."""
    claim = finished.get((entry.id, entry.claim_no))
    if claim is None:
        return Verdict(entry.id, None)
    # The task has been claimed again, so it was `ready` after this outcome.
    return Verdict(claim.id, State.READY if claim.state is State.RUNNING else claim.state, (), claim.kind)


def _with_new_state(verdict: Verdict, moves: Moves) -> Verdict:
    """The verdict with the state that follow-ups gave the task: its key queue may have promoted it."""
    return replace(verdict, state=moves[verdict.id][1]) if verdict.id in moves else verdict


async def _apply_all(session: Session, applied: Iterable[tuple[FencedOutcome, LiveTask]]) -> dict[int, Verdict]:
    """Apply outcomes. Successes, which are the most frequent, end in one batch, the others one by one."""
    verdicts: dict[int, Verdict] = {}
    succeeded: list[LiveTask] = []
    outcomes: dict[int, Succeeded] = {}
    for entry, task in applied:
        session.touched.add(task.kind, task.limit_key, task.group_id)
        if entry.progress is not None:
            await session.tasks.report(task.id, task.claim_no, entry.progress, is_overdue=False)
        if isinstance(entry.outcome, Succeeded) and not task.cancel_requested:
            succeeded.append(task)
            outcomes[task.id] = entry.outcome
        else:
            verdicts[task.id] = Verdict(task.id, await _apply(session, task, entry.outcome), (), task.kind)
    if succeeded:
        results = {task_id: outcome.result for task_id, outcome in outcomes.items()}
        await session.tasks.end(succeeded, State.SUCCEEDED, None, results=results, by_owner=True)
        child_ids = await _store_children(session, outcomes)
        for task in succeeded:
            verdicts[task.id] = Verdict(task.id, State.SUCCEEDED, child_ids.get(task.id, ()), task.kind)
    return verdicts


async def _store_children(session: Session, outcomes: dict[int, Succeeded]) -> dict[int, tuple[int, ...]]:
    """Insert the children of tasks that have ended, because a child may have its parent's key. Returns their ids by
    parent."""
    parents = [(task_id, child) for task_id, outcome in outcomes.items() for child in outcome.children]
    if not parents:
        return {}
    inserted = await insert.store(session, [replace(child, on_conflict="return") for _, child in parents])
    ids: dict[int, tuple[int, ...]] = {}
    for (task_id, _), child in zip(parents, inserted, strict=True):
        ids[task_id] = (*ids.get(task_id, ()), child.id)
    return ids


async def _apply(session: Session, task: LiveTask, outcome: Outcome) -> State:
    """Change the state of the task as its outcome demands. Returns the new state."""
    await _charge(session, task, outcome)
    if task.cancel_requested:
        return await _end(session, task, State.CANCELLED, Reason.CANCELLED)
    match outcome:
        case Failed(reason=reason):
            return await _end(session, task, State.FAILED, reason)
        case Cancelled():
            return await _end(session, task, State.CANCELLED, Reason.CANCELLED)
        case _ if task.is_command or (isinstance(outcome, Crashed) and task.crashes + 1 >= CRASH_LIMIT):
            return await _end(session, task, State.FAILED, Reason.CRASHED)
        case Retrying(delay=delay) | Snoozed(delay=delay):
            return await session.tasks.release(task, delay=delay, by_owner=True)
        case KeyAssigned(limit_key=limit_key):
            session.touched.add(task.kind, limit_key)
            return await session.tasks.release(task, limit_key=limit_key, by_owner=True)
        case HandedBack(protected_for=protected_for):
            return await session.tasks.release(task, protected_for=protected_for, by_owner=True)
    return await session.tasks.release(task, by_owner=True)


async def _end(session: Session, task: LiveTask, state: State, reason: Reason) -> State:
    await session.tasks.end([task], state, reason, by_owner=True)
    return state


async def _charge(session: Session, task: LiveTask, outcome: Outcome) -> None:
    """Update the attempts, crashes and errors of the task."""
    match outcome:
        case Failed(error=error) | Retrying(error=error):
            await append_error(session, task, error)
        case Crashed(error=error):
            await charge_crash(session, task, error)
        case HandedBack() if task.is_command and not task.cancel_requested:
            await charge_crash(session, task, given_back(task.node_id))
        case Snoozed() | HandedBack() | KeyAssigned():
            await session.tasks.charge(task.id, attempts=1)
        case Cancelled(why=why) if why is not None:
            await append_error(session, task, ErrorRecord(attempt=0, type="Cancel", message=why))


async def charge_crash(session: Session, task: LiveTask, error: ErrorRecord) -> None:
    """Subtract the attempt from a running task, and add a crash."""
    await session.tasks.charge(task.id, attempts=1, crashes=1, errors=await _errors_with(session, task, error))


async def append_error(session: Session, task: LiveTask, error: ErrorRecord) -> None:
    """Append an error to the list of a live task, which holds a limited number of the latest."""
    await session.tasks.set_errors(task.id, await _errors_with(session, task, error))


async def _errors_with(session: Session, task: LiveTask, error: ErrorRecord) -> tuple[ErrorRecord, ...]:
    at = to_datetime(await session.read_clock())
    dated = replace(error, at=at, attempt=error.attempt or task.attempts)
    return (*task.errors[1 - ERRORS_KEPT :], dated)


async def report(session: Session, reports: Sequence[Report]) -> list[bool]:
    """Write the progress and overdue marks of running attempts, and return whether each claim is current. Rows are
    written by ascending id, so that concurrent calls cannot deadlock."""
    is_current: dict[ClaimName, bool] = {}
    for entry in sorted(reports, key=lambda entry: entry.id):
        is_current[entry.id, entry.claim_no] = await session.tasks.report(
            entry.id, entry.claim_no, entry.progress, is_overdue=entry.overdue
        )
    return [is_current[entry.id, entry.claim_no] for entry in reports]
