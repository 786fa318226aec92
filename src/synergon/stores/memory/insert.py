"""Tasks come in."""

from __future__ import annotations

from collections.abc import Sequence

from synergon.errors import KeyConflict
from synergon.model.lifecycle import State
from synergon.model.tasks import Insertion, NewTask, OnConflict
from synergon.stores.memory.tables import Tables


def insert(tables: Tables, tasks: Sequence[NewTask], now: int) -> list[Insertion]:
    """Store all of `tasks`, or none if one of them raises."""
    reject_conflicts(tables, tasks)
    return [put(tables, task, task.on_conflict, now) for task in tasks]


def put(tables: Tables, task: NewTask, on_conflict: OnConflict, now: int) -> Insertion:
    """Store one task, or answer with the live one that holds its key."""
    holder = tables.holder(task)
    if holder is None:
        row = tables.add(task, due_moment(task.run_at, task.delay, now), now)
        return Insertion(id=row.id, created=True, state=row.state)
    if on_conflict == "replace":
        tables.replace(holder, task, due_moment(task.run_at, task.delay, now), now)
    return Insertion(id=holder.id, created=False, state=holder.state)


def due_moment(run_at: int | None, delay: int | None, now: int) -> int:
    """When a task is due that says `run_at`, or else `delay`, or else nothing."""
    if run_at is not None:
        return run_at
    return now if delay is None else now + delay


def reject_conflicts(tables: Tables, tasks: Sequence[NewTask]) -> None:
    """Raise if one of `tasks` could not be stored."""
    # Looked for before anything is stored, so that there is nothing to take back.
    earlier: set[tuple[str, str]] = set()
    for task in tasks:
        if task.key is None:
            continue
        holder = tables.holder(task)
        if holder is not None:
            _reject_conflict(task, holder.id, is_running=holder.state is State.RUNNING)
        elif (task.kind, task.key) in earlier:
            _reject_conflict(task, 0, is_running=False)
        earlier.add((task.kind, task.key))


def _reject_conflict(task: NewTask, holder_id: int, *, is_running: bool) -> None:
    held = f"task {holder_id} holds" if holder_id else "another task of the same call holds"
    if task.on_conflict == "raise":
        raise KeyConflict(
            f"{held} the key {task.key!r} of kind {task.kind!r}; wait until it has ended, or use another key", holder_id
        )
    if task.on_conflict == "replace" and is_running:
        raise KeyConflict(
            f"{held} the key {task.key!r} of kind {task.kind!r} and is running, so it cannot be replaced; "
            "cancel it, or wait until it has ended",
            holder_id,
        )
