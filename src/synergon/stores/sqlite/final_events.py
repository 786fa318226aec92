"""Reads final events from SQLite in commit order: each transaction that ends tasks has a later moment than the one
before."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from synergon.model.events import Event
from synergon.model.lifecycle import Reason, State
from synergon.model.record import to_datetime
from synergon.stores.final_events import Position, first
from synergon.stores.sqlite.transaction import Transaction, as_json, decode_tags

Found = tuple[int, list[tuple[Position, Event]]]


def look(
    transaction: Transaction, position: Position, states: Collection[State], kinds: Collection[str] | None, limit: int
) -> Found:
    """The highest moment that was pruned, and the events after the position."""
    (pruned,) = transaction.row("pruned", states=as_json(states), kinds=None if kinds is None else as_json(kinds))
    rows = [row for state in states for row in transaction.rows("endings_at", state, *position, limit)]
    if len(rows) < limit:
        rows += [row for state in states for row in transaction.rows("endings", state, position[0], limit)]
    return pruned, first([_entry(row) for row in rows], limit)


def last_moment(transaction: Transaction) -> int:
    """The moment of the last commit. Every later end has a later moment."""
    moment: int = transaction.row("last_moment")[0]
    return moment


def _entry(row: Any) -> tuple[Position, Event]:
    task_id, kind, queue, state, reason, attempts, node_id, finished_at, tags = row
    event = Event(
        name=state,
        task_id=task_id,
        kind=kind,
        queue=queue,
        state=State(state),
        reason=Reason(reason) if reason else None,
        attempt=attempts,
        node_id=node_id,
        at=to_datetime(finished_at),
        tags=decode_tags(tags),
    )
    return (finished_at, task_id), event
