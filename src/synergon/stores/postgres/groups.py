"""Groups: tasks that belong together, and one that runs when all of them have ended. How they end: `follow_ups`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.tasks import Moved
from synergon.stores.postgres import operations
from synergon.stores.postgres.follow_ups import draw
from synergon.stores.postgres.insert import bonds_of, store, with_new_states
from synergon.stores.postgres.lock_order import lock
from synergon.stores.postgres.session import Session


async def open_group(session: Session, new: NewGroup) -> OpenedGroup:
    """Store a group and its tasks, all or nothing."""
    if any(task.key is not None for task in new.tasks):
        await session.rows("lock_keys")
    await lock(session, bonds_of([*new.tasks, *([] if new.then is None else [new.then])]))
    group_id: int = await session.value("add_group", new.name)
    then = [] if new.then is None else [replace(new.then, after_group=group_id)]
    members = [replace(task, group_id=group_id) for task in new.tasks]
    inserted = await store(session, [*members, *then])
    if then:
        await session.run("set_then", group_id, inserted[-1].id)
    session.groups.add(group_id)  # one without tasks has ended at once
    inserted = with_new_states(inserted, await draw(session))
    return OpenedGroup(id=group_id, insertions=tuple(inserted[: len(members)]), then=inserted[-1] if then else None)


async def groups(session: Session, ids: Sequence[int]) -> list[GroupRecord | None]:
    """These groups, counted from their rows."""
    counts: dict[int, dict[State, int]] = {}
    for group_id, state, count in await session.rows("group_counts", list(ids)):
        counts.setdefault(group_id, {})[State(state)] = count
    found = {
        row["id"]: GroupRecord(
            id=row["id"],
            name=row["name"],
            created_at=row["created_at"],
            ended_at=row["ended_at"],
            counts=counts.get(row["id"], {}),
            then_id=row["then_id"],
        )
        for row in await session.rows("groups", list(ids))
    }
    return [found.get(group_id) for group_id in ids]


async def cancel_group(session: Session, group_id: int, why: str | None) -> list[Moved]:
    """Cancel all of its tasks that have not ended."""
    return await operations.cancel(session, [row["id"] for row in await session.rows("live_of_group", group_id)], why)
