"""The lease on virtual time: a node is out before others may take over."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from tests.simulation.process import HostClock
from tests.simulation.virtual_loop import VirtualLoop

from synergon.model.node_status import HintStatus, NodeStatus
from synergon.node.liveness.lease import Lease
from synergon.node.liveness.status import StatusPublisher
from synergon.node.processes.executors import Executor
from synergon.stores.base import LeaseKeeper, Store

LEASE_SECONDS = 30.0


class SilentKeeper:
    """A path to a store that never answers, or only so many questions are in vain."""

    def __init__(self, in_vain: float = math.inf) -> None:
        self._in_vain = in_vain

    async def renew(self, node_id: str, lease: int, published: bytes | None = None) -> bool:
        self._in_vain -= 1
        if self._in_vain >= 0:
            await asyncio.Event().wait()
        return True

    async def close(self) -> None:
        """Nothing is open."""


class HesitantKeeper(SilentKeeper):
    """A path to a store that does not answer every second question."""

    _is_stuck = False

    async def renew(self, node_id: str, lease: int, published: bytes | None = None) -> bool:
        self._is_stuck = not self._is_stuck
        if self._is_stuck:
            await asyncio.Event().wait()
        return True


class UnknownKeeper(SilentKeeper):
    """A path to a store that does not know the node."""

    async def renew(self, node_id: str, lease: int, published: bytes | None = None) -> bool:
        return False


class ListeningKeeper:
    """A path to a store that notes what the node says of itself, and when."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bool]] = []

    async def renew(self, node_id: str, lease: int, published: bytes | None = None) -> bool:
        self.heard.append((round(asyncio.get_running_loop().time()), published is not None))
        return True

    async def close(self) -> None:
        """Nothing is open."""


class EmptyStatus(StatusPublisher):
    """Publishes that there is nothing to say."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._hint_status = HintStatus
        self.latest = b"{}"
        self.version = 0

    def current(self) -> NodeStatus:
        return NodeStatus()


class Fate:
    """What a lease did to its node, and when. It is the lease's owner, its store and its executor."""

    def __init__(
        self,
        story: Callable[[Lease, HostClock], Awaitable[None]],
        *,
        has_bodies: bool,
        keeper: LeaseKeeper | None = None,
        status: Callable[[], StatusPublisher] | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._lease_seconds = lease_seconds
        self._status = status
        self._keeper = keeper or SilentKeeper()
        self.lost_at: float | None = None
        self.exited_at: float | None = None
        self._loop = VirtualLoop()
        self._has_bodies = has_bodies
        self._loop.run(self._live(story))

    async def _live(self, story: Callable[[Lease, HostClock], Awaitable[None]]) -> None:
        clock = HostClock(self._loop)
        lease = Lease(
            self,
            cast("Store", self),
            cast("Executor", self),
            "n",
            self._lease_seconds,
            clock,
            logging.LoggerAdapter(logging.getLogger("tests.simulation.node")),
            asked_at=clock.monotonic(),
            status=None if self._status is None else self._status(),
        )
        await story(lease, clock)

    async def keeper(self) -> LeaseKeeper:
        return self._keeper

    def lease_lost(self, node_id: str) -> None:
        self.lost_at = self._loop.time()

    def is_idle(self, node_id: str) -> bool:
        return not self._has_bodies

    def is_deserted(self) -> bool:
        return False

    def exit_process(self, code: int) -> None:
        self.exited_at = self._loop.time()


def test_a_node_without_answers_stops_a_sixth_before_the_end_and_has_exited_at_the_end() -> None:
    async def keep(lease: Lease, clock: HostClock) -> None:
        await lease.run(asyncio.Event())

    fate = Fate(keep, has_bodies=True)
    assert (fate.lost_at, fate.exited_at) == (25.0, 30.0)


@pytest.mark.parametrize(
    ("lease_seconds", "lost_at"), [(0.5, 1 / 3), (1, 2 / 3), (2, 4 / 3), (3, 2), (4, 3), (6, 5), (12, 10)]
)
def test_a_thread_never_outlives_a_short_lease(lease_seconds: float, lost_at: float) -> None:
    async def keep(lease: Lease, clock: HostClock) -> None:
        await lease.run(asyncio.Event())

    fate = Fate(keep, has_bodies=True, lease_seconds=lease_seconds)
    assert fate.lost_at == pytest.approx(lost_at)
    assert fate.exited_at == pytest.approx(lease_seconds)


@pytest.mark.parametrize("lease_seconds", [0.5, 3, 30])
def test_a_short_lease_is_renewed_though_every_second_try_is_stuck(lease_seconds: float) -> None:
    async def keep_some_leases(lease: Lease, clock: HostClock) -> None:
        end = asyncio.Event()
        asyncio.get_running_loop().call_later(10 * lease_seconds, end.set)
        await lease.run(end)

    fate = Fate(keep_some_leases, has_bodies=True, keeper=HesitantKeeper(), lease_seconds=lease_seconds)
    assert fate.lost_at is None


def test_a_node_that_others_have_declared_dead_exits_after_a_second() -> None:
    async def keep(lease: Lease, clock: HostClock) -> None:
        await lease.run(asyncio.Event())

    fate = Fate(keep, has_bodies=True, keeper=UnknownKeeper())
    assert (fate.lost_at, fate.exited_at) == (0.0, 1.0)


@pytest.mark.parametrize("in_vain", [1, 2])
def test_a_try_that_is_stuck_leaves_time_for_another_one(in_vain: int) -> None:
    async def keep_a_minute(lease: Lease, clock: HostClock) -> None:
        end = asyncio.Event()
        asyncio.get_running_loop().call_later(60, end.set)
        await lease.run(end)

    assert Fate(keep_a_minute, has_bodies=True, keeper=SilentKeeper(in_vain)).lost_at is None


def test_a_lease_counts_from_before_it_was_asked_for() -> None:
    async def keep_late(lease: Lease, clock: HostClock) -> None:
        await clock.sleep(20)  # so long did the store take to answer the registration
        await lease.run(asyncio.Event())

    assert Fate(keep_late, has_bodies=False).lost_at == 25.0


def test_a_lease_is_over_before_anybody_has_noticed() -> None:
    seen: list[tuple[bool, bool]] = []

    async def stand_still(lease: Lease, clock: HostClock) -> None:
        await clock.sleep(29)
        seen.append((lease.is_over, lease.is_lost))
        await clock.sleep(1)
        seen.append((lease.is_over, lease.is_lost))

    Fate(stand_still, has_bodies=False)
    assert seen == [(False, False), (True, False)]


def words_of_half_a_minute(loop: asyncio.AbstractEventLoop | None) -> list[tuple[int, bool]]:
    """At which beats a node published something whose bodies run in this loop; None: in one that nothing holds up. It
    says something at 12 seconds that nobody has asked for then."""
    keeper = ListeningKeeper()

    def publisher() -> StatusPublisher:
        here = asyncio.get_running_loop()
        status = EmptyStatus(loop or here)
        status.update()  # with the node's row
        here.call_later(12, status.update)
        return status

    async def keep(lease: Lease, clock: HostClock) -> None:
        end = asyncio.Event()
        asyncio.get_running_loop().call_later(27, end.set)
        await lease.run(end)

    Fate(keep, has_bodies=False, keeper=keeper, status=publisher)
    return keeper.heard


def test_what_a_node_says_is_published_with_every_beat() -> None:
    assert [is_published for _, is_published in words_of_half_a_minute(None)] == [True] * 6


def test_while_its_loop_is_held_up_its_last_word_is_not_published_as_a_new_one() -> None:
    held_up = asyncio.new_event_loop()  # which nobody runs
    try:
        heard = words_of_half_a_minute(held_up)
    finally:
        held_up.close()
    assert [is_published for _, is_published in heard] == [False, False, False, True, False, False]
