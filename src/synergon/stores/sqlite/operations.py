"""What the clock and the operators do to tasks that are not running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.tasks import Cutoffs, Moved, Reprioritizing, Rescheduling, Woken
from synergon.stores.sqlite import finish
from synergon.stores.sqlite.final_events import note_pruned
from synergon.stores.sqlite.follow_ups import draw
from synergon.stores.sqlite.key_queues import touch_queue
from synergon.stores.sqlite.transaction import Moves, Transaction, as_json


def wake(transaction: Transaction, limit: int) -> Woken:
    """Make due tasks ready, end expired ones, and tell when to look again."""
    now = transaction.now
    expired = [row[0] for row in transaction.rows("expired", now, limit)]
    finish.end(transaction, expired, State.FAILED, Reason.EXPIRED)
    ready = _make_ready(transaction, limit)
    (moment,) = transaction.row("next_moment", now)
    next_in = None if moment is None else max(moment - now, 0)
    return Woken(kinds=dict(ready), expired=tuple(expired), next_in=next_in)


def _make_ready(transaction: Transaction, limit: int) -> Counter[str]:
    """How many of each kind are ready now that were not: those that have no line, and those whose line has room."""
    due = transaction.rows("due", transaction.now, limit)
    transaction.run("make_ready", as_json(row[0] for row in due))
    ready = Counter(kind for _, kind, limit_key in due if limit_key is None)
    transaction.key_queues.update((kind, limit_key) for _, kind, limit_key in due if limit_key is not None)
    ready.update(kind for kind, state in draw(transaction).values() if state == State.READY)
    return ready


def cancel(transaction: Transaction, ids: Sequence[int], why: str | None) -> list[Moved]:
    """End what waits, ask what runs."""
    moved = [_cancel(transaction, task_id, why) for task_id in ids]
    draw(transaction)
    return moved


def _cancel(transaction: Transaction, task_id: int, why: str | None) -> Moved:
    live = transaction.row("live", task_id)
    if live is None:
        return _rejected(transaction, task_id)
    _, kind, state, node_id, asked, _, group_id = live
    if why is not None and not asked:
        finish.append_why(transaction, task_id, why)
    if state == State.RUNNING:
        transaction.run("request_cancel", task_id)
        return Moved(id=task_id, done=True, state=State.RUNNING, kind=kind, node_id=node_id)
    finish.end(transaction, [task_id], State.CANCELLED, Reason.CANCELLED)
    return Moved(id=task_id, done=True, state=State.CANCELLED, kind=kind, group_id=group_id)


def _rejected(transaction: Transaction, task_id: int) -> Moved:
    row = transaction.row("live", task_id) or transaction.row("ended", task_id)
    if row is None:
        return Moved(id=task_id, done=False, state=None)
    return Moved(id=task_id, done=False, state=State(row[2]), kind=row[1])


def retry(transaction: Transaction, ids: Sequence[int]) -> list[Moved]:
    """Bring ended tasks back."""
    return _with_new_states([_retry(transaction, task_id) for task_id in ids], draw(transaction))


def _with_new_states(moved: Sequence[Moved], moves: Moves) -> list[Moved]:
    """A task that went into its line may have a place there at once."""
    return [msgspec.structs.replace(entry, state=moves[entry.id][1]) if entry.id in moves else entry for entry in moved]


def _retry(transaction: Transaction, task_id: int) -> Moved:
    ended = transaction.row("ended", task_id)
    if ended is None:
        return _rejected(transaction, task_id)
    _, kind, state, key, queue, limit_key = ended
    holder = transaction.row("key_holder", kind, key) if key is not None else None
    if holder is not None:
        return Moved(id=task_id, done=False, state=State(state), kind=kind, key_holder=holder[0])
    transaction.run("revive", transaction.now, task_id)
    _forget_ended(transaction, task_id, queue, kind, state)
    transaction.touch(kind, limit_key)
    return Moved(id=task_id, done=True, state=_at_once(limit_key), kind=kind)


def _at_once(limit_key: str | None) -> State:
    """Where a task goes that is due."""
    return State.READY if limit_key is None else State.WAITING


def _forget_ended(transaction: Transaction, task_id: int, queue: str, kind: str, state: str) -> None:
    transaction.run("prune", as_json([task_id]))
    transaction.run("untally", 1, queue, kind, state)


def delete(transaction: Transaction, ids: Sequence[int]) -> list[Moved]:
    """Remove what does not run."""
    moved = [_delete(transaction, task_id) for task_id in ids]
    draw(transaction)
    return moved


def _delete(transaction: Transaction, task_id: int) -> Moved:
    live = transaction.row("live", task_id)
    if live is not None:
        if live[2] == State.RUNNING:
            return Moved(id=task_id, done=False, state=State.RUNNING, kind=live[1], node_id=live[3])
        transaction.run("forget", as_json([task_id]))
        _, kind, *_, limit_key, group_id = live
        transaction.touch(kind, limit_key, group_id)
        return Moved(id=task_id, done=True, state=None, kind=kind, group_id=group_id)
    ended = transaction.row("ended", task_id)
    if ended is None:
        return Moved(id=task_id, done=False, state=None)
    _, kind, state, _, queue, _ = ended
    _forget_ended(transaction, task_id, queue, kind, state)
    return Moved(id=task_id, done=True, state=None, kind=kind)


def reschedule(transaction: Transaction, changes: Sequence[Rescheduling]) -> list[Moved]:
    """Change when tasks are due."""
    moved = [_reschedule(transaction, change) for change in changes]
    return _with_new_states(moved, draw(transaction))


def _reschedule(transaction: Transaction, change: Rescheduling) -> Moved:
    now = transaction.now
    due = change.run_at if change.run_at is not None else now + (change.delay or 0)
    live = transaction.row("live", change.id)
    if live is None:
        return _rejected(transaction, change.id)
    _, kind, *_, limit_key, _ = live
    state = State.SCHEDULED if due > now else _at_once(limit_key)
    if transaction.run("reschedule", state, due, change.id) == 0:
        return _rejected(transaction, change.id)
    transaction.touch(kind, limit_key)
    return Moved(id=change.id, done=True, state=state, kind=kind)


def set_priority(transaction: Transaction, changes: Sequence[Reprioritizing]) -> list[Moved]:
    """Change the order."""
    moved = [_set_priority(transaction, change) for change in changes]
    return _with_new_states(moved, draw(transaction))


def _set_priority(transaction: Transaction, change: Reprioritizing) -> Moved:
    if transaction.run("set_priority", change.priority, change.id) == 0:
        return _rejected(transaction, change.id)
    _, kind, state, *_, limit_key, _ = transaction.row("live", change.id)
    transaction.touch(kind, limit_key)
    return Moved(id=change.id, done=True, state=State(state), kind=kind)


def pause(transaction: Transaction, queues: Sequence[str]) -> list[bool]:
    """Close queues; one that has had no task yet is closed in advance."""
    for queue in queues:
        transaction.run("add_queue", queue)
    return _switched(transaction, queues, [transaction.run("pause", transaction.now, queue) == 1 for queue in queues])


def resume(transaction: Transaction, queues: Sequence[str]) -> list[bool]:
    """Open queues again."""
    return _switched(transaction, queues, [transaction.run("resume", queue) == 1 for queue in queues])


def _switched(transaction: Transaction, queues: Sequence[str], done: list[bool]) -> list[bool]:
    """Tasks of a paused queue have no place in their lines."""
    for queue, is_done in zip(queues, done, strict=True):
        if is_done:
            touch_queue(transaction, queue)
    draw(transaction)
    return done


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
    transaction.run("prune_rates", transaction.now, limit)
    return pruned


def _prune(transaction: Transaction, state: State, before: int, limit: int) -> int:
    old = transaction.rows("old", state, before, limit)
    for kind, moment in {kind: moment for *_, kind, moment in old}.items():  # the last of each
        note_pruned(transaction, state, kind, moment)
    transaction.run("prune", as_json(row[0] for row in old))
    for (queue, kind), count in Counter((row[1], row[2]) for row in old).items():
        transaction.run("untally", count, queue, kind, state)
    return len(old)
