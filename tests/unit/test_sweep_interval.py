"""How often a node looks for what nobody told it about."""

from __future__ import annotations

import asyncio

from tests.support import PATIENCE_SECONDS

from synergon.model.clock import SystemClock
from synergon.node.duties.sweep import SweepInterval


async def test_what_is_said_during_a_look_is_a_reason_for_another_one() -> None:
    pace = SweepInterval(3600, SystemClock())
    async with asyncio.timeout(PATIENCE_SECONDS):
        pace.sweep_now()
        await pace.wait()
        pace.sweep_now()  # while the node still looks
        await pace.wait()
    try:
        async with asyncio.timeout(0.01):
            await pace.wait()
    except TimeoutError:
        return
    raise AssertionError("there was no reason for a third")
