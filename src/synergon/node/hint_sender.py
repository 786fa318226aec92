"""Sends the hints of a node to its peers: about tasks that it cannot start at once, and about ended tasks that other
engines wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from synergon.model.claims import Claim
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT
from synergon.node.claims.admission import Admission
from synergon.peering.peers import Peers
from synergon.peering.router import ReadyGroupName


class HintSender:
    """Sends the hints of one node. Without peers it does nothing."""

    def __init__(self, peers: Peers | None, admission: Admission) -> None:
        self._peers = peers
        self._admission = admission
        self._origins: dict[int, str] = {}
        """For each running task, the engine to notify of its end."""
        self._expected: Counter[ReadyGroupName] = Counter()
        """How many new tasks of each ready group the next claim is expected to take. No hint was sent about them."""
        self._claiming: Counter[ReadyGroupName] = Counter()
        """How many tasks of each ready group the claim in flight is expected to take."""

    @property
    def is_healthy(self) -> bool:
        """Whether hints from peers probably reach this node. False without peers."""
        return self._peers is not None and self._peers.is_healthy

    def update_directory(self, nodes: Iterable[NodeRecord]) -> None:
        """Update the directory of peers from the rows of the nodes."""
        if self._peers is not None:
            self._peers.update_directory(nodes)

    # ------------------------------------------------------------ ready tasks

    def offer(self, work: Mapping[ReadyGroupName, int], *, is_open: bool) -> None:
        """Send hints about new tasks that do not fit here. `is_open` says whether this node may claim."""
        if self._peers is None:
            return
        beyond: dict[ReadyGroupName, int] = {}
        expected = (
            self._expected.total() + self._claiming.total()
        )  # computed once: there may be thousands of ready groups
        for group, count in work.items():
            taken = self._take(group, count, expected) if is_open else 0
            expected += taken
            if count > taken:
                beyond[group] = count - taken
        if beyond:
            self._peers.announce_new(beyond)

    def _take(self, group: ReadyGroupName, count: int, expected: int) -> int:
        """How many of these tasks the next claim will probably take, if it is already expected to take `expected`
        others."""
        kind, queue, requirements = group
        if not self._admission.serves(kind, queue):
            return 0
        taken = min(max(self._admission.expected(kind, requirements, queue) - expected, 0), count)
        if taken:
            self._expected[group] += taken
        return taken

    def full(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """The kinds among these that have no capacity here: none of their tasks can start now."""
        return tuple(kind for kind in kinds if not self._admission.has_capacity(kind))

    def offer_surplus(self, kinds: Iterable[str]) -> None:
        """Send hints about kinds that may have more ready tasks than this node can take."""
        if self._peers is not None:
            self._peers.announce_surplus(kinds)

    def rejected(self, kind: str, count: int) -> None:
        """Send hints about tasks that this node has rejected: another node may accept them."""
        if self._peers is not None:
            self._peers.announce_new({(kind, None, KIND_DEFAULT): count})
            self._peers.announce_surplus([kind])

    def freed(self, names: list[str]) -> None:
        """Send hints about limits and pools with freed permits that this node did not take."""
        if names and self._peers is not None:
            self._peers.announce_freed(names)

    def reserved(self, task_id: int) -> None:
        """Send hints that this node has reserved capacity for the task, so that other nodes do not reserve for it as
        well."""
        if self._peers is not None:
            self._peers.announce_reservation(task_id)

    def claim_begins(self) -> None:
        """Note that a claim starts. Tasks that are announced from now on are for the next claim."""
        if self._expected:
            self._claiming, self._expected = self._claiming + self._expected, Counter()

    def claim_is_over(self, leftover: Collection[str]) -> None:
        """Note that a claim has ended. Send hints about expected tasks that it did not take and that may be left: those
        of kinds in `leftover`, and those of unknown queue and requirements, which this node may be unable to run."""
        if not self._claiming:
            return
        missed, self._claiming = self._claiming, Counter()
        left = {
            group: count for group, count in missed.items() if count > 0 and (group[0] in leftover or group[1] is None)
        }
        if left and self._peers is not None:
            self._peers.announce_new(left)

    # ------------------------------------------------------------ ends

    def started(self, claims: Iterable[Claim], node_id: str) -> None:
        """Note that this node runs these tasks, and which other engines to notify of their ends."""
        if self._peers is not None:
            self._origins.update((claim.id, claim.origin) for claim in claims if claim.origin not in (None, node_id))
            self._peers.started.update(claim.kind for claim in claims if not claim.is_member)
            if self._claiming:
                for claim in claims:
                    self._note_claimed(claim)

    def _note_claimed(self, claim: Claim) -> None:
        for group in ((claim.kind, claim.queue, claim.requirements), (claim.kind, None, KIND_DEFAULT)):
            if self._claiming[group] > 0:
                self._claiming[group] -= 1
                return

    def ended(self, ids: Collection[int]) -> None:
        """Notify the engines that enqueued these tasks or watch them that the tasks may have ended."""
        if self._peers is None:
            return
        watchers = self._peers.watchers
        if watchers.peers or watchers.followers:
            self._peers.notify_watchers(ids)
        told: dict[str, list[int]] = {}
        for task_id in ids:
            origin = self._origins.pop(task_id, None)
            if origin is not None:
                told.setdefault(origin, []).append(task_id)
        for origin, its_ids in told.items():
            self._peers.send_done(origin, its_ids)

    def ended_unrun(self, ids: Collection[int]) -> None:
        """Notify all peers that these tasks have ended without running here. It is unknown which peers wait for
        them."""
        if self._peers is not None:
            self._peers.announce_ended(ids)
