"""The interfaces through which peering uses its own engine: its node, its waiting callers, and the engine itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sized
from typing import Protocol

from synergon.model.nodes import NodeRecord
from synergon.peering.directory import Peer
from synergon.peering.wire import Message


class LocalNode(Protocol):
    """The interface of peering to the node of this engine."""

    @property
    def id(self) -> str:
        """The id of the node. It is new each time that the node joins."""

    @property
    def free(self) -> int:
        """How many tasks the node can start now."""

    def full(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """The kinds among these for which the node has no capacity now."""

    def handle_hints(self, hints: Message) -> None:
        """Act on hints from a peer."""

    def handle_nodes(self, nodes: Iterable[NodeRecord]) -> None:
        """Update the node from the rows of the node table that peering has just read."""


class LocalWaiters(Protocol):
    """The interface of peering to the callers in this process that wait for the end of tasks."""

    enqueued_elsewhere: set[int]
    """Tasks that callers here wait for, and that another engine has enqueued."""

    @property
    def followers(self) -> Sized:
        """The open streams of events in this process."""

    def recheck(self, ids: Iterable[int]) -> None:
        """Check these tasks: they may have ended."""

    def recheck_all(self) -> None:
        """Check all tasks that callers here wait for: they may have ended."""

    def wake_followers(self) -> None:
        """Wake the streams of events: any task may have ended."""


class LocalEngine(Protocol):
    """The part of its own engine that the router uses. Implemented by `Peers`."""

    @property
    def own_ids(self) -> tuple[str, ...]:
        """The ids under which this engine has or had a row. The last one is the current id."""

    async def read_nodes(self) -> list[NodeRecord]:
        """Read the node table."""

    async def send(self, peer: Peer, hints: Message) -> Message:
        """Send hints, and return the answer. Raises SendError if there is none."""

    def prepare(self) -> None:
        """Do in advance what would delay the first message. Called when there are peers."""

    def handle_done(self, ids: Collection[int]) -> None:
        """Wake the callers that wait for these tasks: they may have ended."""
