"""A clock that advances only when the test moves it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from synergon.model.record import from_datetime, to_datetime
from synergon.options.durations import Duration, microseconds, seconds
from synergon.options.options import check_moment


class ManualClock:
    """The time of a test. Delays, retries and expiry follow this clock, not that of the machine."""

    def __init__(self, now: datetime | None = None) -> None:
        self._start = from_datetime(datetime.now(UTC)) if now is None else check_moment(now, "now")
        self._passed = 0
        self._sleepers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def __repr__(self) -> str:
        return f"<ManualClock {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """The time as the engine and its store see it."""
        return to_datetime(self.wall())

    def advance(self, duration: Duration) -> None:
        """Advance the clock: by seconds, a timedelta, or a text like `"10m"`. The next drain runs tasks that are then
        due."""
        self._passed += microseconds(seconds(duration, "advance"))
        for loop, moved in list(self._sleepers):
            loop.call_soon_threadsafe(moved.set)

    # ------------------------------------------------------------ the port `Clock`

    def monotonic(self) -> float:
        """Seconds by which the test has advanced the clock."""
        return self._passed / 1_000_000

    def wall(self) -> int:
        """Microseconds since 1970."""
        return self._start + self._passed

    async def sleep(self, seconds: float) -> None:
        """Wait until the test has advanced the clock by `seconds`."""
        until = self.monotonic() + seconds
        moved = asyncio.Event()
        sleeper = (asyncio.get_running_loop(), moved)
        self._sleepers.add(sleeper)
        try:
            while self.monotonic() < until:
                await moved.wait()
                moved.clear()
        finally:
            self._sleepers.discard(sleeper)

    def chance(self) -> float:
        """Always 0.5, so that a retry comes exactly after the delay of its policy, without jitter."""
        return 0.5
