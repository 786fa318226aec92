"""Groups: tasks that belong together, and one that runs when all of them have ended. How they end: `follow_ups`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.model.tasks import Cutoffs, Moved
from synergon.stores.sqlite import operations
from synergon.stores.sqlite.follow_ups import draw
from synergon.stores.sqlite.insert import store, with_new_states
from synergon.stores.sqlite.transaction import Transaction, as_json


def open_group(transaction: Transaction, new: NewGroup) -> OpenedGroup:
    """Store a group and its tasks, all or nothing."""
    group_id = transaction.next_id()
    then = [] if new.then is None else [replace(new.then, after_group=group_id)]
    members = [replace(task, group_id=group_id) for task in new.tasks]
    transaction.run("add_group", group_id, new.name, transaction.now)
    inserted = store(transaction, [*members, *then])
    if then:
        transaction.run("set_then", inserted[-1].id, group_id)
    transaction.groups.add(group_id)  # one without tasks has ended at once
    inserted = with_new_states(inserted, draw(transaction))
    return OpenedGroup(id=group_id, insertions=tuple(inserted[: len(members)]), then=inserted[-1] if then else None)


def groups(transaction: Transaction, ids: Sequence[int]) -> list[GroupRecord | None]:
    """These groups, counted from their rows."""
    wanted = as_json(ids)
    counts: dict[int, dict[State, int]] = {}
    for group_id, state, count in transaction.rows("group_counts", ids=wanted):
        counts.setdefault(group_id, {})[State(state)] = count
    found = {
        group_id: GroupRecord(
            id=group_id,
            name=name,
            created_at=to_datetime(created_at),
            ended_at=to_datetime(ended_at) if ended_at is not None else None,
            counts=counts.get(group_id, {}),
            then_id=then_id,
        )
        for group_id, name, created_at, ended_at, then_id in transaction.rows("groups", wanted)
    }
    return [found.get(group_id) for group_id in ids]


def cancel_group(transaction: Transaction, group_id: int, why: str | None) -> list[Moved]:
    """Cancel all of its tasks that have not ended."""
    return operations.cancel(transaction, [row[0] for row in transaction.rows("live_of_group", group_id)], why)


def prune(transaction: Transaction, cutoffs: Cutoffs, limit: int) -> None:
    """Forget groups that ended long ago and of which no task is left; as long as some tasks are kept for ever, so are
    the groups."""
    ages = (cutoffs.succeeded, cutoffs.failed, cutoffs.cancelled)
    known = [age for age in ages if age is not None]
    if len(known) == len(ages):
        transaction.run("prune_groups", transaction.now - max(known), limit)
