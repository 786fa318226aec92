"""Bodies that are counted while they run, and the node that runs them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.support import Gate

from synergon import Engine
from synergon.node.node import Node

WITHIN_A_LEASE: Final = 20.0
"""Patience with what must not be left to the end of a lease, which is also the end of what a node keeps for a task."""


class Crowd:
    """Bodies that stay until they are let go, and how many of each there were at most."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.gate = Gate()

    async def join(self, name: str) -> None:
        self.now[name] += 1
        self.most[name] = max(self.most[name], self.now[name])
        try:
            await self.gate.hold()
        finally:
            self.now[name] -= 1


def node_of(engine: Engine) -> Node:
    assert engine._node is not None
    return engine._node
