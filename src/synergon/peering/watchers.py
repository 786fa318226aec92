"""Peers that asked to be notified of the end of tasks that they did not enqueue."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from synergon.peering.wire import TOO_MANY_IDS

MAX_TASKS: Final = 10_000
"""The maximum number of watched tasks. The oldest entries are dropped; the peers that wait for them find the result by
their own sweep."""

FOLLOW_SECONDS: Final = 90.0
"""A follower that has not repeated its request for this many seconds is dropped."""


class Watchers:
    """The peers that wait for certain tasks, and the peers that follow every end.

    The end of an attempt need not be the end of the task, so an entry is not removed when it is used.
    """

    def __init__(self) -> None:
        self.peers: dict[int, set[str]] = {}
        """For each task, the peers that wait for it."""
        self.followers: dict[str, float] = {}
        """The peers that follow every end, each with the moment at which its request expires."""

    def add(self, peer_id: str, ids: Collection[int]) -> None:
        """Register the peer for these tasks. Does nothing if the list is TOO_MANY_IDS: that peer relies on its
        sweep."""
        if TOO_MANY_IDS in ids:
            return
        for task_id in ids:
            self.peers.setdefault(task_id, set()).add(peer_id)
            if len(self.peers) > MAX_TASKS:
                del self.peers[next(iter(self.peers))]

    def add_follower(self, peer_id: str, now: float) -> None:
        """Register the peer for every end during FOLLOW_SECONDS. The peer repeats its request before that."""
        self.followers[peer_id] = now + FOLLOW_SECONDS

    def current_followers(self, now: float) -> list[str]:
        """The peers to notify when any task has ended."""
        self.followers = {peer_id: until for peer_id, until in self.followers.items() if now < until}
        return list(self.followers)

    def by_peer(self, ids: Iterable[int]) -> dict[str, list[int]]:
        """The peers to notify that these tasks may have ended, each with the tasks that it waits for."""
        found: dict[str, list[int]] = {}
        for task_id in ids:
            for peer_id in self.peers.get(task_id, ()):
                found.setdefault(peer_id, []).append(task_id)
        return found
