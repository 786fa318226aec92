"""The feed: what becomes of tasks on this node, told to whoever has subscribed.

Promise: after it is stored, at most once, to each subscriber in the order in which it happened. Nobody's subscriber
holds anything up: each has a line of its own, and what does not fit into it is dropped and counted. What one raises is
logged, and one that will not end is given up, as all callbacks are.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from synergon.model.claims import Claim
from synergon.model.clock import Clock
from synergon.model.events import Event, EventName
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import Crashed, Failed, FencedOutcome, Outcome, Retrying, Snoozed, Verdict
from synergon.model.record import to_datetime
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Reaped
from synergon.node.callbacks.callbacks import Callbacks, awaited
from synergon.options.function_names import name_of

LONGEST_SECONDS: Final = 30.0
LAST_SECONDS: Final = 5.0
"""How long subscribers may take when the node stops."""
MOST_EVENTS: Final = 10_000
"""How many may wait for one subscriber."""

Subscriber = Callable[[Event], Any]


class EventFeed:
    """Makes events of what the node does. Without subscribers it costs a look at an empty list."""

    def __init__(
        self,
        subscribers: Sequence[Subscriber],
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        callbacks: Callbacks,
    ) -> None:
        self._subscribers = subscribers
        self._clock = clock
        self._logger = logger
        self._callbacks = callbacks
        self._deliveries: dict[int, Delivery] = {}
        self._open: dict[tuple[int, int], tuple[Claim, str]] = {}
        """Attempts whose outcome somebody is to hear of, and the node that they run on."""

    @property
    def is_heard(self) -> bool:
        """Whether anybody has subscribed."""
        return bool(self._subscribers)

    def started(self, claims: Iterable[Claim], node_id: str) -> None:
        """These were claimed."""
        if not self._subscribers:
            return
        for claim in claims:
            self._open[claim.id, claim.claim_no] = claim, node_id
            self._tell(self._of_claim("started", claim, node_id, State.RUNNING))

    def settled(self, settlement: FencedOutcome, verdict: Verdict) -> None:
        """The store has the outcome; a stale one is nobody's to tell of."""
        if not self._open:
            return
        claim, node_id = self._open.pop((settlement.id, settlement.claim_no), (None, ""))
        if claim is None or verdict.state is None:
            return
        outcome, state = settlement.outcome, State(verdict.state)
        self._tell(self._of_claim(_name(outcome, state), claim, node_id, state, _reason(outcome, state)))

    def reaped(self, tasks: Iterable[Reaped]) -> None:
        """These were taken from a dead node."""
        if not self._subscribers:
            return
        for task in tasks:
            self._tell(
                Event(
                    name=_name(None, task.state),
                    task_id=task.id,
                    kind=task.kind,
                    state=task.state,
                    reason=_reason(None, task.state),
                    node_id=task.node_id,
                    at=to_datetime(self._clock.wall()),
                )
            )

    def ended_unrun(self, records: Iterable[TaskRecord | None]) -> None:
        """These have expired."""
        for record in records:
            if record is not None and record.state.is_final:
                self._tell(
                    Event(
                        name=_name(None, record.state),
                        task_id=record.id,
                        kind=record.kind,
                        queue=record.queue,
                        state=record.state,
                        reason=record.reason,
                        attempt=record.attempts,
                        node_id=record.node_id,
                        at=record.finished_at or to_datetime(self._clock.wall()),
                        tags=record.tags,
                    )
                )

    async def ended(self) -> None:
        """Return when everything was told, or all have had the time for it; nothing more is told then."""
        deliveries = list(self._deliveries.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                for delivery in deliveries:
                    await delivery.idle()
        for delivery in deliveries:
            delivery.close()

    def _of_claim(
        self, name: EventName, claim: Claim, node_id: str, state: State, reason: Reason | None = None
    ) -> Event:
        return Event(
            name=name,
            task_id=claim.id,
            kind=claim.kind,
            queue=claim.queue,
            state=state,
            reason=reason,
            attempt=claim.attempts,
            node_id=node_id,
            at=to_datetime(self._clock.wall()),
            tags=claim.tags,
        )

    def _tell(self, event: Event) -> None:
        for index, subscriber in enumerate(self._subscribers):
            delivery = self._deliveries.get(index)
            if delivery is None:
                delivery = self._deliveries[index] = Delivery(subscriber, self._logger, self._callbacks)
            delivery.add(event)


def _name(outcome: Outcome | None, state: State) -> EventName:
    """What a task came to, and, if that is not its end, how."""
    if state.is_final:
        return state.value  # type: ignore[return-value]  # a final state is a name
    match outcome:
        case Retrying():
            return "retried"
        case Snoozed():
            return "snoozed"
        case None | Crashed():
            return "crashed"
        case _:
            return "handed_back"


def _reason(outcome: Outcome | None, state: State) -> Reason | None:
    match state:
        case State.CANCELLED:
            return Reason.CANCELLED
        case State.FAILED:
            return outcome.reason if isinstance(outcome, Failed) else Reason.CRASHED
        case _:
            return None


class Delivery:
    """One subscriber's line. A coroutine function is awaited on the loop, any other is called on a thread of its own,
    and what it returns is awaited if it can be; one event at a time, so that their order is kept."""

    def __init__(
        self, subscriber: Subscriber, logger: logging.LoggerAdapter[logging.Logger], callbacks: Callbacks
    ) -> None:
        self._subscriber = subscriber
        self._known_as = f"the subscriber {name_of(subscriber)}"
        self._logger = logger
        self._callbacks = callbacks
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        self._is_running = False
        self._is_idle = asyncio.Event()
        self._dropped = 0
        called = getattr(subscriber, "__call__", None)  # noqa: B004  an object whose call is a coroutine
        self._is_coroutine = inspect.iscoroutinefunction(subscriber) or inspect.iscoroutinefunction(called)

    def add(self, event: Event) -> None:
        """Have it told; if too many wait already, it is not."""
        with self._lock:
            if len(self._events) >= MOST_EVENTS:
                self._drop()
                return
            self._events.append(event)
            if self._is_running:
                return
            self._is_running = True
        self._is_idle.clear()
        self._start()

    def _start(self) -> None:
        if self._is_coroutine:
            self._callbacks.begin(self._known_as, self._await_each())
        else:
            self._callbacks.thread_began(self._known_as)
            threading.Thread(target=self._call_each, name="synergon-events", daemon=True).start()

    async def idle(self) -> None:
        """Return when nothing waits to be told."""
        if self._is_running:
            await self._is_idle.wait()

    def close(self) -> None:
        """Tell nothing more."""
        with self._lock:
            self._events.clear()

    def _drop(self) -> None:
        self._dropped += 1
        if self._dropped == 1:
            self._logger.warning("the subscriber %r does not keep up: events are dropped", self._subscriber)

    def _next(self) -> Event | None:
        with self._lock:
            if self._events:
                return self._events.popleft()
            self._is_running = False
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._logger.warning("the subscriber %r has missed %d events", self._subscriber, dropped)
        return None

    async def _await_each(self) -> None:
        while (event := self._next()) is not None:
            try:
                await self._awaited(self._subscriber(event))
            except Exception:  # noqa: BLE001  it is the user's, and changes nothing
                self._log(event)
        self._is_idle.set()

    def _call_each(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._call(event)
            except Exception:  # noqa: BLE001  it is the user's, and changes nothing
                self._log(event)
        try:
            self._loop.call_soon_threadsafe(self._thread_ended)
        except RuntimeError:  # the loop has been closed meanwhile
            return

    def _call(self, event: Event) -> None:
        """On its thread; but what it returns to be awaited belongs to the loop."""
        made = self._subscriber(event)
        if inspect.isawaitable(made):
            with contextlib.suppress(concurrent.futures.CancelledError):  # nothing more is told
                asyncio.run_coroutine_threadsafe(self._begun(made), self._loop).result()

    async def _begun(self, made: Awaitable[Any]) -> None:
        await self._callbacks.begin(self._known_as, self._awaited(made))

    async def _awaited(self, made: Awaitable[Any]) -> None:
        with self._callbacks.limited(self._known_as, LONGEST_SECONDS):
            await awaited(made)

    def _thread_ended(self) -> None:
        self._callbacks.thread_ended(self._known_as)
        if not self._is_running:
            self._is_idle.set()

    def _log(self, event: Event) -> None:
        self._logger.exception(
            "a subscriber raised, or did not end within %g s, when it was told that task %d (%s) was %s",
            LONGEST_SECONDS,
            event.task_id,
            event.kind,
            event.name,
            extra={"task_id": event.task_id, "kind": event.kind},
        )
