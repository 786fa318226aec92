"""Reads final events from SQLite in commit order. Each transaction that ends tasks has a later moment than the one
before it."""

from __future__ import annotations

from collections.abc import Collection

from synergon.model.events import Event
from synergon.model.lifecycle import State
from synergon.model.record import from_datetime
from synergon.stores.final_events import Position, first
from synergon.stores.sqlite.transaction import Transaction, as_json

Found = tuple[int, list[tuple[Position, Event]]]


def read_page(
    transaction: Transaction, position: Position, states: Collection[State], kinds: Collection[str] | None, limit: int
) -> Found:
    """Returns the latest moment that was pruned for these states and kinds, and the next events with these states after
    `position`, at most `limit`."""
    (pruned,) = transaction.row("pruned", states=as_json(states), kinds=None if kinds is None else as_json(kinds))
    events = [event for state in states for event in transaction.typed(Event, "endings_at", state, *position, limit)]
    if len(events) < limit:
        events += [
            event for state in states for event in transaction.typed(Event, "endings", state, position[0], limit)
        ]
    return pruned, first([_entry(event) for event in events], limit)


def last_moment(transaction: Transaction) -> int:
    """The moment of the last transaction that wrote. Tasks that end later have later moments."""
    moment: int = transaction.row("last_moment")[0]
    return moment


def _entry(event: Event) -> tuple[Position, Event]:
    return (from_datetime(event.at), event.task_id), event
