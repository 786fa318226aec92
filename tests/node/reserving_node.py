"""A node that is half full, for tests of capacity that is reserved for a task which does not fit."""

from __future__ import annotations

from typing import Any

from tests.node.counted_functions import node_of
from tests.support import Gate, until

from synergon import Engine, Handle, Resources


class HalfFull:
    """A node of eight processors, of which one task uses four until it is let go."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.gate = gate = Gate()

        @engine.task(cost=Resources(cpu=4), timeout=60)
        async def hold() -> None:
            await gate.hold()

        self._hold = hold

    async def begin(self, big: Any, *arguments: Any) -> Handle[Any]:
        """A task that needs all of them, as soon as capacity is reserved for it."""
        await self._hold.enqueue()
        await self.gate.until_reached()
        handle: Handle[Any] = await big.enqueue(*arguments)
        await until(lambda: node_of(self._engine).reservation.reserved is not None)
        return handle
