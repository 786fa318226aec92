"""What the clock and the operators do to tasks that are not running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from synergon.lifecycle import Reason, State
from synergon.records import Cutoffs, Moved, Reprioritizing, Rescheduling, Woken
from synergon.stores.sqlite import settling
from synergon.stores.sqlite.transaction import Transaction, as_json


def wake(transaction: Transaction, limit: int) -> Woken:
    """Make due tasks ready, end expired ones, and tell when to look again."""
    now = transaction.now
    expired = [row[0] for row in transaction.rows("expired", now, limit)]
    settling.end(transaction, expired, State.FAILED, Reason.EXPIRED)
    due = transaction.rows("due", now, limit)
    transaction.run("make_ready", as_json(row[0] for row in due))
    (moment,) = transaction.row("next_moment")
    next_in = None if moment is None else max(moment - now, 0)
    return Woken(kinds=dict(Counter(row[1] for row in due)), expired=tuple(expired), next_in=next_in)


def cancel(transaction: Transaction, ids: Sequence[int], why: str | None) -> list[Moved]:
    """End what waits, ask what runs."""
    return [_cancel(transaction, task_id, why) for task_id in ids]


def _cancel(transaction: Transaction, task_id: int, why: str | None) -> Moved:
    live = transaction.row("live", task_id)
    if live is None:
        return _refused(transaction, task_id)
    _, kind, state, node_id, asked = live
    if why is not None and not asked:
        settling.append_why(transaction, task_id, why)
    if state == State.RUNNING:
        transaction.run("request_cancel", task_id)
        return Moved(id=task_id, done=True, state=State.RUNNING, kind=kind, node_id=node_id)
    settling.end(transaction, [task_id], State.CANCELLED, Reason.CANCELLED)
    return Moved(id=task_id, done=True, state=State.CANCELLED, kind=kind)


def _refused(transaction: Transaction, task_id: int) -> Moved:
    row = transaction.row("live", task_id) or transaction.row("ended", task_id)
    if row is None:
        return Moved(id=task_id, done=False, state=None)
    return Moved(id=task_id, done=False, state=State(row[2]), kind=row[1])


def retry(transaction: Transaction, ids: Sequence[int]) -> list[Moved]:
    """Bring ended tasks back."""
    return [_retry(transaction, task_id) for task_id in ids]


def _retry(transaction: Transaction, task_id: int) -> Moved:
    ended = transaction.row("ended", task_id)
    if ended is None:
        return _refused(transaction, task_id)
    _, kind, state, key, queue = ended
    holder = transaction.row("key_holder", kind, key) if key is not None else None
    if holder is not None:
        return Moved(id=task_id, done=False, state=State(state), kind=kind, key_holder=holder[0])
    transaction.run("revive", transaction.now, task_id)
    _forget_ended(transaction, task_id, queue, kind, state)
    return Moved(id=task_id, done=True, state=State.READY, kind=kind)


def _forget_ended(transaction: Transaction, task_id: int, queue: str, kind: str, state: str) -> None:
    transaction.run("prune", as_json([task_id]))
    transaction.run("untally", 1, queue, kind, state)


def delete(transaction: Transaction, ids: Sequence[int]) -> list[Moved]:
    """Remove what does not run."""
    return [_delete(transaction, task_id) for task_id in ids]


def _delete(transaction: Transaction, task_id: int) -> Moved:
    live = transaction.row("live", task_id)
    if live is not None:
        if live[2] == State.RUNNING:
            return Moved(id=task_id, done=False, state=State.RUNNING, kind=live[1], node_id=live[3])
        transaction.run("forget", as_json([task_id]))
        return Moved(id=task_id, done=True, state=None, kind=live[1])
    ended = transaction.row("ended", task_id)
    if ended is None:
        return Moved(id=task_id, done=False, state=None)
    _, kind, state, _, queue = ended
    _forget_ended(transaction, task_id, queue, kind, state)
    return Moved(id=task_id, done=True, state=None, kind=kind)


def reschedule(transaction: Transaction, changes: Sequence[Rescheduling]) -> list[Moved]:
    """Change when tasks are due."""
    return [_reschedule(transaction, change) for change in changes]


def _reschedule(transaction: Transaction, change: Rescheduling) -> Moved:
    now = transaction.now
    due = change.run_at if change.run_at is not None else now + (change.delay or 0)
    state = State.SCHEDULED if due > now else State.READY
    if transaction.run("reschedule", state, due, change.id) == 0:
        return _refused(transaction, change.id)
    return Moved(id=change.id, done=True, state=state, kind=transaction.row("live", change.id)[1])


def set_priority(transaction: Transaction, changes: Sequence[Reprioritizing]) -> list[Moved]:
    """Change the order."""
    return [_set_priority(transaction, change) for change in changes]


def _set_priority(transaction: Transaction, change: Reprioritizing) -> Moved:
    if transaction.run("set_priority", change.priority, change.id) == 0:
        return _refused(transaction, change.id)
    _, kind, state, *_ = transaction.row("live", change.id)
    return Moved(id=change.id, done=True, state=State(state), kind=kind)


def pause(transaction: Transaction, queues: Sequence[str]) -> list[bool]:
    """Close queues; one that has had no task yet is closed in advance."""
    for queue in queues:
        transaction.run("add_queue", queue)
    return [transaction.run("pause", transaction.now, queue) == 1 for queue in queues]


def resume(transaction: Transaction, queues: Sequence[str]) -> list[bool]:
    """Open queues again."""
    return [transaction.run("resume", queue) == 1 for queue in queues]


def prune(transaction: Transaction, cutoffs: Cutoffs, limit: int) -> int:
    """Forget what ended long ago."""
    pruned = 0
    ages = {
        State.SUCCEEDED: cutoffs.succeeded,
        State.FAILED: cutoffs.failed,
        State.CANCELLED: cutoffs.cancelled,
    }
    for state, age in ages.items():
        if age is not None and pruned < limit:
            pruned += _prune(transaction, state, transaction.now - age, limit - pruned)
    return pruned


def _prune(transaction: Transaction, state: State, before: int, limit: int) -> int:
    old = transaction.rows("old", state, before, limit)
    transaction.run("prune", as_json(row[0] for row in old))
    for (queue, kind), count in Counter((row[1], row[2]) for row in old).items():
        transaction.run("untally", count, queue, kind, state)
    return len(old)
