"""The router finds peers for work that comes while it looks for some, and its first hint leaves at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from tests.peering.test_directory import node
from tests.support import PATIENCE_SECONDS, Gate

from synergon.client.results import Waiters
from synergon.model.clock import SystemClock
from synergon.model.nodes import NodeRecord
from synergon.peering.directory import Peer
from synergon.peering.router import HintRouter
from synergon.peering.wire import Message, message
from synergon.stores.memory import MemoryStore
from synergon.testing.clock import ManualClock


class Engine:
    """The engine of the test: it reads a node table in which a taker appears with the third read."""

    own_ids = ("me",)

    def __init__(self) -> None:
        self.gate = Gate()
        self.heard: set[str] = set()
        self.is_told = asyncio.Event()
        self._reads = 0

    async def read_nodes(self) -> list[NodeRecord]:
        self._reads += 1
        if self._reads == 1:
            return []
        if self._reads == 2:
            await self.gate.hold()
            return []
        return [node("you", kinds=("first", "second"))]

    async def send(self, peer: Peer, letter: Message) -> Message:
        self.heard.update(letter.new)
        self.is_told.set()
        return message(free=4)

    def prepare(self) -> None:
        """There is nothing to load."""

    def handle_done(self, ids: Collection[int]) -> None:
        """Nobody waits."""


async def test_work_that_comes_while_the_table_is_read_is_offered_to_who_is_in_it_later() -> None:
    engine, clock = Engine(), SystemClock()
    waiters = Waiters(MemoryStore(), clock, sweep_seconds=60)
    post = HintRouter(engine, waiters, ("http://",), clock, logging.getLogger("tests.post"), refresh_seconds=60)
    await post.refresh()
    post.route_new({("first", None, ""): 1})
    await engine.gate.until_reached()
    post.route_new({("second", None, ""): 1})
    engine.gate.open()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await engine.is_told.wait()
    assert engine.heard == {"second"}
    await post.close(1)


class Peered(Engine):
    """Knows one peer from the first read on. From the second read on, which waits for the gate, it knows two."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = Gate()
        self.sent: list[tuple[str, str]] = []

    async def read_nodes(self) -> list[NodeRecord]:
        self._reads += 1
        if self._reads == 1:
            return [node("you", kinds=("first", "second"))]
        await self.gate.hold()
        return [node("you", kinds=("first", "second")), node("they", kinds=("first", "second"))]

    async def send(self, peer: Peer, letter: Message) -> Message:
        self.sent += [(peer.id, kind) for kind in letter.new]
        self.is_told.set()
        await self.answers.hold()
        return message(free=4)


def router_of(engine: Engine, clock: ManualClock) -> HintRouter:
    waiters = Waiters(MemoryStore(), clock, sweep_seconds=60)
    return HintRouter(engine, waiters, ("http://",), clock, logging.getLogger("tests.post"), refresh_seconds=60)


async def test_a_hint_leaves_at_once_though_the_answer_to_the_last_one_was_read_late() -> None:
    """The event loop of a producer may rest between two calls: nothing reads the answer meanwhile."""
    engine, clock = Peered(), ManualClock()
    router = router_of(engine, clock)
    await router.refresh()
    clock.advance(1)
    assert router.route_new({("first", None, ""): 1})
    await asyncio.sleep(0)
    clock.advance(1)
    engine.answers.open()
    await router._outboxes["you"].wait_sent()
    assert router.route_new({("second", None, ""): 1})
    await asyncio.sleep(0)
    assert engine.sent == [("you", "first"), ("you", "second")]
    await router.close(1)


async def test_a_hint_leaves_at_once_though_the_directory_is_old() -> None:
    engine, clock = Peered(), ManualClock()
    engine.answers.open()
    router = router_of(engine, clock)
    await router.refresh()
    clock.advance(61)
    assert router.route_new({("first", None, ""): 1})
    await asyncio.sleep(0)
    assert engine.sent == [("you", "first")]
    await engine.gate.until_reached()
    engine.is_told.clear()
    engine.gate.open()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await engine.is_told.wait()
    assert engine.sent == [("you", "first"), ("they", "first")], "a peer that has joined gets it, too"
    await router.close(1)
