"""The follower: reads the final events of all nodes as they are stored.

A stream returns every event after its cursor once. It reads when the node or a peer announces an end, and from time to
time for ends that were not announced. While the store is unavailable, the stream waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergon.errors import NotConnected, StoreUnavailable
from synergon.model.events import Event
from synergon.node.duties.sweep import GROWTH, LONGEST_SECONDS, SHORTEST_SECONDS
from synergon.node.duty import pause_after
from synergon.stores.base import FinalEvents

if TYPE_CHECKING:
    from synergon.client.connection import Connection

PAGE: Final = 500
LEAST_SECONDS: Final = 0.02
"""The minimum time between two reads, so that events in quick succession are read together."""
ASK_SECONDS: Final = 30.0
"""How often, in seconds, peers are asked again to announce ends."""


class Follower:
    """A stream of final events."""

    def __init__(
        self,
        connection: Connection,
        logger: logging.Logger,
        *,
        sweep_seconds: float | None,
    ) -> None:
        self.wake_up: Final = asyncio.Event()
        """Set when any task may have ended."""
        self._loop = asyncio.get_running_loop()
        self._logger = logger
        self._sweep_seconds = sweep_seconds
        self._connection = connection
        self._waiters = connection.waiters
        self._pause = SHORTEST_SECONDS
        self._full_read_at = float("-inf")
        self._asked_at = float("-inf")

    async def follow(
        self, reading: FinalEvents, kinds: Collection[str] | None, mark: str
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of `reading` for ever, with cursors that begin with `mark`. Events whose kind is not in
        `kinds` are skipped."""
        missed_an_announcement = False
        self._renew_request()
        while True:
            if self._waiters.is_closed:
                raise NotConnected("the engine was closed while a caller followed its events")
            was_told = self.wake_up.is_set()
            self.wake_up.clear()
            self._full_read_at = self._loop.time()
            page = await self._read(reading)
            for event in page:
                if kinds is None or event.kind in kinds:
                    yield replace(event, cursor=f"{mark}.{event.cursor}")
            missed_an_announcement = missed_an_announcement or (bool(page) and not was_told)
            if not page:
                await self._sleep(missed_an_announcement=missed_an_announcement)
                missed_an_announcement = False

    def _renew_request(self) -> None:
        now = self._loop.time()
        if now - self._asked_at >= ASK_SECONDS:
            self._asked_at = now
            self._connection.become_reachable()
            if self._connection.peers is not None:
                self._connection.peers.request_all_ends()

    async def _read(self, reading: FinalEvents) -> list[Event]:
        failures = 0
        while True:
            try:
                return await reading.read(PAGE)
            except StoreUnavailable as error:
                failures += 1
                if failures == 1:
                    self._logger.warning("a stream of events waits for the store: %s", error)
                await asyncio.sleep(pause_after(failures))

    async def _sleep(self, *, missed_an_announcement: bool) -> None:
        """Wait until an end is announced, or until it is time to read events that were not announced."""
        self._renew_request()
        peers = self._connection.peers
        keep_short = missed_an_announcement or peers is None or not peers.is_healthy
        self._pause = SHORTEST_SECONDS if keep_short else min(self._pause * GROWTH, LONGEST_SECONDS)
        try:
            async with asyncio.timeout(self._sweep_seconds or self._pause):
                await self.wake_up.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(self._full_read_at + LEAST_SECONDS - self._loop.time(), 0))
