"""The stream of final events of all nodes."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from synergon.errors import OptionError
from synergon.model.events import Event
from synergon.model.lifecycle import FINAL, State
from synergon.options.options import check_name
from synergon.stores.final_events import NOW, unreadable

if TYPE_CHECKING:
    from synergon.client.connection import Connection
    from synergon.stores.base import FinalEvents, Store

MARK_LENGTH: Final = 8
"""How many characters of a cursor identify its store."""


class Events:
    """The part of an engine that reads final events. A stream omits and repeats no event."""

    def __init__(self, connection: Connection, logger: logging.Logger) -> None:
        self._connection = connection
        self._logger = logger

    def stream(
        self, after: str | None, kinds: Any, states: Any, sweep_seconds: float | None
    ) -> AsyncGenerator[Event, None]:
        """Yield the final events after the cursor, for ever. Without a cursor, start with the oldest event in the
        history."""
        if after is not None and not isinstance(after, str):
            raise OptionError(f'after must be the cursor of an event, or "now", got {after!r}')
        return self._stream(after, _kinds(kinds), _final_states(states), sweep_seconds)

    async def _stream(
        self, after: str | None, kinds: frozenset[str] | None, states: frozenset[State], sweep_seconds: float | None
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(await self.open(after, kinds, states, sweep_seconds)) as events:
            async for event in events:
                yield event

    async def open(
        self, after: str | None, kinds: Any, states: Any, sweep_seconds: float | None
    ) -> AsyncGenerator[Event, None]:
        """A stream whose position is fixed when this returns: with "now" it has every event from then on. Raises
        OptionError if the cursor cannot be read."""
        wanted_kinds, wanted_states = _kinds(kinds), _final_states(states)
        store = self._connection.store
        mark = await _mark_of(store)
        reading = await store.endings(_position(after, mark), wanted_states, wanted_kinds)
        return self._follow(reading, wanted_kinds, mark, sweep_seconds)

    async def _follow(
        self, reading: FinalEvents, kinds: frozenset[str] | None, mark: str, sweep_seconds: float | None
    ) -> AsyncGenerator[Event, None]:
        from synergon.client.event_stream import Follower  # imported here, because only this needs the sweep of nodes

        waiters = self._connection.waiters
        follower = Follower(self._connection, self._logger, sweep_seconds=sweep_seconds)
        waiters.followers.add(follower.wake_up)
        try:
            async for event in follower.follow(reading, kinds, mark):
                yield event
        finally:
            waiters.followers.discard(follower.wake_up)


def check_subscriber(function: Any, where: str = "on_event") -> Any:
    """Return the function if `on_event` can call it with one event. Raises OptionError otherwise."""
    if not callable(function) or inspect.isclass(function):
        raise OptionError(f"{where} takes a function of an event, got {function!r}")
    for called in (function, function.__call__):
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise OptionError(f"{where} takes a function of an event; the generator {function!r} would never be run")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise OptionError(f"{where} takes a function of an event, {function!r} is not: {error}") from None
    except ValueError:  # a built-in function without a signature
        pass
    return function


async def _mark_of(store: Store) -> str:
    """A text that identifies the store in cursors. It is equal in all processes that use the store."""
    import hashlib

    return hashlib.sha256(await store.identity()).hexdigest()[:MARK_LENGTH]


def _position(after: str | None, mark: str) -> str | None:
    if after is None or after == NOW:
        return after
    its_mark, dot, position = after.partition(".")
    if not dot or len(its_mark) != MARK_LENGTH:
        raise unreadable(after)
    if its_mark != mark:
        raise OptionError(
            "this cursor is of another store, or of one that was made anew since; begin again without a cursor"
        )
    return position


def _kinds(kinds: Any) -> frozenset[str] | None:
    if kinds is None:
        return None
    listed = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(listed, Iterable):
        raise OptionError(f"kinds must be names of kinds, got {kinds!r}")
    return frozenset(check_name(kind, "a kind") for kind in listed)


def _final_states(states: Any) -> frozenset[State]:
    if states is None:
        return FINAL
    words: Collection[Any] = [states] if isinstance(states, str) else list(states)
    found = frozenset(state for state in FINAL if state in words)
    if not words or len(found) != len(set(words)):
        raise OptionError(f"states must be some of {', '.join(sorted(FINAL))}, got {states!r}")
    return found
