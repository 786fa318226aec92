"""The depth recorder: writes once a minute how many tasks of each kind and queue are ready, to the statistics.

From these rows, viewers see how the depth of queues has changed, without counting tasks. All nodes share the rows of a
minute: the node that writes last replaces the numbers that another node has written. A minute in which no node runs has
no rows.
"""

from __future__ import annotations

from typing import Final

from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.model.task_statistics import MINUTE, KindNumbers, Numbers
from synergon.stores.base import Store
from synergon.stores.rules.statistics import SECOND, start_of

SOURCE: Final = "depth"
"""The source of these rows. Other rows of the statistics have a random id of an engine as their source."""
SPREAD_SECONDS: Final = 20.0
"""Nodes count at random moments of the first seconds of a minute, so that they do not write at the same time."""


class DepthRecorder:
    """Records how many tasks are ready. Counting costs no more at a million tasks than at 5000 (`Store.counts`)."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def step(self) -> None:
        """Record the depth, then wait for the next minute of the store's clock."""
        now = await self._store.now()
        await self.record(start_of(MINUTE, now))
        seconds = MINUTE - now % (MINUTE * SECOND) / SECOND
        await self._clock.sleep(seconds + SPREAD_SECONDS * self._clock.chance())

    async def record(self, minute: int) -> None:
        """Write the current depth as that of this minute."""
        counts = await self._store.counts()
        # Sorted: nodes that write at the same time lock the rows in one order.
        depths = sorted(
            (kind, queue, number) for (queue, kind, state), number in counts.items() if state is State.READY
        )
        if depths:
            await self._store.append_statistics(
                SOURCE,
                minute,
                [KindNumbers(kind=kind, queue=queue, numbers=Numbers(depth=number)) for kind, queue, number in depths],
            )
