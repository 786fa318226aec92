"""The outgoing hints for one peer, merged, with at most one request in flight.

The first hint is sent at once. Later ones are sent at most every 10 ms; hints that arrive in between are merged. A
failed request is repeated with exponential back-off. Its hints stay queued, merged with later ones, and delay no other
peer.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from synergon.model.clock import Clock
from synergon.peering.transport import SendError
from synergon.peering.wire import EMPTY, Message, merged

MIN_INTERVAL_SECONDS: Final = 0.01
FULL_INTERVAL_SECONDS: Final = 0.05
"""The interval in seconds for a peer without a free slot. The peer claims by itself when a slot becomes free, so hints
to it are not urgent."""
FIRST_RETRY_SECONDS: Final = 0.1
MAX_RETRY_SECONDS: Final = 5.0


class Sender(Protocol):
    """The part of the router that an outbox uses."""

    async def send_now(self, peer_id: str, hints: Message) -> Message:
        """Send the hints, and return the answer. Raises SendError if there is none."""

    def handle_answer(self, peer_id: str, sent: Message, answer: Message) -> None:
        """Called when the peer has received the hints."""

    def handle_failure(self, peer_id: str, unsent: Message, failures: int, error: SendError) -> None:
        """Called when the peer may not have received these hints. `failures` is the number of failures in a row."""


class Outbox:
    """Queues and sends the hints for one peer. An asyncio task runs only while there are hints to send."""

    def __init__(self, sender: Sender, peer_id: str, clock: Clock) -> None:
        self._sender = sender
        self._peer_id = peer_id
        self._clock = clock
        self._queued = EMPTY
        self._in_flight = EMPTY
        """The hints that were sent and not answered yet. They may not have arrived."""
        self._failures = 0
        self._next_at = clock.monotonic()
        self._task: asyncio.Task[None] | None = None

    def add(self, more: Message) -> None:
        """Queue hints. Never blocks and never drops any."""
        self._queued = merged(self._queued, more)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_sent(self) -> None:
        """Wait until the queue is empty, without a limit."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def close(self) -> Message:
        """Stop sending. Returns all hints that the peer may not have received."""
        if self._task is not None:
            self._task.cancel()
        return merged(self._in_flight, self._queued)

    async def _run(self) -> None:
        try:
            while self._queued is not EMPTY:
                await self._wait_interval()
                self._in_flight, self._queued = self._queued, EMPTY
                await self._send_one(self._in_flight)
        finally:
            self._task = None

    async def _wait_interval(self) -> None:
        seconds = self._next_at - self._clock.monotonic()
        if seconds > 0:
            await self._clock.sleep(seconds)

    async def _send_one(self, hints: Message) -> None:
        sent_at = self._clock.monotonic()
        try:
            answer = await self._sender.send_now(self._peer_id, hints)
        except SendError as error:
            self._in_flight = EMPTY
            self._failures += 1
            self._queued = merged(hints, self._queued)
            self._next_at = self._clock.monotonic() + self._retry_seconds()
            self._sender.handle_failure(self._peer_id, self._queued, self._failures, error)
        else:
            self._in_flight = EMPTY
            self._failures = 0
            interval = FULL_INTERVAL_SECONDS if answer.free == 0 else MIN_INTERVAL_SECONDS
            # From the request, not from its answer: in a producer whose event loop rests between calls, the answer is
            # read only when the next hint is about to leave.
            self._next_at = sent_at + interval
            self._sender.handle_answer(self._peer_id, hints, answer)

    def _retry_seconds(self) -> float:
        longest = min(FIRST_RETRY_SECONDS * 2.0 ** min(self._failures - 1, 16), MAX_RETRY_SECONDS)
        return longest * (0.5 + self._clock.chance() / 2)
