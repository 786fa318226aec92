"""Who the peers are: data, not connections. The rows of the node table, and what they last said of themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from synergon.model.node_status import UNKNOWN_STATUS, NodeStatus, could_run, read_status
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT

HELPERS: Final = 2
"""How many peers a node tells when it has more work than it can take."""


@dataclass(slots=True, kw_only=True)
class Peer:
    """Another engine that can be called."""

    id: str
    address: str
    kinds: frozenset[str]
    queues: frozenset[str] | None
    free: int
    """Free slots, as far as anybody here knows."""
    is_failing: bool = False
    full: frozenset[str] = frozenset()
    """Kinds of which it could start none when it was told of some."""
    state: NodeStatus = UNKNOWN_STATUS
    """What it said of itself when the table was read."""
    _suits: dict[tuple[str, str], bool] = field(default_factory=dict)
    """What follows from that, where somebody has asked."""

    def has_room(self, kind: str) -> bool:
        """Whether it could start a task of this kind, as far as anybody here knows."""
        return self.free > 0 and kind not in self.full and not self.is_failing

    def suits(self, kind: str, text: str = KIND_DEFAULT) -> bool:
        """Whether it could ever run a task of this kind that demands this."""
        answer = self._suits.get((kind, text))
        if answer is None:
            answer = self._suits[kind, text] = could_run(self.state, kind, text)
        return answer


class Directory:
    """The peers by id. Only addresses that the node table has are in it, and only those of the transport's schemes."""

    def __init__(self, schemes: tuple[str, ...]) -> None:
        self._schemes = schemes
        self._peers: dict[str, Peer] = {}
        self.is_loaded = False

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))

    def get(self, peer_id: str) -> Peer | None:
        """The peer with this id, if it is known."""
        return self._peers.get(peer_id)

    def update(self, nodes: Iterable[NodeRecord], own_ids: Collection[str]) -> tuple[list[Peer], list[Peer]]:
        """Learn the rows of the node table; who is new, and who is gone."""
        before, self._peers = self._peers, {}
        came: list[Peer] = []
        for node in nodes:
            address = node.address
            if address is None or node.id in own_ids or node.lease_left <= 0 or not address.startswith(self._schemes):
                continue
            known = before.pop(node.id, None)
            self._peers[node.id] = peer = Peer(
                id=node.id,
                address=address,
                kinds=frozenset(node.kinds),
                queues=None if node.queues is None else frozenset(node.queues),
                free=node.concurrency,
                is_failing=known is not None and known.is_failing,
                state=read_status(bytes(node.published)),
            )
            if known is None:
                came.append(peer)
        self.is_loaded = True
        return came, list(before.values())

    def forget(self, peer_id: str) -> Peer | None:
        """It has said goodbye."""
        return self._peers.pop(peer_id, None)

    def runners(self, kind: str) -> list[Peer]:
        """Those who run the kind."""
        return [peer for peer in self._peers.values() if kind in peer.kinds]

    def without_hope(self, kind: str) -> set[str]:
        """Those who have said that they can start none of the kind; not those who only had no room left lately."""
        return {peer.id for peer in self.runners(kind) if kind in peer.full}

    def next_to_help(self, kind: str, own_id: str) -> list[Peer]:
        """Who should hear from a node that it cannot take all there is of the kind: a few.

        All nodes stand in one ring, by id, and each tells those behind it. So the news reaches everybody who has room,
        however the free slots are judged, and no node tells everybody.
        """
        runners = sorted(
            (peer for peer in self.runners(kind) if peer.suits(kind)),
            key=lambda peer: (peer.is_failing, peer.free <= 0, peer.id < own_id, peer.id),
        )
        return runners[:HELPERS]

    def whom_to_wake(
        self,
        kind: str,
        queue: str | None,
        count: int,
        besides: Collection[str] = (),
        requirements: str = KIND_DEFAULT,
    ) -> list[Peer]:
        """Who should look for `count` new tasks: as few as have room for them, or else all who run the kind.

        Without a queue nobody knows which one it is; then those who serve only some queues are woken in any case.
        """
        is_known = queue is not None  # or else nobody knows either what the task demands
        runners = [
            peer
            for peer in self.runners(kind)
            if peer.id not in besides and not (is_known and not peer.suits(kind, requirements))
        ]
        certain = [peer for peer in runners if peer.queues is None or queue in peer.queues]
        maybe = [peer for peer in runners if queue is None and peer.queues is not None]
        chosen: list[Peer] = []
        for peer in sorted(certain, key=lambda peer: (peer.is_failing, kind in peer.full, -peer.free)):
            if count <= 0:
                break
            chosen.append(peer)
            if peer.has_room(kind):
                taken = min(peer.free, count)
                peer.free -= taken
                count -= taken
        return chosen + maybe
