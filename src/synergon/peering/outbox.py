"""Outgoing hints: one set per peer, one request in flight per peer.

The first hint goes at once; after it at most one per 10 ms, and what comes meanwhile is merged. A peer that fails is
tried again after a pause that grows; what it was to hear waits, merged, and delays nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from synergon.model.clock import Clock
from synergon.peering.transport import SendError
from synergon.peering.wire import EMPTY, Message, merged

REST_SECONDS: Final = 0.01
FULL_REST_SECONDS: Final = 0.05
"""A peer with no free slot looks again by itself when it has one; it need not hear of each new task."""
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0


class Outbox:
    """What one peer is to hear. It has a task only while there is something to send."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[Message]],
        clock: Clock,
        *,
        on_answer: Callable[[Message, Message], None],
        on_failure: Callable[[Message, int, SendError], None],
    ) -> None:
        self._send = send
        self._clock = clock
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._waiting = EMPTY
        self._sending = EMPTY
        """What is on its way, and nobody knows yet whether it arrives."""
        self._failures = 0
        self._next_at = clock.monotonic()
        self._task: asyncio.Task[None] | None = None

    def add(self, more: Message) -> None:
        """Have it sent. Never blocks and never drops."""
        self._waiting = merged(self._waiting, more)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def sent(self) -> None:
        """Return when nothing waits any more, however long that takes."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def close(self) -> Message:
        """Send nothing more; what the peer may not have heard."""
        if self._task is not None:
            self._task.cancel()
        return merged(self._sending, self._waiting)

    async def _run(self) -> None:
        try:
            while self._waiting is not EMPTY:
                await self._rest()
                self._sending, self._waiting = self._waiting, EMPTY
                await self._send_one(self._sending)
        finally:
            self._task = None

    async def _rest(self) -> None:
        pause = self._next_at - self._clock.monotonic()
        if pause > 0:
            await self._clock.sleep(pause)

    async def _send_one(self, sending: Message) -> None:
        try:
            answer = await self._send(sending)
        except SendError as error:
            self._sending = EMPTY
            self._failures += 1
            self._waiting = merged(sending, self._waiting)
            self._next_at = self._clock.monotonic() + self._pause()
            self._on_failure(self._waiting, self._failures, error)  # all that it has not heard
        else:
            self._sending = EMPTY
            self._failures = 0
            self._next_at = self._clock.monotonic() + (FULL_REST_SECONDS if answer.free == 0 else REST_SECONDS)
            self._on_answer(sending, answer)

    def _pause(self) -> float:
        longest = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 16), LONGEST_PAUSE_SECONDS)
        return longest * (0.5 + self._clock.chance() / 2)
