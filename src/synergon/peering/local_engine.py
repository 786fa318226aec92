"""What peering needs of the engine that it belongs to: its node, the callers that wait for ends, and itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sized
from typing import Protocol

from synergon.model.nodes import NodeRecord
from synergon.peering.directory import Peer
from synergon.peering.wire import Message


class LocalNode(Protocol):
    """The node of this engine, as far as peering needs it."""

    @property
    def id(self) -> str:
        """Its id; a new one each time that it joins."""

    @property
    def free(self) -> int:
        """How many tasks it could start now."""

    def full(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """The kinds among these that it could not start now, whatever slots are free."""

    def handle_hints(self, hints: Message) -> None:
        """Act on hints from a peer."""

    def handle_nodes(self, nodes: Iterable[NodeRecord]) -> None:
        """Use the rows of the node table that were just read for peering."""


class LocalWaiters(Protocol):
    """The callers in this process that wait for ends, as far as peering needs them."""

    enqueued_elsewhere: set[int]
    """Tasks that are awaited here and that another engine has enqueued."""

    @property
    def followers(self) -> Sized:
        """The streams of events that are read here."""

    def recheck(self, ids: Iterable[int]) -> None:
        """Check these tasks, which may have ended."""

    def recheck_all(self) -> None:
        """Check all awaited tasks, which may have ended."""

    def wake_followers(self) -> None:
        """Wake the followers, because any task may have ended."""


class LocalEngine(Protocol):
    """This engine among its peers (`Peers`), as the router needs it."""

    @property
    def own_ids(self) -> tuple[str, ...]:
        """The ids under which this engine has, or had, a row; the current one is the last."""

    async def read_nodes(self) -> list[NodeRecord]:
        """Read the node table."""

    async def send(self, peer: Peer, hints: Message) -> Message:
        """Send hints and return the answer; SendError if there is none."""

    def prepare(self) -> None:
        """There are peers: do in advance what would delay the first message."""

    def handle_done(self, ids: Collection[int]) -> None:
        """These tasks may have ended."""
