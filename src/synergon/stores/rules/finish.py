"""Applies outcomes of attempts: the rule by which a node moves its tasks out of `running`. PostgreSQL applies plain
successes by one statement instead (`postgres.finish_fast`).

An outcome is applied once, and only if its claim is the current one. A repeated outcome gets the verdict of the first,
so a node may send an outcome again if no answer has arrived. An outcome of an older claim changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from synergon.model.attempts import AttemptRecord
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import ServerChange
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    ErrorRecord,
    Failed,
    FencedOutcome,
    HandedBack,
    KeyAssigned,
    Outcome,
    Refused,
    Report,
    Retrying,
    ServerFault,
    Snoozed,
    Succeeded,
    Verdict,
    failed_map,
    given_back,
)
from synergon.model.record import to_datetime
from synergon.model.requirements import Requirements, with_refusal
from synergon.model.tasks import Insertion
from synergon.policies import CRASH_LIMIT, REFUSAL_LIMIT, SERVER_FAILURE_LIMIT
from synergon.stores.rows import FinishedClaim, LiveTask
from synergon.stores.rules import attempts, batches, dependencies, ends, follow_ups, insert, server_health, suspects
from synergon.stores.session import Moves, Session

MAX_ERRORS: Final = 20
"""How many errors a task's list holds. The oldest are dropped, so that a task that fails again and again does not grow
without bound."""

ClaimName = tuple[int, int]
"""The id of a task, and the number of the claim."""
Applied = dict[int, int]
"""The index of the outcome that is applied to a task, by task id."""


async def finish(session: Session, outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
    """Apply outcomes, and return their verdicts in the order of the outcomes. The last verdict also lists the
    dependents that were released or cancelled, and the servers that were taken out of service or are back."""
    await session.locks.for_outcomes(outcomes)
    outcomes = [await _without_circle(session, entry) if _is_map(entry.outcome) else entry for entry in outcomes]
    applied: Applied = {}
    verdicts = await _succeed(session, outcomes, applied)
    tasks = await _current_tasks(session, outcomes, applied)
    others = [entry for index, entry in enumerate(outcomes) if applied.get(entry.id) != index]
    finished = await _finished(session, others)
    names = await attempts.node_names(session, tasks) if tasks else {}
    for task in tasks:
        entry = outcomes[applied[task.id]]
        state = await _apply(session, task, entry, names)
        backs_off = state is State.SCHEDULED and isinstance(_as_charged(entry.outcome, task), ServerFault)
        verdicts[task.id] = Verdict(task.id, state, (), task.kind, backs_off=backs_off)
    in_order = [outcomes[index] for index in sorted(applied.values())]
    for task_id, child_ids in (await _store_children(session, in_order, verdicts)).items():
        verdicts[task_id] = replace(verdicts[task_id], child_ids=child_ids)
    servers: list[ServerChange] = []
    if any(entry.server is not None for entry in in_order):
        servers = await server_health.note(session, in_order)
    moves = await follow_ups.apply_follow_ups(session) if session.touched else {}
    # An outcome that was not known before may repeat another outcome of this very call.
    finished |= await _finished(session, [entry for entry in others if (entry.id, entry.claim_no) not in finished])
    told = [
        _with_new_state(verdicts[entry.id], moves) if applied.get(entry.id) == index else _repeated(entry, finished)
        for index, entry in enumerate(outcomes)
    ]
    if told and session.touched.followed:
        followed = session.touched.followed
        told[-1] = replace(
            told[-1],
            released=tuple(kind for kind, state in followed.values() if state is not State.CANCELLED),
            ended=tuple(task_id for task_id, (_, state) in followed.items() if state is State.CANCELLED),
            has_scheduled=any(state is State.SCHEDULED for _, state in followed.values()),
        )
    if servers:
        told[-1] = replace(told[-1], servers=tuple(servers))
    return told


def _is_map(outcome: Outcome) -> bool:
    return isinstance(outcome, Succeeded) and outcome.is_map


async def _without_circle(session: Session, entry: FencedOutcome) -> FencedOutcome:
    """The outcome of a map, replaced by a failure if a task that waits for the map holds the unique key of an item."""
    assert isinstance(entry.outcome, Succeeded)
    found = await dependencies.find_circle(session, entry.id, entry.outcome.children)
    if found is None:
        return entry
    item = f"an item: task {found.id} of kind {found.kind!r} with the key {found.key!r}"
    return replace(entry, outcome=failed_map(item))


def _as_charged(outcome: Outcome, task: LiveTask) -> Outcome:
    """The outcome to apply. A `ServerFault` is replaced by its `otherwise` if the task has blamed servers too often, or
    is a command, which never runs twice."""
    if not isinstance(outcome, ServerFault) or may_blame_server(task.server_failures, is_command=task.is_command):
        return outcome
    return outcome.otherwise


def may_blame_server(server_failures: int, *, is_command: bool) -> bool:
    """Whether a task that has blamed servers `server_failures` times may blame a server once more without a charge."""
    return not is_command and server_failures < SERVER_FAILURE_LIMIT


def is_committed(outcomes: Sequence[FencedOutcome], verdicts: Sequence[Verdict]) -> bool:
    """Whether the transaction of a task function is committed with these outcomes: no claim was stale, and, if an
    outcome is a success, at least one task has succeeded, otherwise at least one has failed."""
    has_success = any(isinstance(entry.outcome, Succeeded) for entry in outcomes)
    states = [verdict.state for verdict in verdicts]
    return (State.SUCCEEDED if has_success else State.FAILED) in states and None not in states


async def _succeed(session: Session, outcomes: Sequence[FencedOutcome], applied: Applied) -> dict[int, Verdict]:
    """Apply the successes, which are the most frequent outcomes, all at once, and add them to `applied`. Skips stale
    claims, and tasks for which a cancel was requested. Returns the verdicts by task id."""
    first: Applied = {}
    claims: dict[int, int] = {}
    results: dict[int, bytes | None] = {}
    for index, entry in enumerate(outcomes):
        if isinstance(entry.outcome, Succeeded) and entry.id not in first:
            first[entry.id] = index
            claims[entry.id] = entry.claim_no
            results[entry.id] = entry.outcome.result
            if entry.progress is not None:
                await session.tasks.report(entry.id, entry.claim_no, entry.progress, is_overdue=False)
    tasks = await session.tasks.succeed(claims, results) if claims else []
    for task in tasks:
        applied[task.id] = first[task.id]
        session.touched.add_ended(task, State.SUCCEEDED)
    return {task.id: Verdict(task.id, State.SUCCEEDED, (), task.kind) for task in tasks}


async def _current_tasks(session: Session, outcomes: Sequence[FencedOutcome], applied: Applied) -> Collection[LiveTask]:
    """The running tasks of outcomes that are not in `applied` yet. For each task, its first outcome whose claim is not
    stale is added to `applied`."""
    others = {entry.id for entry in outcomes if entry.id not in applied}
    running = await session.tasks.running(others) if others else {}
    found: dict[int, LiveTask] = {}
    for index, entry in enumerate(outcomes):
        task = running.get(entry.id)
        if task is not None and task.claim_no == entry.claim_no and task.id not in found:
            applied[task.id] = index
            found[task.id] = task
    return found.values()


async def _finished(session: Session, outcomes: Sequence[FencedOutcome]) -> dict[ClaimName, FinishedClaim]:
    if not outcomes:
        return {}
    claims = await session.tasks.finished_claims({entry.id for entry in outcomes})
    return {(claim.id, claim.claim_no): claim for claim in claims.values()}


def _repeated(entry: FencedOutcome, finished: dict[ClaimName, FinishedClaim]) -> Verdict:
    """The verdict on an outcome that this call did not apply: the verdict of the call that applied it, or a verdict
    without a state if the claim is stale."""
    claim = finished.get((entry.id, entry.claim_no))
    if claim is None:
        return Verdict(entry.id, None)
    # The task has been claimed again, so it was `ready` after this outcome.
    return Verdict(claim.id, State.READY if claim.state is State.RUNNING else claim.state, (), claim.kind)


def _with_new_state(verdict: Verdict, moves: Moves) -> Verdict:
    """The verdict with the state that follow-ups gave the task: its key queue may have promoted it."""
    return replace(verdict, state=moves[verdict.id][1]) if verdict.id in moves else verdict


async def _store_children(
    session: Session, applied: Iterable[FencedOutcome], verdicts: dict[int, Verdict]
) -> dict[int, tuple[int, ...]]:
    """Insert the children of tasks that have succeeded, and those that a cancelled task shares with its batch.
    Called after the parents have ended, because a child may have the unique key of its parent. Returns the ids of the
    children by parent."""
    outcomes = {
        entry.id: entry.outcome
        for entry in applied
        if isinstance(entry.outcome, Succeeded)
        and (verdicts[entry.id].state is State.SUCCEEDED or entry.outcome.has_shared_children)
    }
    parents = [(task_id, child) for task_id, outcome in outcomes.items() for child in outcome.children]
    if not parents:
        return {}
    inserted = await insert.store(
        session, [replace(child, on_conflict="return", parent_id=task_id) for task_id, child in parents]
    )
    children: dict[int, list[Insertion]] = {}
    for (task_id, _), child in zip(parents, inserted, strict=True):
        children.setdefault(task_id, []).append(child)
    for task_id, own in children.items():
        if outcomes[task_id].is_map:
            await dependencies.add_items(session, task_id, own)
    return {task_id: tuple(child.id for child in own) for task_id, own in children.items()}


async def _apply(session: Session, task: LiveTask, entry: FencedOutcome, names: attempts.NodeNames) -> State:
    """Change the state of the task according to its outcome, or to `cancelled` if that was requested. Returns the new
    state."""
    session.touched.add(task.kind, task.limit_key)
    outcome = _as_charged(entry.outcome, task)
    if isinstance(outcome, Succeeded):
        if not task.cancel_requested:  # another outcome of this call had an older claim
            results = {task.id: outcome.result}
            await ends.end(session, [task], State.SUCCEEDED, None, results=results, by_owner=True)
            return State.SUCCEEDED
    elif entry.progress is not None:
        await session.tasks.report(task.id, task.claim_no, entry.progress, is_overdue=False)
    await _charge(session, task, outcome, await attempts.with_ended(session, task, outcome, names))
    await suspects.note_outcome(session, task, outcome)
    if task.cancel_requested:
        return await _end(session, task, State.CANCELLED, Reason.CANCELLED)
    reason = failure_of(outcome, is_command=task.is_command, crashes=task.crashes)
    if reason is not None:
        return await _end(session, task, State.FAILED, reason)
    match outcome:
        case Cancelled():
            return await _end(session, task, State.CANCELLED, Reason.CANCELLED)
        case Retrying(delay=delay) | Snoozed(delay=delay):
            return await session.tasks.release(task, delay=delay, by_owner=True)
        case KeyAssigned(limit_key=limit_key):
            session.touched.add(task.kind, limit_key)
            return await session.tasks.release(task, limit_key=limit_key, by_owner=True)
        case Refused(requirements=requirements):
            return await _leave_to_others(session, task, requirements)
        case ServerFault(server=server):
            failures = max(task.server_failures, 0) + 1  # a damaged row may have any number
            await session.tasks.set_server_failures(task.id, failures)
            delay = await server_health.blame_delay(session, server, failures)
            return await session.tasks.release(task, delay=delay, by_owner=True)
        case HandedBack(delay=delay, protected_for=protected_for):
            return await session.tasks.release(task, delay=delay, protected_for=protected_for, by_owner=True)
    alone = isinstance(outcome, Crashed) and batches.must_run_alone(task)
    return await session.tasks.release(task, leaves_key_queue=alone, by_owner=True)


def failure_of(outcome: Outcome, *, is_command: bool, crashes: int) -> Reason | None:
    """The reason for which this outcome ends its task `failed`. `crashes` is how often the task has crashed before.
    None if the task does not fail, or if that depends on other nodes: see `may_others_run` for `Refused`."""
    match outcome:
        case Failed(reason=reason):
            return reason
        case Succeeded() | Cancelled():
            return None
        case _ if is_command:
            return Reason.CRASHED
        case Crashed(is_shared=False) if crashes + 1 >= CRASH_LIMIT:
            return Reason.CRASHED
    return None


def may_others_run(left: Requirements, runners: Iterable[str]) -> bool:
    """Whether one of the `runners` may still claim a task with these requirements. The requirements name the nodes that
    have refused the task; after `REFUSAL_LIMIT` refusals no node may claim it."""
    return bool(set(runners).difference(left.refused_by)) and len(left.refused_by) < REFUSAL_LIMIT


async def _leave_to_others(session: Session, task: LiveTask, requirements: str) -> State:
    """Release a task that its node has refused, or end it if no live node may run it."""
    assert task.node_id is not None, "a running task has one"
    left = with_refusal(requirements, task.node_id)
    if not may_others_run(left, await session.nodes.runners(task.kind, task.queue)):
        return await _end(session, task, State.FAILED, Reason.ERROR)
    await session.tasks.set_requirements(task.id, left.text)
    return await session.tasks.release(task, leaves_key_queue=batches.must_run_alone(task), by_owner=True)


async def _end(session: Session, task: LiveTask, state: State, reason: Reason) -> State:
    await ends.end(session, [task], state, reason, by_owner=True)
    return state


async def _charge(
    session: Session, task: LiveTask, outcome: Outcome, ended_attempts: Sequence[AttemptRecord] | None
) -> None:
    """Update the attempts, crashes, errors and ended attempts of the task."""
    error: ErrorRecord | None = None
    match outcome:
        case Crashed(error=error, is_shared=True):
            await give_back_attempt(session, task, error, ended_attempts)
            return
        case Crashed(error=error):
            await charge_crash(session, task, error, ended_attempts)
            return
        case HandedBack() if task.is_command and not task.cancel_requested:
            await charge_crash(session, task, given_back(task.node_id), ended_attempts)
            return
        case Failed(error=error) | Retrying(error=error) | Refused(error=error) | ServerFault(error=error):
            pass
        case Cancelled(why=why) if why is not None:
            error = ErrorRecord(attempt=0, type="Cancel", message=why)
    await session.tasks.charge(
        task.id,
        attempts=1 if isinstance(outcome, Refused | Snoozed | HandedBack | KeyAssigned | ServerFault) else 0,
        errors=None if error is None else await _errors_with(session, task, error, ended_attempts),
        ended_attempts=ended_attempts,
    )


async def charge_crash(
    session: Session, task: LiveTask, error: ErrorRecord, ended_attempts: Sequence[AttemptRecord] | None
) -> None:
    """Subtract the attempt from a running task, and add a crash."""
    errors = await _errors_with(session, task, error, ended_attempts)
    await session.tasks.charge(task.id, attempts=1, crashes=1, errors=errors, ended_attempts=ended_attempts)


async def give_back_attempt(
    session: Session, task: LiveTask, error: ErrorRecord, ended_attempts: Sequence[AttemptRecord] | None
) -> None:
    """Subtract the attempt from a running task, and note why."""
    errors = await _errors_with(session, task, error, ended_attempts)
    await session.tasks.charge(task.id, attempts=1, errors=errors, ended_attempts=ended_attempts)


async def append_error(session: Session, task: LiveTask, error: ErrorRecord) -> None:
    """Append an error to the list of a live task. The list holds the latest `MAX_ERRORS`."""
    await session.tasks.set_errors(task.id, await _errors_with(session, task, error))


async def _errors_with(
    session: Session, task: LiveTask, error: ErrorRecord, ended_attempts: Sequence[AttemptRecord] | None = None
) -> tuple[ErrorRecord, ...]:
    at = to_datetime(await session.read_clock())
    dated = replace(error, at=at, attempt=error.attempt or task.attempts)
    if ended_attempts and dated.node_id is not None:  # the attempt that ends now, with the name of its node
        dated = replace(dated, node_name=ended_attempts[-1].node_name, host=ended_attempts[-1].host)
    return (*task.errors[1 - MAX_ERRORS :], dated)


async def report(session: Session, reports: Sequence[Report]) -> list[bool]:
    """Write the progress and overdue marks of running attempts. Returns for each report whether its claim is current.
    Rows are written by ascending id, so that concurrent calls cannot deadlock."""
    is_current: dict[ClaimName, bool] = {}
    for entry in sorted(reports, key=lambda entry: entry.id):
        is_current[entry.id, entry.claim_no] = await session.tasks.report(
            entry.id, entry.claim_no, entry.progress, is_overdue=entry.overdue
        )
    return [is_current[entry.id, entry.claim_no] for entry in reports]
