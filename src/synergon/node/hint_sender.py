"""What a node tells its peers: of work that it cannot start at once, and of ends that somebody elsewhere waits for."""

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
    """A node's side of its peers; without any it does nothing."""

    def __init__(self, peers: Peers | None, admission: Admission) -> None:
        self._peers = peers
        self._admission = admission
        self._origins: dict[int, str] = {}
        """Whom to tell of the end of what runs here."""
        self._expected: Counter[ReadyGroupName] = Counter()
        """What the next claim is expected to take; nobody else was told of it."""
        self._claiming: Counter[ReadyGroupName] = Counter()
        """The same for the claim that is under way."""

    @property
    def are_well(self) -> bool:
        """Whether there is reason to believe that their news arrives."""
        return self._peers is not None and self._peers.is_healthy

    def learn(self, nodes: Iterable[NodeRecord]) -> None:
        """The node table, as it has just been read."""
        if self._peers is not None:
            self._peers.update_directory(nodes)

    # ------------------------------------------------------------ work

    def offer(self, work: Mapping[ReadyGroupName, int], *, is_open: bool) -> None:
        """Tell of the part of new work that does not fit here; `is_open`: this node claims."""
        if self._peers is None:
            return
        beyond: dict[ReadyGroupName, int] = {}
        expected = self._expected.total() + self._claiming.total()  # counted once: there may be thousands of lanes
        for group, count in work.items():
            taken = self._take(group, count, expected) if is_open else 0
            expected += taken
            if count > taken:
                beyond[group] = count - taken
        self._peers.announce_new(beyond)

    def _take(self, group: ReadyGroupName, count: int, expected: int) -> int:
        """How many of the lane are for the next claim, if so many are already."""
        kind, queue, requirements = group
        if not self._admission.serves(kind, queue):
            return 0
        taken = min(max(self._admission.expected(kind, requirements) - expected, 0), count)
        if taken:
            self._expected[group] += taken
        return taken

    def full(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Those of the kinds of which none could start here now."""
        return tuple(kind for kind in kinds if not self._admission.has_capacity(kind))

    def offer_surplus(self, kinds: Iterable[str]) -> None:
        """There may be more of these kinds than this node could take."""
        if self._peers is not None:
            self._peers.announce_surplus(kinds)

    def rejected(self, kind: str, count: int) -> None:
        """So many of the kind are not taken here; somebody else may take them, and whoever does not tells others."""
        if self._peers is not None:
            self._peers.announce_new({(kind, None, KIND_DEFAULT): count})
            self._peers.announce_surplus([kind])

    def freed(self, names: list[str]) -> None:
        """Places in these were freed here and not taken again."""
        if names and self._peers is not None:
            self._peers.announce_freed(names)

    def reserved(self, task_id: int) -> None:
        """This node keeps room for that task, and nobody else need."""
        if self._peers is not None:
            self._peers.announce_reservation(task_id)

    def claim_begins(self) -> None:
        """What is announced from now on is for the next one."""
        if self._expected:
            self._claiming, self._expected = self._claiming + self._expected, Counter()

    def claim_is_over(self, leftover: Collection[str]) -> None:
        """What was expected has come or went elsewhere; unless tasks that go before it took its place, and some of its
        kind may be left: then others are told of it after all. So they are if nobody knows what it demands: it may be
        that this node cannot run it."""
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
        """These were taken."""
        if self._peers is not None:
            self._origins.update((claim.id, claim.origin) for claim in claims if claim.origin is not None)
            self._peers.announce_started(claim.kind for claim in claims)
            if self._claiming:
                for claim in claims:
                    self._came(claim)

    def _came(self, claim: Claim) -> None:
        for group in ((claim.kind, claim.queue, claim.requirements), (claim.kind, None, KIND_DEFAULT)):
            if self._claiming[group] > 0:
                self._claiming[group] -= 1
                return

    def ended(self, ids: Collection[int]) -> None:
        """These may have ended; whoever enqueued them is told, and whoever else has asked."""
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
        """These have ended without having run here, and nobody here knows who waits for them."""
        if self._peers is not None:
            self._peers.announce_ended(ids)
