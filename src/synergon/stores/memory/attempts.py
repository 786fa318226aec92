"""Tasks run: nodes claim them, report on them and settle them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final

from synergon.errors import LeaseLost
from synergon.model.claims import Claim, ClaimRequest, Claims
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    ErrorRecord,
    Failed,
    FencedOutcome,
    HandedBack,
    KeyAssigned,
    Report,
    Retrying,
    Snoozed,
    Succeeded,
    Verdict,
)
from synergon.policies import CRASH_LIMIT
from synergon.stores.memory.claim_limited import LimitedClaim, open_ready_groups
from synergon.stores.memory.insert import put
from synergon.stores.memory.key_queues import charge
from synergon.stores.memory.ready_groups import ReadyGroup
from synergon.stores.memory.reservations import renew_reservation, reserve
from synergon.stores.memory.row import Row
from synergon.stores.memory.servers import judge
from synergon.stores.memory.tables import Tables
from synergon.stores.rules.node_capacity import most_without_requirements, needs_only_slots
from synergon.stores.rules.shared_capacity import Grant

RUNNING: Final = State.RUNNING


def claim(tables: Tables, request: ClaimRequest, now: int) -> Claims:
    """Give the node the first ready tasks that it asks for and can carry, in order."""
    check_lease(tables, request.node_id, now)
    claims = Claims()
    if tables.nodes[request.node_id].cordoned_at is not None:
        claims.is_cordoned = True
        return claims
    if needs_only_slots(request, request.kinds) and not any(
        tables.ready.has_requirements(kind_request.kind) for kind_request in request.kinds
    ):
        claims += [_start(tables, row, request.node_id, now) for row in _first_in_order(tables, request, now)]
    else:
        limited = LimitedClaim(tables, request, now)
        claims += [_start(tables, row, request.node_id, now, grant) for row, grant in limited.taken()]
        claims.unfit = limited.plan.unfit
        if limited.plan.reserved is not None:
            claims.reserved = reserve(tables.rows[limited.plan.reserved.id], request, now)
        elif request.reserved_task is not None:
            claims.reserved = renew_reservation(tables, request, limited.plan.shared, now)
    charge(tables, (tables.rows[claim.id] for claim in claims if claim.limit_key is not None), now)
    return claims


def check_lease(tables: Tables, node_id: str, now: int) -> None:
    """Raise `LeaseLost` unless the node may claim."""
    if not tables.is_leased(node_id, now):
        raise LeaseLost(f"node {node_id} has no live lease, so it may not claim; start it again as a new node")


def _first_in_order(tables: Tables, request: ClaimRequest, now: int) -> Iterator[Row]:
    """Merge the lanes. The caller starts each row before it asks for the next."""
    counts = {kind_request.kind: most_without_requirements(request, kind_request) for kind_request in request.kinds}
    heads = _heads(tables, request, now)
    left = request.limit
    while heads and left > 0:
        (negated_priority, rank, task_id), kind, queue, ready_group = heads[0]
        if counts[kind] == 0:  # used up by another queue of the same kind, or no child process is free
            heappop(heads)
            continue
        yield ready_group.pop((negated_priority, task_id))
        left -= 1
        counts[kind] -= 1
        following = ready_group.head(now)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, ((following[0], rank, following[1]), kind, queue, ready_group))


def _heads(tables: Tables, request: ClaimRequest, now: int) -> list[tuple[tuple[int, int, int], str, str, ReadyGroup]]:
    """A heap of the lanes that have something to offer, by what they offer."""
    heads = [
        ((position[0], kind_request.rank, position[1]), kind_request.kind, ready_group.queue, ready_group)
        for kind_request in request.kinds
        if kind_request.count > 0
        for ready_group in open_ready_groups(tables, kind_request.kind, request.queues)
        if (position := ready_group.head(now)) is not None
    ]
    heapify(heads)
    return heads


def _start(tables: Tables, row: Row, node_id: str, now: int, grant: Grant | None = None) -> Claim:
    tables.start(row, node_id, now)
    if grant is not None:
        tables.take_permits(row, grant)
    task = row.task
    return Claim(
        row.id,
        row.claim_no,
        task.kind,
        task.queue,
        task.payload,
        row.attempts,
        task.max_attempts,
        row.crashes,
        task.overrides,
        task.tags,
        task.meta,
        task.origin,
        row.limit_key,
        task.group_id,
        None if grant is None else grant.server,
        row.slot,
        task.requirements,
        row.protected_until - now if row.protected_until > now else 0,
    )


def finish(tables: Tables, fenced_outcomes: Sequence[FencedOutcome], now: int) -> list[Verdict]:
    """Settle each attempt that its claim number still owns."""
    return [_finish_one(tables, fenced, now) for fenced in fenced_outcomes]


def _finish_one(tables: Tables, fenced: FencedOutcome, now: int) -> Verdict:
    row = tables.rows.get(fenced.id)
    if row is None or row.claim_no != fenced.claim_no or row.state is not RUNNING:
        return _already(row, fenced)
    if fenced.progress is not None:
        row.progress = fenced.progress
    judge(tables, fenced, now)
    child_ids = _apply_outcome(tables, row, fenced, now)
    row.finished_no = row.claim_no
    row.verdict = Verdict(row.id, row.state, child_ids, row.task.kind)
    return row.verdict


def _already(row: Row | None, fenced: FencedOutcome) -> Verdict:
    """The verdict of a settlement that finds its claim not running: it was applied before, or it is stale."""
    if row is None or row.verdict is None or row.finished_no != fenced.claim_no:
        return Verdict(fenced.id, None)
    return row.verdict


def _apply_outcome(tables: Tables, row: Row, fenced: FencedOutcome, now: int) -> tuple[int, ...]:
    """Make the move that the outcome asks for; the ids of the children it brought."""
    outcome = fenced.outcome
    if isinstance(outcome, Succeeded) and not row.cancel_requested:
        row.result = outcome.result
        tables.end(row, State.SUCCEEDED, None, now)
        # After the end: a task may name its own key for its successor.
        return tuple(put(tables, child, "return", now).id for child in outcome.children) if outcome.children else ()
    _charge(row, fenced, now)
    if row.cancel_requested:
        tables.end(row, State.CANCELLED, Reason.CANCELLED, now)
        return ()
    match outcome:
        case Failed(reason=reason):
            tables.end(row, State.FAILED, reason, now)
        case Cancelled():
            tables.end(row, State.CANCELLED, Reason.CANCELLED, now)
        case _ if row.task.is_command:  # once it has started it is never run again, whatever became of it
            tables.end(row, State.FAILED, Reason.CRASHED, now)
        case Retrying(delay=delay) | Snoozed(delay=delay):
            tables.requeue(row, now + delay, now)
        case HandedBack(protected_for=protected_for):
            row.protected_until = max(row.protected_until, now + protected_for)
            tables.requeue(row, row.run_at, now)
        case KeyAssigned(limit_key=limit_key):
            tables.move_to_key_queue(row, limit_key, now)
        case Crashed():
            requeue_or_give_up(tables, row, now)
    return ()


def _charge(row: Row, fenced: FencedOutcome, now: int) -> None:
    """What the attempt cost, wherever the task goes next."""
    match fenced.outcome:
        case Failed(error=error) | Retrying(error=error):
            row.add_error(error, now)
        case HandedBack() if row.task.is_command and not row.cancel_requested:
            row.charge_crash(_given_up(row), now)
        case Snoozed() | HandedBack() | KeyAssigned():
            row.give_attempt_back()
        case Crashed(error=error):
            row.charge_crash(error, now)
        case Cancelled(why=why):
            row.add_why(why, now)


def _given_up(row: Row) -> ErrorRecord:
    message = f"node {row.node_id} gave the command back, and no command is run twice"
    return ErrorRecord(attempt=row.attempts, type="Crash", message=message, node_id=row.node_id)


def requeue_or_give_up(tables: Tables, row: Row, now: int) -> None:
    """Run a task again that has crashed, unless it has done so too often, or is a command."""
    if row.crashes >= CRASH_LIMIT or row.task.is_command:
        tables.end(row, State.FAILED, Reason.CRASHED, now)
    else:
        tables.requeue(row, row.run_at, now)


def report(tables: Tables, reports: Sequence[Report]) -> list[bool]:
    """Write what running attempts say of themselves."""
    return [_report_one(tables, note) for note in reports]


def _report_one(tables: Tables, note: Report) -> bool:
    row = tables.rows.get(note.id)
    if row is None or row.claim_no != note.claim_no or row.state is not RUNNING:
        return False
    if note.progress is not None:
        row.progress = note.progress
    if note.overdue:
        row.overdue = True
    return True


def cancel_requests(tables: Tables, node_id: str) -> list[int]:
    """The running tasks of this node that somebody wants cancelled."""
    return [row.id for row in tables.running.get(node_id, {}).values() if row.cancel_requested]
