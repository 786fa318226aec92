"""Directory of peers: their rows in the node table, and how many free slots each one last reported.

It holds data, not connections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from synergon.model.node_status import UNKNOWN_STATUS, NodeStatus, could_run, read_status
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT

HELPERS: Final = 2
"""How many peers a node asks to claim when it has more tasks than capacity."""


@dataclass(slots=True, kw_only=True)
class Peer:
    """Another engine that can receive messages."""

    id: str
    address: str
    kinds: frozenset[str]
    queues: frozenset[str] | None
    free: int
    """The number of free slots: an estimate from the node table, the peer's messages and the hints sent to the peer."""
    is_failing: bool = False
    full: frozenset[str] = frozenset()
    """Kinds for which the peer had no capacity when it last answered a hint about them."""
    status: NodeStatus = UNKNOWN_STATUS
    """The status that the peer had published when the node table was read."""
    _could_run: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Cached answers of `could_run`."""

    def has_capacity(self, kind: str) -> bool:
        """Whether the peer can start a task of this kind now, by the estimate of its free slots."""
        return self.free > 0 and kind not in self.full and not self.is_failing

    def could_run(self, kind: str, requirements: str = KIND_DEFAULT) -> bool:
        """Whether the peer could run a task of this kind with these requirements if it were idle."""
        answer = self._could_run.get((kind, requirements))
        if answer is None:
            answer = self._could_run[kind, requirements] = could_run(self.status, kind, requirements)
        return answer


class Directory:
    """The peers by id: live rows of the node table whose address has one of the transport's schemes."""

    def __init__(self, schemes: tuple[str, ...]) -> None:
        self._schemes = schemes
        self._peers: dict[str, Peer] = {}
        self.is_loaded: bool = False

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))

    def get(self, peer_id: str) -> Peer | None:
        """The peer with this id. None if it is unknown."""
        return self._peers.get(peer_id)

    def update(self, nodes: Iterable[NodeRecord], own_ids: Collection[str]) -> tuple[list[Peer], list[Peer]]:
        """Replace the peers by the rows of the node table. Returns the added and the removed peers."""
        before, self._peers = self._peers, {}
        added: list[Peer] = []
        for node in nodes:
            address = node.address
            if (
                address is None
                or node.id in own_ids
                or node.lease_remaining <= 0
                or not address.startswith(self._schemes)
            ):
                continue
            known = before.pop(node.id, None)
            self._peers[node.id] = peer = Peer(
                id=node.id,
                address=address,
                kinds=frozenset(node.kinds),
                queues=None if node.queues is None else frozenset(node.queues),
                free=node.concurrency,
                is_failing=known is not None and known.is_failing,
                status=read_status(bytes(node.published)),
            )
            if known is None:
                added.append(peer)
        self.is_loaded = True
        return added, list(before.values())

    def remove(self, peer_id: str) -> Peer | None:
        """Remove a peer that has left. Returns it; None if it was unknown."""
        return self._peers.pop(peer_id, None)

    def runners(self, kind: str) -> list[Peer]:
        """The peers that run the kind."""
        return [peer for peer in self._peers.values() if kind in peer.kinds]

    def reported_full(self, kind: str) -> set[str]:
        """The ids of the peers that answered that they cannot start a task of this kind. Peers that are only estimated
        to have no free slot are not included."""
        return {peer.id for peer in self.runners(kind) if kind in peer.full}

    def next_helpers(self, kind: str, own_id: str) -> list[Peer]:
        """The few peers that this node asks to claim, because it has more tasks of the kind than capacity.

        The nodes form a ring by id, and each asks its successors. So the hint reaches every peer with free capacity,
        even if the estimates of free slots are wrong, and no node sends to all.
        """
        runners = sorted(
            (peer for peer in self.runners(kind) if peer.could_run(kind)),
            key=lambda peer: (peer.is_failing, peer.free <= 0, peer.id < own_id, peer.id),
        )
        return runners[:HELPERS]

    def choose_to_wake(
        self,
        kind: str,
        queue: str | None,
        count: int,
        excluded: Collection[str] = (),
        requirements: str = KIND_DEFAULT,
    ) -> list[Peer]:
        """The peers to wake for `count` new tasks: as few as have capacity for all of them or, if the capacity is not
        enough, all that could run them.

        `queue=None` means that the queue is unknown. Then peers that serve only certain queues are always included.
        """
        is_known = queue is not None  # an unknown queue comes with unknown requirements
        runners = [
            peer
            for peer in self.runners(kind)
            if peer.id not in excluded and not (is_known and not peer.could_run(kind, requirements))
        ]
        certain = [peer for peer in runners if peer.queues is None or queue in peer.queues]
        maybe = [peer for peer in runners if queue is None and peer.queues is not None]
        chosen: list[Peer] = []
        for peer in sorted(certain, key=lambda peer: (peer.is_failing, kind in peer.full, -peer.free)):
            if count <= 0:
                break
            chosen.append(peer)
            if peer.has_capacity(kind):
                taken = min(peer.free, count)
                peer.free -= taken
                count -= taken
        return chosen + maybe
