"""What the readers of final events share: the cursor, which stores how far a reader has read, and the check that no
unread event was pruned.

Every store uses these parts, so a cursor has one meaning in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from synergon.errors import EventsLost, OptionError
from synergon.model.events import Event

NOW: Final = "now"
"""A special cursor: the reader starts with the next event."""

Position = tuple[int, int]
"""The position of a final event: a number that grows with every commit that ends tasks, and the id of the task."""

ReadPage = Callable[[Position, int], Awaitable[tuple[int, list[tuple[Position, Event]]]]]
"""Takes a position and a limit. Returns the highest number that was pruned, and the events after the position."""

LONGEST: Final = 100
"""How many characters of an invalid cursor an error message repeats."""

BEGINNING: Final = (-1, -1)

NUMBER: Final = "([0-9]{1,19})"
"""The pattern of a number in a cursor: at most 19 ASCII digits, because a damaged cursor may have other or more
digits."""
GREATEST: Final = 2**63 - 1

_TEXT: Final = re.compile(f"{NUMBER}-{NUMBER}(?:~{NUMBER})?")


def unreadable(cursor: str) -> OptionError:
    """The error for a text that is not a cursor."""
    return OptionError(
        f"{cursor[:LONGEST]!r} is no cursor of a stream of events; use the `cursor` of an event as it is"
    )


def numbers_of(cursor: str, *texts: str, greatest: int = GREATEST) -> list[int]:
    """The numbers of a cursor. `OptionError` if one of them is too large for any event."""
    numbers = [int(text) for text in texts]
    if max(numbers, default=0) > greatest:
        raise unreadable(cursor)
    return numbers


def lost() -> EventsLost:
    """The error for a reader whose next events were pruned. It is raised before any event after the gap is returned."""
    return EventsLost(
        "the history has been pruned beyond this cursor, so this stream has missed some events; begin again without "
        "a cursor, and keep the history for longer (retention) than a reader is away"
    )


class Floor:
    """Detects events that were pruned before the reader has read them. Events that were pruned before the reader
    started do not count as missed."""

    def __init__(self, number: int | None) -> None:
        self.number = number
        """The highest number that was pruned when the reader started. None before its first read."""

    def check(self, pruned: int, read_up_to: int) -> None:
        """Raise EventsLost if an event was pruned that the reader has not read."""
        if self.number is None:
            self.number = pruned
        elif pruned > max(read_up_to, self.number):
            raise lost()

    def suffix(self, read_up_to: int) -> str:
        """The part of a cursor that stores the floor. Empty once the reader's position has passed the floor."""
        return f"~{self.number}" if self.number is not None and self.number > read_up_to else ""


class OrderedFinalEvents:
    """A reader of a history whose positions grow in commit order. Returns each event once, in that order."""

    def __init__(self, read_page: ReadPage, position: Position, floor: int | None) -> None:
        self._read_page = read_page
        self._position = position
        self._floor = Floor(floor)

    @classmethod
    def after(cls, read_page: ReadPage, cursor: str | None) -> OrderedFinalEvents:
        """A reader that starts after the cursor; without a cursor, with the oldest event."""
        if cursor is None:
            return cls(read_page, BEGINNING, None)
        found = _TEXT.fullmatch(cursor)
        if found is None:
            raise unreadable(cursor)
        number, task_id, floor = numbers_of(cursor, *found.groups(default="0"))
        return cls(read_page, (number, task_id), floor)

    async def read(self, limit: int) -> list[Event]:
        """Read the next events. Raises EventsLost if an unread event was pruned."""
        pruned, found = await self._read_page(self._position, limit)
        self._floor.check(pruned, self._position[0])
        if found:
            self._position = found[-1][0]
        return [replace(event, cursor=self._text(position)) for position, event in found]

    def _text(self, position: Position) -> str:
        number, task_id = position
        return f"{number}-{task_id}{self._floor.suffix(number)}"


def first(found: Sequence[tuple[Position, Event]], limit: int) -> list[tuple[Position, Event]]:
    """The first `limit` of these events, by position."""
    return sorted(found, key=lambda entry: entry[0])[:limit]
