"""Who blocks the event loop is named, and who stood still together with the whole process is not."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import pytest

from synergon.model.clock import SystemClock
from synergon.node.liveness.watchdog import PATIENCE_SECONDS, Watchdog

MAX_ROUNDS: Final = 4


class BusyClock(SystemClock):
    """Its sleeps take as long as they are told to, and give nobody a turn: the loop does not answer meanwhile."""

    def __init__(self, end: asyncio.Event, slowness: float = 1.0) -> None:
        self._end = end
        self._slowness = slowness
        self._sleeps = 0
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self._now += seconds * self._slowness
        self._sleeps += 1
        if self._sleeps == MAX_ROUNDS:
            self._end.set()


@pytest.mark.parametrize(("slowness", "complaints"), [(1.0, 1), (20.0, 0)], ids=["a blocked loop", "a process at rest"])
async def test_a_blocked_loop_is_logged_once_and_a_suspended_process_never(
    slowness: float, complaints: int, caplog: pytest.LogCaptureFixture
) -> None:
    end = asyncio.Event()
    logger = logging.LoggerAdapter(logging.getLogger("synergon"))
    watchdog = Watchdog(asyncio.get_running_loop(), BusyClock(end, slowness), logger, running={})

    with caplog.at_level(logging.WARNING, logger="synergon"):
        await watchdog.watch(end)

    said = [
        text for text in caplog.messages if "code outside of tasks has blocked the event loop for more than 1 s" in text
    ]
    assert len(said) == complaints
    assert MAX_ROUNDS / 2 > PATIENCE_SECONDS, "there was time enough to complain"
