"""The stream of final events of all nodes."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

from synergon.errors import OptionError
from synergon.model.events import Event
from synergon.model.lifecycle import FINAL, State
from synergon.options.options import check_name
from synergon.stores.final_events import NOW, unreadable

if TYPE_CHECKING:
    from synergon.client.connection import Connection
    from synergon.stores.base import Store

MARK_LENGTH: Final = 8
"""How many characters of a cursor name its store."""


class Events:
    """The part of an engine that reads final events. A stream omits and repeats nothing."""

    def __init__(self, connection: Connection, logger: logging.Logger) -> None:
        self._connection = connection
        self._logger = logger

    def stream(
        self, after: str | None, kinds: Any, states: Any, sweep_seconds: float | None
    ) -> AsyncGenerator[Event, None]:
        """Yield the final events after the cursor, for ever; without a cursor from the oldest in the history."""
        if after is not None and not isinstance(after, str):
            raise OptionError(f'after must be the cursor of an event, or "now", got {after!r}')
        return self._stream(after, _kinds(kinds), _final_states(states), sweep_seconds)

    async def _stream(
        self, after: str | None, kinds: frozenset[str] | None, states: frozenset[State], sweep_seconds: float | None
    ) -> AsyncGenerator[Event, None]:
        from synergon.client.event_stream import Follower  # imported here, because only this needs the sweep of nodes

        connection = self._connection
        store, waiters = connection.store, connection.waiters
        mark = await _mark_of(store)
        reading = await store.endings(_position(after, mark), states, kinds)
        follower = Follower(connection, self._logger, sweep_seconds=sweep_seconds)
        waiters.followers.add(follower.wake_up)
        try:
            async for event in follower.follow(reading, kinds, mark):
                yield event
        finally:
            waiters.followers.discard(follower.wake_up)


def check_subscriber(function: Any) -> Any:
    """A function that `on_event` can call with one event; OptionError for anything else."""
    if not callable(function) or inspect.isclass(function):
        raise OptionError(f"on_event takes a function of an event, got {function!r}")
    for called in (function, function.__call__):
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise OptionError(f"on_event takes a function of an event; the generator {function!r} would never be run")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise OptionError(f"on_event takes a function of an event, {function!r} is not: {error}") from None
    except ValueError:  # a built-in function without a signature
        pass
    return function


async def _mark_of(store: Store) -> str:
    """A text that identifies the store in cursors, equal in all processes that use it."""
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
