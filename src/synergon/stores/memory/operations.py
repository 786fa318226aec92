"""What operators do to tasks. A move that is not legal any more changes nothing and is reported."""

from __future__ import annotations

from collections.abc import Sequence

from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.tasks import Moved, Reprioritizing, Rescheduling
from synergon.stores.memory.insert import due_moment
from synergon.stores.memory.key_queues import balance_queue
from synergon.stores.memory.row import Row
from synergon.stores.memory.tables import Tables


def cancel(tables: Tables, ids: Sequence[int], why: str | None, now: int) -> list[Moved]:
    """End tasks that wait; record the wish for those that run."""
    rows = tables.rows
    return [_cancel(tables, row, why, now) if (row := rows.get(task_id)) else _unknown(task_id) for task_id in ids]


def _cancel(tables: Tables, row: Row, why: str | None, now: int) -> Moved:
    if row.state in FINAL:
        return _moved(row, done=False)
    if not row.cancel_requested:
        row.add_why(why, now)
    if row.state is State.RUNNING:
        row.cancel_requested = True
        return Moved(id=row.id, done=True, state=row.state, kind=row.task.kind, node_id=row.node_id)
    tables.end(row, State.CANCELLED, Reason.CANCELLED, now)
    return Moved(id=row.id, done=True, state=row.state, kind=row.task.kind, group_id=row.task.group_id)


def retry(tables: Tables, ids: Sequence[int], now: int) -> list[Moved]:
    """Run ended tasks again, unless a live task holds their key."""
    rows = tables.rows
    return [_retry(tables, row, now) if (row := rows.get(task_id)) else _unknown(task_id) for task_id in ids]


def _retry(tables: Tables, row: Row, now: int) -> Moved:
    if row.state not in FINAL:
        return _moved(row, done=False)
    holder = tables.holder(row.task)
    if holder is not None:
        return Moved(id=row.id, done=False, state=row.state, kind=row.task.kind, key_holder=holder.id)
    tables.revive(row, now)
    return _moved(row, done=True)


def delete(tables: Tables, ids: Sequence[int]) -> list[Moved]:
    """Remove tasks that are not running."""
    rows = tables.rows
    return [_delete(tables, row) if (row := rows.get(task_id)) else _unknown(task_id) for task_id in ids]


def _delete(tables: Tables, row: Row) -> Moved:
    if row.state is State.RUNNING:
        return _moved(row, done=False)
    group_id = None if row.state in FINAL else row.task.group_id
    tables.remove(row)
    return Moved(id=row.id, done=True, state=None, kind=row.task.kind, group_id=group_id)


def reschedule(tables: Tables, changes: Sequence[Rescheduling], now: int) -> list[Moved]:
    """Change when tasks are due that are `scheduled` or `ready`."""
    rows = tables.rows
    return [
        _reschedule(tables, row, due_moment(change.run_at, change.delay, now), now)
        if (row := rows.get(change.id))
        else _unknown(change.id)
        for change in changes
    ]


def _reschedule(tables: Tables, row: Row, run_at: int, now: int) -> Moved:
    if row.state not in (State.SCHEDULED, State.READY):
        return _moved(row, done=False)
    row.release_reservation()
    tables.requeue(row, run_at, now)
    return _moved(row, done=True)


def set_priority(tables: Tables, changes: Sequence[Reprioritizing]) -> list[Moved]:
    """Change the place of tasks that wait."""
    rows = tables.rows
    return [
        _set_priority(tables, row, change.priority) if (row := rows.get(change.id)) else _unknown(change.id)
        for change in changes
    ]


def _set_priority(tables: Tables, row: Row, priority: int) -> Moved:
    if row.state is State.RUNNING or row.state in FINAL or row.task.is_command:
        return _moved(row, done=False)
    tables.reprioritize(row, priority)
    return _moved(row, done=True)


def pause(tables: Tables, queues: Sequence[str], now: int) -> list[bool]:
    """Let nobody claim from these queues."""
    return [_pause(tables, queue, now) for queue in queues]


def _pause(tables: Tables, queue: str, now: int) -> bool:
    if tables.queues.get(queue) is not None:
        return False
    tables.queues[queue] = now
    balance_queue(tables, queue, now)
    return True


def resume(tables: Tables, queues: Sequence[str], now: int) -> list[bool]:
    """Undo `pause`."""
    return [_resume(tables, queue, now) for queue in queues]


def _resume(tables: Tables, queue: str, now: int) -> bool:
    if tables.queues.get(queue) is None:
        return False
    tables.queues[queue] = None
    balance_queue(tables, queue, now)
    return True


def _moved(row: Row, *, done: bool) -> Moved:
    return Moved(id=row.id, done=done, state=row.state, kind=row.task.kind)


def _unknown(task_id: int) -> Moved:
    return Moved(id=task_id, done=False, state=None)
