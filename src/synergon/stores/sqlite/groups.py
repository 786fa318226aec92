"""Reads groups of the SQLite store as records."""

from __future__ import annotations

from collections.abc import Sequence

from synergon.model.groups import GroupRecord
from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.stores.sqlite.transaction import Transaction, as_json


def groups(transaction: Transaction, ids: Sequence[int]) -> list[GroupRecord | None]:
    """These groups, with their tasks counted."""
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
