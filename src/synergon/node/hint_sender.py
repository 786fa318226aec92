"""Sends hints of a node to its peers: tasks that it cannot start at once, and ends that other engines wait for."""

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
        """The engine to notify of the end of each running task."""
        self._expected: Counter[ReadyGroupName] = Counter()
        """Tasks that the next claim is expected to take, by ready group; no hint was sent about them."""
        self._claiming: Counter[ReadyGroupName] = Counter()
        """Tasks that the claim in flight is expected to take, by ready group."""

    @property
    def is_healthy(self) -> bool:
        """Whether hints of the peers probably arrive."""
        return self._peers is not None and self._peers.is_healthy

    def update_directory(self, nodes: Iterable[NodeRecord]) -> None:
        """Update the peers from the node table."""
        if self._peers is not None:
            self._peers.update_directory(nodes)

    # ------------------------------------------------------------ ready tasks

    def offer(self, work: Mapping[ReadyGroupName, int], *, is_open: bool) -> None:
        """Send hints about new tasks that do not fit here. `is_open` says that this node claims."""
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
        self._peers.announce_new(beyond)

    def _take(self, group: ReadyGroupName, count: int, expected: int) -> int:
        """How many tasks of the ready group the next claim will take, if it already expects this many."""
        kind, queue, requirements = group
        if not self._admission.serves(kind, queue):
            return 0
        taken = min(max(self._admission.expected(kind, requirements, queue) - expected, 0), count)
        if taken:
            self._expected[group] += taken
        return taken

    def full(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """The kinds of this list that cannot start a task here now."""
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
        """Send hints about limits and servers with freed permits that this node did not take again."""
        if names and self._peers is not None:
            self._peers.announce_freed(names)

    def reserved(self, task_id: int) -> None:
        """Send hints that this node has reserved capacity for the task, so that no other node need."""
        if self._peers is not None:
            self._peers.announce_reservation(task_id)

    def claim_begins(self) -> None:
        """Note that a claim starts: tasks that are announced from now on are for the next one."""
        if self._expected:
            self._claiming, self._expected = self._claiming + self._expected, Counter()

    def claim_is_over(self, leftover: Collection[str]) -> None:
        """Note that a claim has ended. Expected tasks that it did not take may be left, if others precede them or if
        their requirements are unknown and this node cannot run them: hints about these go out now."""
        if not self._claiming:
            return
        missed, self._claiming = self._claiming, Counter()
        if self._peers is not None:
            told = {
                group for group, count in missed.items() if count > 0 and (group[0] in leftover or group[1] is None)
            }
            self._peers.announce_new({group: missed[group] for group in told})

    # ------------------------------------------------------------ ends

    def started(self, claims: Iterable[Claim]) -> None:
        """Note that these tasks run here."""
        if self._peers is not None:
            self._origins.update((claim.id, claim.origin) for claim in claims if claim.origin is not None)
            self._peers.announce_started(claim.kind for claim in claims)
            if self._claiming:
                for claim in claims:
                    self._note_claimed(claim)

    def _note_claimed(self, claim: Claim) -> None:
        for group in ((claim.kind, claim.queue, claim.requirements), (claim.kind, None, KIND_DEFAULT)):
            if self._claiming[group] > 0:
                self._claiming[group] -= 1
                return

    def ended(self, ids: Collection[int]) -> None:
        """Notify the engines that enqueued these tasks, or asked about them, that they may have ended."""
        if self._peers is None:
            return
        self._peers.notify_watchers(ids)
        told: dict[str, list[int]] = {}
        for task_id in ids:
            origin = self._origins.pop(task_id, None)
            if origin is not None:
                told.setdefault(origin, []).append(task_id)
        for origin, its_ids in told.items():
            self._peers.send_done(origin, its_ids)

    def ended_unrun(self, ids: Collection[int]) -> None:
        """Notify all peers that these tasks have ended without running here, because it is unknown which ones wait for
        them."""
        if self._peers is not None:
            self._peers.announce_ended(ids)
