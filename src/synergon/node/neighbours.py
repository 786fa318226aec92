"""What a node tells its peers: of work that it cannot start at once, and of ends that somebody elsewhere waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from synergon.node.admission import Admission
from synergon.peering.peers import Peers
from synergon.peering.post import Lane
from synergon.records import Claim, NodeRecord


class Neighbours:
    """A node's side of its peers; without any it does nothing."""

    def __init__(self, peers: Peers | None, admission: Admission) -> None:
        self._peers = peers
        self._admission = admission
        self._origins: dict[int, str] = {}
        """Whom to tell of the end of what runs here."""
        self._expected = 0
        """How many tasks the next claim is expected to take."""

    @property
    def are_well(self) -> bool:
        """Whether there is reason to believe that their news arrives."""
        return self._peers is not None and self._peers.is_healthy

    def learn(self, nodes: Iterable[NodeRecord]) -> None:
        """The node table, as it has just been read."""
        if self._peers is not None:
            self._peers.learn(nodes)

    # ------------------------------------------------------------ work

    def offer(self, work: Mapping[Lane, int], *, is_open: bool) -> None:
        """Tell of the part of new work that does not fit here; `is_open`: this node claims."""
        if self._peers is not None:
            beyond = {lane: count - self._take(lane, count, is_open=is_open) for lane, count in work.items()}
            self._peers.tell_new({lane: count for lane, count in beyond.items() if count})

    def _take(self, lane: Lane, count: int, *, is_open: bool) -> int:
        if not is_open or not self._admission.serves(*lane):
            return 0
        taken = min(max(self._admission.room(lane[0]) - self._expected, 0), count)
        self._expected += taken
        return taken

    def offer_surplus(self, kinds: Iterable[str]) -> None:
        """There may be more of these kinds than this node could take."""
        if self._peers is not None:
            self._peers.tell_surplus(kinds)

    def claim_is_over(self) -> None:
        """What was expected has come, or went elsewhere."""
        self._expected = 0

    # ------------------------------------------------------------ ends

    def started(self, claims: Iterable[Claim]) -> None:
        """These were taken."""
        if self._peers is not None:
            self._origins.update((claim.id, claim.origin) for claim in claims if claim.origin is not None)
            self._peers.tell_started(claim.kind for claim in claims)

    def ended(self, ids: Collection[int]) -> None:
        """These may have ended; whoever enqueued them is told, and whoever else has asked."""
        if self._peers is None:
            return
        self._peers.tell_watchers(ids)
        told: dict[str, list[int]] = {}
        for task_id in ids:
            origin = self._origins.pop(task_id, None)
            if origin is not None:
                told.setdefault(origin, []).append(task_id)
        for origin, its_ids in told.items():
            self._peers.tell_done(origin, its_ids)

    def ended_unrun(self, ids: Collection[int]) -> None:
        """These have ended without having run here, and nobody here knows who waits for them."""
        if self._peers is not None:
            self._peers.tell_ended(ids)
