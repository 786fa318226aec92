"""Groups: tasks that belong together, and what runs when all of them have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.lifecycle import FINAL
from synergon.model.record import to_datetime
from synergon.model.tasks import Insertion, Moved
from synergon.stores.memory import insert, operations
from synergon.stores.memory.entries import Group
from synergon.stores.memory.row import Row
from synergon.stores.memory.tables import Tables


def open_group(tables: Tables, new: NewGroup, now: int) -> OpenedGroup:
    """Store a group and its tasks, all or nothing."""
    insert.reject_conflicts(tables, [*new.tasks, *([] if new.then is None else [new.then])])
    tables.last_group_id += 1
    group_id = tables.last_group_id
    group = tables.groups[group_id] = Group(new.name, created_at=now)
    members = [insert.put(tables, replace(task, group_id=group_id), task.on_conflict, now) for task in new.tasks]
    then: Insertion | None = None
    if new.then is not None:
        then = insert.put(tables, replace(new.then, after_group=group_id), new.then.on_conflict, now)
        group.then_id = then.id
    if not group.live:
        tables.emptied[group_id] = None
        end_emptied(tables, now)
    return OpenedGroup(
        id=group_id,
        insertions=tuple(replace(member, state=tables.rows[member.id].state) for member in members),
        then=None if then is None else replace(then, state=tables.rows[then.id].state),
    )


def end_emptied(tables: Tables, now: int) -> tuple[str, ...]:
    """End the groups that have no live task any more, each once, and release what waits for them; of which kinds."""
    released: list[str] = []
    while tables.emptied:
        group = tables.groups.get(next(iter(tables.emptied)))
        tables.emptied.pop(next(iter(tables.emptied)))
        if group is None or group.live or group.ended_at is not None:
            continue
        group.ended_at = now
        for row in list(group.followers.values()):
            tables.release(row, now)
            released.append(row.task.kind)
    return tuple(released)


def groups(tables: Tables, ids: Sequence[int]) -> list[GroupRecord | None]:
    """These groups, counted from their rows."""
    return [_record(group_id, group) if (group := tables.groups.get(group_id)) else None for group_id in ids]


def _record(group_id: int, group: Group) -> GroupRecord:
    return GroupRecord(
        id=group_id,
        name=group.name,
        created_at=to_datetime(group.created_at),
        ended_at=None if group.ended_at is None else to_datetime(group.ended_at),
        counts=dict(Counter(row.state for row in group.members.values())),
        then_id=group.then_id,
    )


def cancel_group(tables: Tables, group_id: int, why: str | None, now: int) -> list[Moved]:
    """Cancel all of its tasks that have not ended."""
    group = tables.groups.get(group_id)
    rows = [] if group is None else group.members.values()
    return operations.cancel(tables, [row.id for row in rows if row.state not in FINAL], why, now)


def forget_if_bare(tables: Tables, row: Row) -> None:
    """Forget the ended groups of a task that has just left the history, if it was the last to tell of them."""
    for group_id in (row.task.group_id, row.task.after_group):
        group = tables.groups.get(group_id or 0)
        if group_id and group and group.ended_at is not None and not group.members and group.then_id not in tables.rows:
            del tables.groups[group_id]
