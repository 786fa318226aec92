"""Writes statistics: the numbers that the metrics have counted go to the store, at the interval of the heartbeat, if
they have changed.

Each minute of the store's clock has one row for each kind and queue. Every write replaces the rows of its minute, so a
write whose answer was lost can be repeated without harm: it goes to its own minute again before the next minute begins.
If the process dies, the counts since the last write are missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Final

from msgspec.structs import replace

from synergon.errors import PermissionDenied, StoreError
from synergon.model.clock import Clock
from synergon.model.task_statistics import MINUTE, ErrorCount, KindNumbers, Numbers
from synergon.node.metrics import KindAndQueue, Metrics, Tally
from synergon.stores.base import Store
from synergon.stores.rules.statistics import SECOND, start_of

OLDEST: Final = 30 * MINUTE * SECOND
"""After how many microseconds without a successful write a new minute begins: the old one may soon be merged with
others."""
CLOSE_SECONDS: Final = 2.0
"""How many seconds the last write of an engine may take."""


class StatisticsWriter:
    """Writes the numbers of one engine and its node."""

    def __init__(self, store: Store, clock: Clock, beat_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._beat_seconds = beat_seconds
        self.metrics: Metrics = Metrics()
        self._source = secrets.token_hex(8)
        self._minute: int | None = None
        """The minute of the last write, successful or not."""
        self._is_doubtful = False
        """Whether it is unknown if the last write was stored."""
        self._base: dict[KindAndQueue, Numbers] = {}
        """The numbers at the beginning of the minute."""
        self._written: dict[KindAndQueue, tuple[tuple[int, ...], Numbers]] = {}
        """The versions and numbers of the last successful write."""
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_denied = False

    async def step(self) -> None:
        """Wait for a beat, then write what has changed. Called by a duty of the node."""
        await self._clock.sleep(self._beat_seconds)
        await self.write()

    async def write(self) -> None:
        """Write what has changed since the last write. Does nothing if the database role may not write statistics."""
        async with self._lock:
            changed = self._changed()
            if not changed or self._is_denied:
                return
            await self._begin_minute()
            assert self._minute is not None
            numbers = {name: tally.numbers() for name, (_, tally) in changed.items()}
            self._is_doubtful = True
            await self._store.append_statistics(
                self._source,
                self._minute,
                [
                    KindNumbers(kind=kind, queue=queue, numbers=found.without(self._base.get((kind, queue), NOTHING)))
                    for (kind, queue), found in numbers.items()
                ],
            )
            self._is_doubtful = False
            self._written.update((name, (changed[name][0], found)) for name, found in numbers.items())

    def _changed(self) -> dict[KindAndQueue, tuple[tuple[int, ...], Tally]]:
        versions = ((name, tally.version, tally) for name, tally in self.metrics.tallies.items())
        return {
            name: (version, tally)
            for name, version, tally in versions
            if name not in self._written or self._written[name][0] != version
        }

    async def _begin_minute(self) -> None:
        now = await self._store.now()
        minute = start_of(MINUTE, now)
        if minute == self._minute or (self._is_doubtful and self._minute is not None and now - self._minute < OLDEST):
            return
        self._minute = minute
        for name, (version, numbers) in self._written.items():
            tally = self.metrics.tallies[name]
            tally.errors = _later_errors(tally.errors, numbers.errors)
            self._base[name] = replace(numbers, errors={})
            self._written[name] = (version, self._base[name])

    # ------------------------------------------------------------ an engine without a node

    def write_later(self) -> None:
        """Schedule a write after a beat, unless one is scheduled. For an engine without a node."""
        if self._timer is None and not self._is_denied:
            self._timer = asyncio.get_running_loop().call_later(self._beat_seconds, self._start)

    def _start(self) -> None:
        self._timer = None
        self._writing = asyncio.get_running_loop().create_task(self._write_alone(), name="synergon-statistics")

    async def _write_alone(self) -> None:
        try:
            await self.write()
        except PermissionDenied as error:
            self._is_denied = True
            logging.getLogger("synergon").warning(
                "this database role may not write statistics, so what it enqueues is not in them: %s", error
            )
        except StoreError:  # the next write has it
            self.write_later()

    async def close(self) -> None:
        """Write for the last time. A store that does not answer delays the end by at most CLOSE_SECONDS."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._writing is not None:
                    await asyncio.wait([self._writing])
                await self.write()


NOTHING: Final = Numbers()


def _later_errors(current: dict[str, ErrorCount], written: dict[str, ErrorCount]) -> dict[str, ErrorCount]:
    """The errors that were counted after the last write."""
    found: dict[str, ErrorCount] = {}
    for key, error in current.items():
        before = written.get(key)
        number = error.count - (0 if before is None else before.count)
        if number > 0:
            found[key] = ErrorCount(type=error.type, message=error.message, count=number)
    return found
