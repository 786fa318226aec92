"""What can be put around bodies, and what can be heard of tasks: what this node does to them, and all that end,
wherever that is."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import AsyncGenerator, Collection, Iterable
from typing import Any, Final, TypeVar

from synergon.client.event_stream import Follower
from synergon.client.results import Results
from synergon.errors import OptionError
from synergon.model.events import Event
from synergon.model.lifecycle import FINAL, State
from synergon.node.callbacks.event_feed import Subscriber
from synergon.options.middleware_checks import Middleware, check_middleware
from synergon.options.options import check_name
from synergon.options.settings import Settings
from synergon.stores.base import Store
from synergon.stores.final_events import NOW, unreadable
from synergon.task import AnyTask

Around = TypeVar("Around", bound=Middleware)
Listener = TypeVar("Listener", bound=Subscriber)

MARK_LENGTH: Final = 8
"""How much of a cursor says of which store it is."""


class Observing(Results):
    """The part of an Engine that lets others see what tasks do and what becomes of them."""

    kinds: dict[str, AnyTask]
    middlewares: list[Middleware]
    subscribers: list[Subscriber]
    settings: Settings
    logger: logging.Logger

    def middleware(self, function: Around) -> Around:
        """Put a function around all bodies: `async def around(ctx, call_next)`. The first one is the outermost, and a
        kind's own are inside of these."""
        self.middlewares.append(check_middleware(function, "engine.middleware"))
        for task_type in self.kinds.values():
            task_type.wrap_again()
        return function

    def on_event(self, subscriber: Listener) -> Listener:
        """Have a function of an Event called for everything that this engine's own node does to tasks: after it is
        stored, at most once, in order. It holds nothing up and changes nothing."""
        self.subscribers.append(_check_subscriber(subscriber))
        return subscriber

    def events(
        self,
        after: str | None = None,
        *,
        kinds: str | Iterable[str] | None = None,
        states: State | str | Iterable[State | str] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Every task that ends, on whatever node, for ever: `async for event in engine.events(after=cursor)`.

        From behind the event whose `cursor` is given; without one from the oldest that the history has; "now": from now
        on. Nothing is left out and, within one stream, nothing comes twice. EventsLost if the history was pruned faster
        than it was read.
        """
        if after is not None and not isinstance(after, str):
            raise OptionError(f'after must be the cursor of an event, or "now", got {after!r}')
        return self._events(after, _kinds(kinds), _final_states(states))

    async def _events(
        self, after: str | None, kinds: frozenset[str] | None, states: frozenset[State]
    ) -> AsyncGenerator[Event, None]:
        store, waiters = self.store, self.waiters
        mark = await _mark_of(store)
        reading = await store.endings(_position(after, mark), states, kinds)
        follower = Follower(
            self.logger,
            sweep_seconds=self.settings.sweep,
            ask=self._ask_to_follow,
            are_hints_well=lambda: self.peers is not None and self.peers.is_healthy,
            is_over=lambda: waiters.is_closed,
        )
        waiters.followers.add(follower.news)
        try:
            async for event in follower.follow(reading, kinds, mark):
                yield event
        finally:
            waiters.followers.discard(follower.news)

    def _ask_to_follow(self) -> None:
        self._become_reachable()
        if self.peers is not None:
            self.peers.ask_to_follow()


def _check_subscriber(function: Any) -> Any:
    if not callable(function) or inspect.isclass(function):
        raise OptionError(f"on_event takes a function of an event, got {function!r}")
    for called in (function, function.__call__):
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise OptionError(f"on_event takes a function of an event; the generator {function!r} would never be run")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise OptionError(f"on_event takes a function of an event, {function!r} is not: {error}") from None
    except ValueError:  # something built in, which does not tell
        pass
    return function


async def _mark_of(store: Store) -> str:
    """Tells stores apart; the same for whoever uses this one."""
    return hashlib.sha256(await store.secret()).hexdigest()[:MARK_LENGTH]


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
