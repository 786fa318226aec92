"""Who, elsewhere, waits for tasks that it has not enqueued, or follows all that end."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from synergon.peering.wire import LOOK

MOST_TASKS: Final = 10_000
"""With more than this the oldest are forgotten, and whoever waits for them finds out by looking."""

FOLLOW_SECONDS: Final = 90.0
"""Who has not said for so long that it follows what ends is told no more."""


class Watchers:
    """Peers by the task they wait for. An attempt's end need not be the task's, so nothing is forgotten at one."""

    def __init__(self) -> None:
        self._peers: dict[int, set[str]] = {}
        self._followers: dict[str, float] = {}
        """Peers that follow every end, and until when they are believed to."""

    def add(self, peer_id: str, ids: Collection[int]) -> None:
        """The peer waits for these. More than a message can name it finds by looking."""
        if LOOK in ids:
            return
        for task_id in ids:
            self._peers.setdefault(task_id, set()).add(peer_id)
            if len(self._peers) > MOST_TASKS:
                del self._peers[next(iter(self._peers))]

    def follow(self, peer_id: str, now: float) -> None:
        """The peer wants to hear of every end, and says so again from time to time."""
        self._followers[peer_id] = now + FOLLOW_SECONDS

    def followers(self, now: float) -> list[str]:
        """Whom to tell that something has ended."""
        if not self._followers:
            return []
        self._followers = {peer_id: until for peer_id, until in self._followers.items() if now < until}
        return list(self._followers)

    def of(self, ids: Iterable[int]) -> dict[str, list[int]]:
        """Whom to tell that these may have ended."""
        told: dict[str, list[int]] = {}
        if self._peers:
            for task_id in ids:
                for peer_id in self._peers.get(task_id, ()):
                    told.setdefault(peer_id, []).append(task_id)
        return told
