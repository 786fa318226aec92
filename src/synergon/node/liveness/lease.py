"""The heartbeat, and what happens when it stops.

Promise: as long as this node may act, its row in the store says so; and it stops acting *before* others may take over.
The lease is renewed every sixth of its length on a path that user code cannot hold up. A node that could not renew
until a sixth of the lease is left is fenced: it claims nothing, its bodies are asked to end, its child processes are
killed. Bodies that have not ended when the lease is over take the process with them.

A node that is told to stop has its row say so with the next renewal, which follows at once, and with every one after
that until one has reached the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Final

from synergon.errors import StoreError
from synergon.model.clock import Clock
from synergon.model.nodes import HEARTBEATS_PER_LEASE
from synergon.node.liveness.status_publisher import StatusPublisher
from synergon.options.durations import microseconds
from synergon.stores.base import LeaseKeeper

TRY_BEATS: Final = 2
"""How long one try may take: a single stuck connection does not use up the patience for all of them."""
ASK_SECONDS: Final = 0.01
"""So often it is looked whether the loop has said how things are."""
ASK_PART: Final = 50
"""It may take this part of a beat; if it takes longer, its last word stands, and grows older for all to see."""
LEAST_END_SECONDS: Final = 1.0
"""A process that was stopped past its lease finds it over when it goes on; its bodies still get this long."""

EXIT_CODE: Final = 75
"""EX_TEMPFAIL: start me again."""


class Lease:
    """Keeps one node's lease. Runs beside the node, on a thread of its own."""

    def __init__(
        self,
        open_keeper: Callable[[], Awaitable[LeaseKeeper]],
        node_id: str,
        seconds: float,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        *,
        asked_at: float,
        on_lost: Callable[[str], None],
        is_quiet: Callable[[], bool],
        exit_process: Callable[[int], None],
        board: StatusPublisher | None = None,
    ) -> None:
        self._open_keeper = open_keeper
        self._node_id = node_id
        self._seconds = seconds
        self._clock = clock
        self._logger = logger
        self._on_lost = on_lost
        self._is_quiet = is_quiet
        self._exit_process = exit_process
        self._board = board
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_wanted = asyncio.Event()
        self._read = 0 if board is None else board.written
        """Which word of the board the store has; the first one came with the node's row."""
        self._asked_at = asked_at
        self._valid_until = asked_at + seconds
        self.is_lost = False
        self._is_stopping = False
        self.stop_announced: Future[None] = Future()
        """Done when the row says that the node stops; any thread may wait for it."""

    @property
    def beat_seconds(self) -> float:
        """How often the lease is renewed."""
        return self._seconds / HEARTBEATS_PER_LEASE

    @property
    def is_over(self) -> bool:
        """Whether others may have taken over; true before the loop has found out, if the process stood still."""
        return self.is_lost or self._clock.monotonic() >= self._valid_until

    async def keep(self, end: asyncio.Event) -> None:
        """Renew until told to end; then, or when the lease is lost, return."""
        keeper = await self._open_keeper()
        self._loop = asyncio.get_running_loop()
        ending = self._loop.create_task(self._rest_no_more(end))
        try:
            while not end.is_set():
                if not await self._renew(keeper):
                    await self._lose(end)
                    return
                await self._rest()
        finally:
            ending.cancel()
            await keeper.close()

    def renew_soon(self) -> None:
        """There is something to publish that should not wait for the next beat; from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._is_wanted.set)

    def announce_stop(self) -> None:
        """Have the row say that the node stops; from any thread, and from a signal handler."""
        self._is_stopping = True
        self.renew_soon()

    async def _rest_no_more(self, end: asyncio.Event) -> None:
        await end.wait()
        self._is_wanted.set()

    async def _rest(self) -> None:
        now = self._clock.monotonic()
        next_beat = min(self._asked_at + self.beat_seconds, self._valid_until - self.beat_seconds)
        pause = max(next_beat - now, 0.01)
        try:
            async with asyncio.timeout(pause):
                await self._is_wanted.wait()
        except TimeoutError:
            return
        finally:
            self._is_wanted.clear()

    async def _renew(self, keeper: LeaseKeeper) -> bool:
        """False: the lease is lost, or so nearly over that it must be treated so."""
        published = await self._published()
        self._asked_at = asked_at = self._clock.monotonic()
        patience = self._valid_until - self.beat_seconds - asked_at
        if patience <= 0:  # a longer wait would be at the cost of the bodies that have to end before the lease does
            return False
        is_stopping = self._is_stopping
        try:
            async with asyncio.timeout(min(patience, TRY_BEATS * self.beat_seconds)):
                is_known = await keeper.renew(
                    self._node_id, microseconds(self._seconds), published, is_stopping=is_stopping
                )
        except (StoreError, TimeoutError) as error:
            self._logger.warning("the lease could not be renewed: %s", str(error) or "the store did not answer")
            return self._clock.monotonic() < self._valid_until - self.beat_seconds
        if not is_known:
            return False
        if is_stopping and not self.stop_announced.done():
            self.stop_announced.set_result(None)
        # Counted from before the question: the store cannot have counted from earlier.
        self._valid_until = asked_at + self._seconds
        return self._clock.monotonic() < self._valid_until

    async def _published(self) -> bytes | None:
        """What the node says of itself, as new as it can be had without waiting long for the loop; None: it has said
        nothing since the last beat. The store notes when it was told, so an old word must not be told again."""
        board = self._board
        if board is None:
            return None
        board.ask()
        patience_ends = self._clock.monotonic() + self.beat_seconds / ASK_PART
        await self._clock.sleep(ASK_SECONDS)
        while board.written == self._read and self._clock.monotonic() < patience_ends:
            await self._clock.sleep(ASK_SECONDS)
        if board.written == self._read:
            return None
        self._read = board.written
        return board.latest

    async def _lose(self, end: asyncio.Event) -> None:
        self.is_lost = True
        self._on_lost(self._node_id)
        exit_at = max(self._valid_until, self._clock.monotonic() + LEAST_END_SECONDS)
        while self._clock.monotonic() < exit_at and not end.is_set():
            if self._is_quiet():
                return
            await self._clock.sleep(min(0.02, exit_at - self._clock.monotonic()))
        if not self._is_quiet() and not end.is_set():
            self._logger.critical("a body would not end before the lease was over; this process exits")
            self._exit_process(EXIT_CODE)
