"""The router reaches peers that join while it sends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection

import pytest
from tests.peering.test_directory import node
from tests.support import PATIENCE_SECONDS, Gate

from synergon.client.results import Waiters
from synergon.model.clock import SystemClock
from synergon.model.nodes import NodeRecord
from synergon.peering.directory import Peer
from synergon.peering.router import HintRouter
from synergon.peering.wire import EMPTY, Message, merged, message
from synergon.stores.memory import MemoryStore


class Engine:
    """Reads a node table that the test writes, and notes what is sent."""

    own_ids = ("me",)

    def __init__(self) -> None:
        self.nodes: list[NodeRecord] = []
        self.gate: Gate | None = None
        """Holds back the rows of the next read."""
        self.sent = EMPTY
        self._has_sent = asyncio.Event()

    async def read_nodes(self) -> list[NodeRecord]:
        nodes, gate = list(self.nodes), self.gate
        self.gate = None
        if gate is not None:
            await gate.hold()
        return nodes

    async def send(self, peer: Peer, hints: Message) -> Message:
        self.sent = merged(self.sent, hints)
        self._has_sent.set()
        return message(free=4)

    async def wait_sent(self) -> Message:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._has_sent.wait()
        return self.sent

    def prepare(self) -> None:
        """There is nothing to load."""

    def handle_done(self, ids: Collection[int]) -> None:
        """Nobody waits."""


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def router(engine: Engine) -> AsyncIterator[HintRouter]:
    """A router whose directory was read just now, when there was no node."""
    clock = SystemClock()
    waiters = Waiters(MemoryStore(), clock, sweep_seconds=60)
    router = HintRouter(engine, waiters, ("http://",), clock, logging.getLogger("tests.router"), refresh_seconds=60)
    await router.refresh()
    yield router
    await router.close(1)


async def test_work_that_comes_during_a_read_is_offered_to_a_peer_of_the_next_read(
    engine: Engine, router: HintRouter
) -> None:
    engine.gate = gate = Gate()
    router.route_new({("first", None, ""): 1})
    await gate.until_reached()
    engine.nodes = [node("you", kinds=("first", "second"))]
    router.route_new({("second", None, ""): 1})
    gate.open()
    assert set((await engine.wait_sent()).new) == {"second"}


async def test_a_peer_that_has_joined_since_the_last_read_sets_its_alarm(engine: Engine, router: HintRouter) -> None:
    engine.nodes = [node("you", kinds=("report",))]
    router.route_scheduled(["report"])
    assert (await engine.wait_sent()).due


async def test_a_peer_that_has_joined_since_the_last_read_receives_hints_to_all(
    engine: Engine, router: HintRouter
) -> None:
    engine.nodes = [node("you", kinds=("report",))]
    router.send_to_all(message(control=True))
    assert (await engine.wait_sent()).control


async def test_hints_that_are_sent_during_a_read_reach_a_peer_that_only_the_next_read_shows(
    engine: Engine, router: HintRouter
) -> None:
    engine.gate = gate = Gate()
    router.refresh_soon()
    await gate.until_reached()
    engine.nodes = [node("you", kinds=("report",))]
    router.route_scheduled(["report"])
    await router.wait_routed(PATIENCE_SECONDS)
    gate.open()
    assert (await engine.wait_sent()).due


async def test_rows_of_an_overtaken_read_do_not_replace_newer_ones(engine: Engine, router: HintRouter) -> None:
    engine.gate = gate = Gate()
    overtaken = asyncio.ensure_future(router.refresh())
    await gate.until_reached()
    engine.nodes = [node("you", kinds=("report",))]
    await router.refresh()
    gate.open()
    await overtaken
    assert [peer.id for peer in router.directory] == ["you"]
