"""Groups of tasks: inserts a group with its tasks, and cancels it. `follow_ups` ends it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.tasks import Moved
from synergon.stores.rules import follow_ups, insert, operations
from synergon.stores.session import Session


async def open_group(session: Session, new: NewGroup) -> OpenedGroup:
    """Store a group and its tasks, all or nothing."""
    followers = [] if new.then is None else [new.then]
    await session.locks.for_new_tasks([*new.tasks, *followers])
    # The group has no id yet; a task that follows any group cannot be answered with another one.
    holders = await insert.check_keys(session, [*new.tasks, *(replace(task, after_group=0) for task in followers)])
    group_id = await session.groups.add(new.name)
    members = [replace(task, group_id=group_id) for task in new.tasks]
    then = [replace(task, after_group=group_id) for task in followers]
    inserted = await insert.store(session, [*members, *then], holders)
    if then:
        await session.groups.set_then(group_id, inserted[-1].id)
    session.touched.groups.add(group_id)  # a group without tasks ends at once
    inserted = insert.with_new_states(inserted, await follow_ups.apply_follow_ups(session))
    return OpenedGroup(id=group_id, insertions=tuple(inserted[: len(members)]), then=inserted[-1] if then else None)


async def groups(session: Session, ids: Sequence[int]) -> list[GroupRecord | None]:
    """These groups, with their tasks counted. None for a group that does not exist."""
    counts: dict[int, dict[State, int]] = {}
    for entry in await session.groups.counts(ids):
        counts.setdefault(entry.group_id, {})[entry.state] = entry.count
    found = {
        row.id: GroupRecord(
            id=row.id,
            name=row.name,
            created_at=row.created_at,
            ended_at=row.ended_at,
            counts=counts.get(row.id, {}),
            then_id=row.then_id,
        )
        for row in await session.groups.read(ids)
    }
    return [found.get(group_id) for group_id in ids]


async def cancel_group(session: Session, group_id: int, why: str | None) -> list[Moved]:
    """Cancel the live tasks of a group."""
    return await operations.cancel(session, await session.groups.live_tasks(group_id), why)
