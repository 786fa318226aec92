"""Reads final events from the memory store, in the order in which tasks ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from synergon.model.events import Event
from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.stores.final_events import Position, first
from synergon.stores.memory.row import Row
from synergon.stores.memory.tables import Tables

Found = tuple[int, list[tuple[Position, Event]]]


def look(
    tables: Tables, position: Position, states: Collection[State], kinds: Collection[str] | None, limit: int
) -> Found:
    """The highest number that was pruned, and the events after the position."""
    found = [
        ((row.ended_no, row.id), _event(row))
        for state in states
        for row in islice(_after(tables.ended[state], position[0], tables.last_end), limit)
    ]
    pruned = (
        number
        for (state, kind), number in tables.pruned.items()
        if state in states and (kinds is None or kind in kinds)
    )
    return max(pruned, default=0), first(found, limit)


def _after(ended: Mapping[int, Row], number: int, last: int) -> Iterator[Row]:
    """The tasks that ended after this number. Looks up each number or scans all tasks, whichever takes fewer steps."""
    if last - number > len(ended):
        return (row for row in ended.values() if row.ended_no > number)
    return (ended[each] for each in range(number + 1, last + 1) if each in ended)


def _event(row: Row) -> Event:
    return Event(
        name=row.state.value,  # type: ignore[arg-type]  # the value of a final state is a name of an event
        task_id=row.id,
        kind=row.task.kind,
        queue=row.task.queue,
        state=row.state,
        reason=row.reason,
        attempt=row.attempts,
        node_id=row.node_id,
        at=to_datetime(row.finished_at or 0),
        tags=row.task.tags,
    )
