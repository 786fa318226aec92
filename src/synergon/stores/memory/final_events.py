"""Reads final events from the memory store, in the order in which tasks ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from synergon.model.events import Event
from synergon.model.lifecycle import State
from synergon.stores.columns import EVENT_COLUMNS
from synergon.stores.final_events import Position, first
from synergon.stores.memory.row import Row, values_of
from synergon.stores.memory.tables import Tables
from synergon.stores.typed_rows import field_names, row_reader

Found = tuple[int, list[tuple[Position, Event]]]


def read_page(
    tables: Tables, position: Position, states: Collection[State], kinds: Collection[str] | None, limit: int
) -> Found:
    """Returns the greatest `ended_no` that was pruned for these states and kinds, and the next events with these states
    after `position`, at most `limit`."""
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
    """The tasks whose `ended_no` is greater than `number`. Looks up each number or scans all rows, whichever takes
    fewer steps."""
    if last - number > len(ended):
        return (row for row in ended.values() if row.ended_no > number)
    return (ended[each] for each in range(number + 1, last + 1) if each in ended)


_values: Final = values_of(EVENT_COLUMNS)
_read: Final[Callable[[Sequence[Any]], Event]] = row_reader(Event, field_names(Event))


def _event(row: Row) -> Event:
    return _read((*_values(row), None))
