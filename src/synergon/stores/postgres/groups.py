"""Reads groups of the PostgreSQL store as records."""

from __future__ import annotations

from collections.abc import Sequence

from synergon.model.groups import GroupRecord
from synergon.model.lifecycle import State
from synergon.stores.postgres.session import Session


async def groups(session: Session, ids: Sequence[int]) -> list[GroupRecord | None]:
    """These groups, with their tasks counted."""
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
