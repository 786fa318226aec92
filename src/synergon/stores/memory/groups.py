"""Reads groups of the memory store as records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from synergon.model.groups import GroupRecord
from synergon.model.record import to_datetime
from synergon.stores.memory.entries import Group
from synergon.stores.memory.tables import Tables


def groups(tables: Tables, ids: Sequence[int]) -> list[GroupRecord | None]:
    """These groups, with their tasks counted."""
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
