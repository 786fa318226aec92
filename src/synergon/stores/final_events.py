"""The history, read from one end to the other: where a reading is, how that is written down, and what was pruned."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from synergon.errors import EventsLost, OptionError
from synergon.model.events import Event

NOW: Final = "now"
"""Instead of a cursor: only what ends from now on."""

Position = tuple[int, int]
"""A number that grows with every commit that ends tasks, and the task's id."""

Look = Callable[[Position, int], Awaitable[tuple[int, list[tuple[Position, Event]]]]]
"""From a place and a limit to the highest number that was pruned, and what follows that place."""

LONGEST: Final = 100
"""How much is repeated of what is no cursor."""

BEGINNING: Final = (-1, -1)

NUMBER: Final = "([0-9]{1,19})"
"""How numbers are written in cursors; a damaged one may have any digits that there are, and any number of them."""
GREATEST: Final = 2**63 - 1

_TEXT: Final = re.compile(f"{NUMBER}-{NUMBER}(?:~{NUMBER})?")


def unreadable(cursor: str) -> OptionError:
    """Nobody has given this one."""
    return OptionError(
        f"{cursor[:LONGEST]!r} is no cursor of a stream of events; use the `cursor` of an event as it is"
    )


def numbers_of(cursor: str, *texts: str, greatest: int = GREATEST) -> list[int]:
    """The numbers of a cursor; `OptionError` if no event ever had such ones."""
    numbers = [int(text) for text in texts]
    if max(numbers, default=0) > greatest:
        raise unreadable(cursor)
    return numbers


def lost() -> EventsLost:
    """Said as soon as it is known, and before anything that comes after the gap."""
    return EventsLost(
        "the history has been pruned beyond this cursor, so some ends will never be seen by this stream; begin again "
        "without a cursor, and keep the history for longer (retention) than anybody is away"
    )


class Floor:
    """Tells what was pruned behind a reader's back from what was gone before the reader came."""

    def __init__(self, number: int | None) -> None:
        self.number = number
        """Up to here things were gone when the reading began; None: it has not begun."""

    def check(self, pruned: int, read_up_to: int) -> None:
        """Raise EventsLost if something was pruned that had not been read."""
        if self.number is None:
            self.number = pruned
        elif pruned > max(read_up_to, self.number):
            raise lost()

    def suffix(self, read_up_to: int) -> str:
        """What a cursor has to say of it."""
        return f"~{self.number}" if self.number is not None and self.number > read_up_to else ""


class OrderedFinalEvents:
    """A reading of a history in which later commits have greater places. Gives each end once, and in that order."""

    def __init__(self, look: Look, position: Position, floor: int | None) -> None:
        self._look = look
        self._position = position
        self._floor = Floor(floor)

    @classmethod
    def after(cls, look: Look, cursor: str | None) -> OrderedFinalEvents:
        """From behind the cursor, or from the beginning."""
        if cursor is None:
            return cls(look, BEGINNING, None)
        found = _TEXT.fullmatch(cursor)
        if found is None:
            raise unreadable(cursor)
        number, task_id, floor = numbers_of(cursor, *found.groups(default="0"))
        return cls(look, (number, task_id), floor)

    async def read(self, limit: int) -> list[Event]:
        """The next ends."""
        pruned, found = await self._look(self._position, limit)
        self._floor.check(pruned, self._position[0])
        if found:
            self._position = found[-1][0]
        return [replace(event, cursor=self._text(position)) for position, event in found]

    def _text(self, position: Position) -> str:
        number, task_id = position
        return f"{number}-{task_id}{self._floor.suffix(number)}"


def first(found: Sequence[tuple[Position, Event]], limit: int) -> list[tuple[Position, Event]]:
    """The first of what was found in several places."""
    return sorted(found, key=lambda entry: entry[0])[:limit]
