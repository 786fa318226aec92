"""The lease on virtual time: a node is out before others may take over."""

from __future__ import annotations

import asyncio
import logging

from tests.simulation.process import HostClock
from tests.simulation.virtual_loop import VirtualLoop

from synergon.node.lease import Lease
from synergon.stores.base import LeaseKeeper


class SilentKeeper:
    """A path to a store that never answers."""

    async def renew(self, node_id: str, lease: int) -> bool:
        await asyncio.Event().wait()
        return True

    async def close(self) -> None:
        """Nothing is open."""


async def _silent_keeper() -> LeaseKeeper:
    return SilentKeeper()


def test_a_node_without_answers_stops_a_sixth_before_the_end_and_has_exited_at_the_end() -> None:
    happened: dict[str, float] = {}
    loop = VirtualLoop()

    async def lose() -> None:
        clock = HostClock(loop)
        lease = Lease(
            _silent_keeper,
            "n",
            30.0,
            clock,
            logging.LoggerAdapter(logging.getLogger("tests.simulation.node")),
            asked_at=clock.monotonic(),
            on_lost=lambda node_id: happened.update(lost=loop.time()),
            is_quiet=lambda: False,
            exit_process=lambda code: happened.update(exited=loop.time()),
        )
        await lease.keep(asyncio.Event())

    loop.run(lose())
    assert happened["lost"] <= 25.0
    assert happened["exited"] <= 30.0


def test_a_lease_counts_from_before_it_was_asked_for() -> None:
    lost: list[float] = []
    loop = VirtualLoop()

    async def lose() -> None:
        clock = HostClock(loop)
        await clock.sleep(20)  # so long did the store take to answer the registration
        lease = Lease(
            _silent_keeper,
            "n",
            30.0,
            clock,
            logging.LoggerAdapter(logging.getLogger("tests.simulation.node")),
            asked_at=0.0,
            on_lost=lambda node_id: lost.append(loop.time()),
            is_quiet=lambda: True,
            exit_process=lambda code: None,
        )
        await lease.keep(asyncio.Event())

    loop.run(lose())
    assert lost[0] <= 25.0
