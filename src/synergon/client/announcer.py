"""Announcer: tells the node of this process, and peers, what this engine has changed in the store.

Announcements are hints: work that was not announced is found by the next sweep of a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from synergon.model.lifecycle import State
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.tasks import Insertion, Moved, NewTask

if TYPE_CHECKING:
    from synergon.client.connection import Connection
    from synergon.peering.router import ReadyGroupName
    from synergon.task import AnyTask


class Announcer:
    """Announces new, moved and ended tasks, and changes of what tasks share."""

    def __init__(self, connection: Connection, kinds: Mapping[str, AnyTask]) -> None:
        self._connection = connection
        self._kinds = kinds

    # ------------------------------------------------------------ new tasks

    def announce_inserted(self, tasks: Sequence[NewTask], inserted: Sequence[Insertion]) -> None:
        """These tasks are stored."""
        ready: dict[ReadyGroupName, int] = {}
        later: set[str] = set()
        for task, insertion in zip(tasks, inserted, strict=True):
            if insertion.state == State.READY:
                group = (task.kind, task.queue, task.requirements)
                ready[group] = ready.get(group, 0) + 1
            if task.expires_in is not None or insertion.state == State.SCHEDULED:
                later.add(task.kind)
        self.announce_ready(ready)
        if later:
            self.announce_later(later)

    def announce_doubtful(self, tasks: Sequence[NewTask]) -> None:
        """The call that stores these was cancelled, and the store may have them all the same."""
        self.announce_inserted(tasks, [Insertion(0, created=True, state=State.READY) for _ in tasks])
        self.announce_later({task.kind for task in tasks})

    def expect_commit(self) -> None:
        """The caller's transaction will bring tasks. If the store does not tell, nodes look often for a while."""
        connection = self._connection
        if connection.store.capabilities.listens:
            return
        if connection.node is not None:
            connection.node.watch()
        if connection.peers is not None:
            connection.peers.announce_control()

    # ------------------------------------------------------------ changed tasks

    def announce_moves(self, moves: Iterable[Moved]) -> None:
        """A cancel, a retry or a delete has done this."""
        done = [moved for moved in moves if moved.done]
        for moved in done:
            if moved.state is State.RUNNING:
                self._announce_cancel(moved)
        ready = Counter(moved.kind for moved in done if moved.state is State.READY and moved.kind is not None)
        if ready:
            self.announce_ready({(kind, None, KIND_DEFAULT): count for kind, count in ready.items()})
        ended = [moved.id for moved in done if moved.state in (None, State.CANCELLED)]
        self._connection.waiters.tell(ended)
        if self._connection.peers is not None:
            self._connection.peers.announce_ended(ended)
        if any(moved.group_id is not None for moved in done):
            self.announce_change()
        self.announce_key_queues(moved for moved in done if moved.state is not State.RUNNING)

    def _announce_cancel(self, moved: Moved) -> None:
        if self._connection.node is not None:
            self._connection.node.cancel(moved.id)
        if self._connection.peers is not None and moved.node_id is not None:
            self._connection.peers.send_cancel(moved.node_id, moved.id)

    def announce_key_queues(self, moves: Iterable[Moved]) -> None:
        """These tasks left or changed their key queues: the tasks behind them may be ready now."""
        kinds = Counter(moved.kind for moved in moves if moved.kind is not None and self._has_key_queues(moved.kind))
        if kinds:
            self.announce_ready({(kind, None, KIND_DEFAULT): count for kind, count in kinds.items()})
            self.announce_later(kinds)

    def _has_key_queues(self, kind: str) -> bool:
        """Whether tasks of the kind may stand in key queues; a kind that is registered elsewhere may have them."""
        known = self._kinds.get(kind)
        return known is None or known.key_template is not None

    # ------------------------------------------------------------ what they come down to

    def announce_ready(self, work: Mapping[ReadyGroupName, int]) -> bool:
        """Ready groups have this many more tasks. True: a message to peers leaves as soon as the loop goes round."""
        connection = self._connection
        if connection.node is not None:
            connection.node.announce(work)
            return False
        return connection.peers is not None and connection.peers.announce_new(work)

    def announce_later(self, kinds: Iterable[str]) -> None:
        """Tasks of these kinds become due or expire later, so a node has to set its alarm."""
        if self._connection.node is not None:
            self._connection.node.alarm.look()
        elif self._connection.peers is not None:
            self._connection.peers.announce_scheduled(kinds)

    def announce_change(self) -> None:
        """Something may be possible now that was not, for kinds that are not known here."""
        if self._connection.node is not None:
            self._connection.node.look_everywhere()
        if self._connection.peers is not None:
            self._connection.peers.announce_control()
