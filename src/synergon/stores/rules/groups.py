"""Groups of tasks, and flows: stores them with their tasks, reads them, and cancels their tasks. `follow_ups` ends
them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from synergon.model.dependencies import Need
from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.tasks import Moved, NewTask
from synergon.stores.rules import dependencies, follow_ups, insert, operations
from synergon.stores.session import Session


async def open_group(session: Session, new: NewGroup) -> OpenedGroup:
    """Store a group or a flow with its tasks, all or nothing."""
    opened = await store_group(session, new)
    moves = await follow_ups.apply_follow_ups(session)
    together = insert.with_new_states(opened.all_insertions, moves)
    return replace(
        opened,
        insertions=tuple(together[: len(new.tasks)]),
        then=None if new.then is None else together[-1],
    )


async def store_group(session: Session, new: NewGroup) -> OpenedGroup:
    """`open_group` without its follow-ups."""
    tasks = [*new.tasks, *_followers(new)]
    await session.locks.for_new_tasks(tasks)
    holders = await insert.check_keys(session, tasks, are_steps=new.is_flow)
    needed = await dependencies.check(session, tasks)
    group_id = await session.groups.add(new.name, new.is_flow)
    members = [replace(task, group_id=group_id) for task in new.tasks]
    inserted = await insert.store(session, [*members, *_followers(new)], holders, needed)
    if inserted and (new.is_flow or new.then is not None):
        await session.groups.set_then(group_id, inserted[-1].id)
    session.touched.groups.add(group_id)  # a group without tasks ends at once
    return OpenedGroup(
        id=group_id,
        insertions=tuple(inserted[: len(members)]),
        then=None if new.then is None else inserted[-1],
    )


def _followers(new: NewGroup) -> list[NewTask]:
    """The task that follows the group, which depends on all its tasks."""
    if new.then is None:
        return []
    after = tuple(Need(step=index) for index in range(len(new.tasks)))
    return [replace(new.then, after=after, if_dependency_fails="group")]


async def groups(session: Session, ids: Sequence[int]) -> list[GroupRecord | None]:
    """These groups, with the numbers of their tasks by state. None for a group that does not exist."""
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
            is_flow=row.is_flow,
            state=row.state,
        )
        for row in await session.groups.read(ids)
    }
    return [found.get(group_id) for group_id in ids]


async def cancel_group(session: Session, group_id: int, why: str | None = None) -> list[Moved]:
    """Cancel all live tasks of a group."""
    return await operations.cancel(session, await session.groups.live_tasks(group_id), why)
