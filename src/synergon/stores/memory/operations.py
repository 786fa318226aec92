"""What operators do to tasks. A move that is not legal any more changes nothing and is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from synergon.lifecycle import FINAL, Reason, State
from synergon.records import Moved, Reprioritizing, Rescheduling
from synergon.stores.memory.coming import due_moment
from synergon.stores.memory.row import Row
from synergon.stores.memory.tables import Tables


def cancel(tables: Tables, ids: Sequence[int], now: int) -> list[Moved]:
    """End tasks that wait; record the wish for those that run."""

    def cancel_one(row: Row) -> Moved:
        if row.state in FINAL:
            return _refused(row)
        if row.state is State.RUNNING:
            row.cancel_requested = True
            return Moved(id=row.id, done=True, state=row.state, kind=row.task.kind, node_id=row.node_id)
        tables.end(row, State.CANCELLED, Reason.CANCELLED, now)
        return _done(row)

    return _each(tables, ids, cancel_one)


def retry(tables: Tables, ids: Sequence[int], now: int) -> list[Moved]:
    """Run ended tasks again, unless a live task has their key."""

    def retry_one(row: Row) -> Moved:
        if row.state not in FINAL:
            return _refused(row)
        holder = tables.holder(row.task)
        if holder is not None:
            return Moved(id=row.id, done=False, state=row.state, kind=row.task.kind, key_holder=holder.id)
        tables.revive(row, now)
        return _done(row)

    return _each(tables, ids, retry_one)


def delete(tables: Tables, ids: Sequence[int]) -> list[Moved]:
    """Remove tasks that are not running."""

    def delete_one(row: Row) -> Moved:
        if row.state is State.RUNNING:
            return _refused(row)
        tables.remove(row)
        return Moved(id=row.id, done=True, state=None, kind=row.task.kind)

    return _each(tables, ids, delete_one)


def reschedule(tables: Tables, changes: Sequence[Rescheduling], now: int) -> list[Moved]:
    """Change when tasks are due that are due later or ready."""
    moments = (due_moment(change.run_at, change.delay, now) for change in changes)

    def reschedule_one(row: Row) -> Moved:
        run_at = next(moments)
        if row.state not in (State.SCHEDULED, State.READY):
            return _refused(row)
        tables.requeue(row, run_at, now)
        return _done(row)

    return _each(tables, (change.id for change in changes), reschedule_one)


def set_priority(tables: Tables, changes: Sequence[Reprioritizing]) -> list[Moved]:
    """Change the place of tasks that wait."""
    raise NotImplementedError


def _each(tables: Tables, ids: Iterable[int], move: Callable[[Row], Moved]) -> list[Moved]:
    rows = ((row_id, tables.rows.get(row_id)) for row_id in ids)
    return [Moved(id=row_id, done=False, state=None) if row is None else move(row) for row_id, row in rows]


def _done(row: Row) -> Moved:
    return Moved(id=row.id, done=True, state=row.state, kind=row.task.kind)


def _refused(row: Row) -> Moved:
    return Moved(id=row.id, done=False, state=row.state, kind=row.task.kind)
