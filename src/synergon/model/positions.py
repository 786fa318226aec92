"""Positions of tasks in the order of a listing, and the cursors that users pass to ask for the next page."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from synergon.model.task_records import TaskQuery

_CURSOR: Final = re.compile(r"(?:(-?[0-9]{1,19})\.)?([0-9]{1,19})")
RANGES: Final = ("enqueued", "started", "finished")
"""The moments by which a listing can be filtered: `enqueued_since`, `enqueued_until` and so on."""


class Position(NamedTuple):
    """The position of a task in the order of a listing."""

    key: int
    id: int


def check_cursor(query: TaskQuery) -> bool:
    """Whether the cursor belongs to the sort order of the query."""
    found = _CURSOR.fullmatch(query.after or "0" if query.sort == "id" else query.after or "0.0")
    return found is not None and (found[1] is None) == (query.sort == "id")


def start_of(query: TaskQuery) -> Position | None:
    """The position after which the page begins. None for the first page."""
    found = None if query.after is None else _CURSOR.fullmatch(query.after)
    return None if found is None else Position(int(found[1] or found[2]), int(found[2]))


def cursor_of(query: TaskQuery, position: Position) -> str:
    """The cursor of the page that begins after this position."""
    return str(position.id) if query.sort == "id" else f"{position.key}.{position.id}"
