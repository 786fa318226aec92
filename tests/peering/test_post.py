"""The post finds takers for new work also when that comes while it looks for some."""

from __future__ import annotations

import asyncio
import logging

from tests.peering.test_directory import node
from tests.support import PATIENCE_SECONDS, Gate

from synergon.model.clock import SystemClock
from synergon.model.nodes import NodeRecord
from synergon.peering.directory import Peer
from synergon.peering.router import HintRouter
from synergon.peering.wire import Message, message


async def test_work_that_comes_while_the_table_is_read_is_offered_to_who_is_in_it_later() -> None:
    gate = Gate()
    heard: set[str] = set()
    is_told = asyncio.Event()
    reads = 0

    async def read_nodes() -> list[NodeRecord]:
        nonlocal reads
        reads += 1
        if reads == 1:
            return []
        if reads == 2:
            await gate.hold()
            return []
        return [node("you", kinds=("first", "second"))]

    async def send(_peer: Peer, letter: Message) -> Message:
        heard.update(letter.new)
        is_told.set()
        return message(free=4)

    post = HintRouter(
        read_nodes,
        send,
        ("http://",),
        lambda: None,
        lambda: ("me",),
        tuple,
        lambda _: None,
        SystemClock(),
        logging.getLogger("tests.post"),
        refresh_seconds=60,
    )
    await post.refresh()
    post.route_new({("first", None, ""): 1})
    await gate.until_reached()
    post.route_new({("second", None, ""): 1})
    gate.open()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await is_told.wait()
    assert heard == {"second"}
    await post.close(1)
