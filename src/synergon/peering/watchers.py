"""Peers that asked to be notified when tasks end which they did not enqueue."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from synergon.peering.wire import TOO_MANY_IDS

MAX_TASKS: Final = 10_000
"""Above this number the oldest entries are dropped; the peers that wait for them find the result by their own sweep."""

FOLLOW_SECONDS: Final = 90.0
"""A follower that has not repeated its request for this long is dropped."""


class Watchers:
    """Peers by the task that they wait for, and peers that follow every end.

    The end of an attempt need not be the end of the task, so an entry is not removed when it is used.
    """

    def __init__(self) -> None:
        self.peers: dict[int, set[str]] = {}
        """Peers by the task that they wait for."""
        self.followers: dict[str, float] = {}
        """Peers that follow every end, each with the time at which its request expires."""

    def add(self, peer_id: str, ids: Collection[int]) -> None:
        """Register the peer for these tasks. TOO_MANY_IDS registers nothing: that peer relies on its sweep."""
        if TOO_MANY_IDS in ids:
            return
        for task_id in ids:
            self.peers.setdefault(task_id, set()).add(peer_id)
            if len(self.peers) > MAX_TASKS:
                del self.peers[next(iter(self.peers))]

    def add_follower(self, peer_id: str, now: float) -> None:
        """Register the peer for every end until FOLLOW_SECONDS from now; peers repeat the request in time."""
        self.followers[peer_id] = now + FOLLOW_SECONDS

    def current_followers(self, now: float) -> list[str]:
        """Peers to notify when any task has ended."""
        self.followers = {peer_id: until for peer_id, until in self.followers.items() if now < until}
        return list(self.followers)

    def by_peer(self, ids: Iterable[int]) -> dict[str, list[int]]:
        """Peers to notify that these tasks may have ended, each with the ids that it waits for."""
        found: dict[str, list[int]] = {}
        for task_id in ids:
            for peer_id in self.peers.get(task_id, ()):
                found.setdefault(peer_id, []).append(task_id)
        return found
