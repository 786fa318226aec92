"""EventFeed: delivers events of the tasks on this node to subscribers.

An event is delivered after the store has the change, at most once, and to each subscriber in order. A subscriber delays
nothing else: each has its own bounded queue. If the queue is full, events are dropped and counted. Errors of
subscribers are logged. A subscriber that does not end is abandoned like every callback.
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
from synergon.model.events import Event, EventName, ServerEvent, given_fields
from synergon.model.lifecycle import Reason, State
from synergon.model.limits import ServerChange
from synergon.model.outcomes import (
    Crashed,
    Failed,
    FencedOutcome,
    Outcome,
    Refused,
    Retrying,
    ServerFault,
    Snoozed,
    Verdict,
)
from synergon.model.record import to_datetime
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Reaped
from synergon.node.callbacks.callbacks import Callbacks, awaited
from synergon.options.function_names import name_of

CALL_SECONDS: Final = 30.0
"""How many seconds one call of a subscriber may take."""
STOP_SECONDS: Final = 5.0
"""How many seconds subscribers may take when the node stops."""
MAX_EVENTS: Final = 10_000
"""How many events may be queued for one subscriber."""

Subscriber = Callable[[Event], Any]
ServerSubscriber = Callable[[ServerEvent], Any]


class EventFeed:
    """Makes events from what the node does with tasks, and queues them for the subscribers."""

    def __init__(
        self,
        subscribers: Sequence[Subscriber],
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        callbacks: Callbacks,
        server_subscribers: Sequence[ServerSubscriber] = (),
    ) -> None:
        self.subscribers = subscribers
        self._server_subscribers = server_subscribers
        self._clock = clock
        self._logger = logger
        self._callbacks = callbacks
        self._deliveries: dict[tuple[str, int], Delivery] = {}
        self.open: dict[tuple[int, int], tuple[Claim, str]] = {}
        """The claims of running attempts, each with the id of its node, until their outcome is published."""

    def started(self, claims: Iterable[Claim], node_id: str) -> None:
        """Publish that these tasks were started."""
        for claim in claims:
            self.open[claim.id, claim.claim_no] = claim, node_id
            self._publish(self._of_claim("started", claim, node_id, State.RUNNING))

    def finished(self, fenced: FencedOutcome, verdict: Verdict) -> None:
        """Publish an outcome that the store has accepted. A stale outcome is not published."""
        claim, node_id = self.open.pop((fenced.id, fenced.claim_no), (None, ""))
        if claim is None or verdict.state is None:
            return
        outcome, state = fenced.outcome, State(verdict.state)
        self._publish(self._of_claim(_name(outcome, state), claim, node_id, state, _reason(outcome, state)))

    def reaped(self, tasks: Iterable[Reaped]) -> None:
        """Publish that these tasks were taken from a dead node."""
        for task in tasks:
            self._publish(
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

    def expired(self, records: Iterable[TaskRecord | None]) -> None:
        """Publish that these tasks have expired."""
        for record in records:
            if record is not None and record.state.is_final:
                self._publish(
                    Event(
                        name=_name(None, record.state),
                        task_id=record.id,
                        **given_fields(record),
                        state=record.state,
                        reason=record.reason,
                        attempt=record.attempts,
                        node_id=record.node_id,
                        at=record.finished_at or to_datetime(self._clock.wall()),
                    )
                )

    def server_changed(self, change: ServerChange, node_id: str) -> None:
        """Publish that a server was taken out of service, or is back."""
        event = ServerEvent(
            name="server_out" if change.is_out else "server_back",
            provider=change.provider,
            address=change.address,
            reason=change.reason,
            until=change.until,
            node_id=node_id,
            at=to_datetime(self._clock.wall()),
        )
        self._deliver(event, "servers", self._server_subscribers)

    async def wait_ended(self) -> None:
        """Return when all events are delivered, or after STOP_SECONDS. Events that are not delivered then are
        dropped."""
        deliveries = list(self._deliveries.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                for delivery in deliveries:
                    await delivery.wait_idle()
        for delivery in deliveries:
            delivery.close()

    def _of_claim(
        self, name: EventName, claim: Claim, node_id: str, state: State, reason: Reason | None = None
    ) -> Event:
        return Event(
            name=name,
            task_id=claim.id,
            **given_fields(claim),
            state=state,
            reason=reason,
            attempt=claim.attempts,
            node_id=node_id,
            at=to_datetime(self._clock.wall()),
        )

    def _publish(self, event: Event) -> None:
        self._deliver(event, "tasks", self.subscribers)

    def _deliver(self, event: Event | ServerEvent, about: str, subscribers: Sequence[Callable[[Any], Any]]) -> None:
        for index, subscriber in enumerate(subscribers):
            delivery = self._deliveries.get((about, index))
            if delivery is None:
                delivery = self._deliveries[about, index] = Delivery(subscriber, self._logger, self._callbacks)
            delivery.add(event)


def _name(outcome: Outcome | None, state: State) -> EventName:
    """The name of the event: the final state of the task, or how the attempt ended if the task is not final."""
    if state.is_final:
        return state.value  # type: ignore[return-value]  # a final state is a name
    match outcome:
        case Retrying():
            return "retried"
        case Snoozed():
            return "snoozed"
        case None | Crashed():
            return "crashed"
        case ServerFault():
            return "server_failed"
        case _:
            return "handed_back"


def _reason(outcome: Outcome | None, state: State) -> Reason | None:
    match state:
        case State.CANCELLED:
            return Reason.CANCELLED
        case State.FAILED:
            if isinstance(outcome, Failed):
                return outcome.reason
            return Reason.ERROR if isinstance(outcome, Refused) else Reason.CRASHED
        case _:
            return None


class Delivery:
    """The queue of one subscriber. Events are delivered one at a time, which keeps their order. A coroutine function is
    awaited on the event loop; any other function is called on a thread, and an awaitable that it returns is awaited."""

    def __init__(
        self, subscriber: Callable[[Any], Any], logger: logging.LoggerAdapter[logging.Logger], callbacks: Callbacks
    ) -> None:
        self._subscriber = subscriber
        self._name = f"the subscriber {name_of(subscriber)}"
        self._logger = logger
        self._callbacks = callbacks
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event | ServerEvent] = deque()
        self._lock = threading.Lock()
        self._is_running = False
        self._is_idle = asyncio.Event()
        self._dropped = 0
        called = getattr(subscriber, "__call__", None)  # noqa: B004  an object with an async __call__
        self._is_coroutine = inspect.iscoroutinefunction(subscriber) or inspect.iscoroutinefunction(called)

    def add(self, event: Event | ServerEvent) -> None:
        """Queue an event. Drops it if the queue is full."""
        with self._lock:
            if len(self._events) >= MAX_EVENTS:
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
            self._callbacks.start(self._name, self._await_each())
        else:
            self._callbacks.thread_started(self._name)
            threading.Thread(target=self._call_each, name="synergon-events", daemon=True).start()

    async def wait_idle(self) -> None:
        """Return when the queue is empty and no call is running."""
        if self._is_running:
            await self._is_idle.wait()

    def close(self) -> None:
        """Drop the queued events."""
        with self._lock:
            self._events.clear()

    def _drop(self) -> None:
        self._dropped += 1
        if self._dropped == 1:
            self._logger.warning(
                "%s is too slow: %d events are queued, and further ones are dropped", self._name, MAX_EVENTS
            )

    def _next(self) -> Event | ServerEvent | None:
        with self._lock:
            if self._events:
                return self._events.popleft()
            self._is_running = False
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._logger.warning("%s has missed %d events", self._name, dropped)
        return None

    async def _await_each(self) -> None:
        while (event := self._next()) is not None:
            try:
                await self._await_limited(self._subscriber(event))
            except Exception:  # noqa: BLE001  an error of a subscriber must not affect the node
                self._log(event)
        self._is_idle.set()

    def _call_each(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._call(event)
            except Exception:  # noqa: BLE001  an error of a subscriber must not affect the node
                self._log(event)
        try:
            self._loop.call_soon_threadsafe(self._thread_ended)
        except RuntimeError:  # the loop was closed meanwhile
            return

    def _call(self, event: Event | ServerEvent) -> None:
        """Call the subscriber on this thread. If it returns an awaitable, await that on the event loop."""
        value = self._subscriber(event)
        if inspect.isawaitable(value):
            with contextlib.suppress(concurrent.futures.CancelledError):  # the node stops
                asyncio.run_coroutine_threadsafe(self._await_as_callback(value), self._loop).result()

    async def _await_as_callback(self, value: Awaitable[Any]) -> None:
        await self._callbacks.start(self._name, self._await_limited(value))

    async def _await_limited(self, value: Awaitable[Any]) -> None:
        with self._callbacks.limited(self._name, CALL_SECONDS):
            await awaited(value)

    def _thread_ended(self) -> None:
        self._callbacks.thread_ended(self._name)
        if not self._is_running:
            self._is_idle.set()

    def _log(self, event: Event | ServerEvent) -> None:
        if isinstance(event, Event):
            subject, extra = f"task {event.task_id} ({event.kind})", {"task_id": event.task_id, "kind": event.kind}
        else:
            subject, extra = f"server {event.address}", {"server": event.address, "provider": event.provider}
        self._logger.exception(
            "%s raised, or did not end within %g s, for the event %s of %s",
            self._name,
            CALL_SECONDS,
            event.name,
            subject,
            extra=extra,
        )
