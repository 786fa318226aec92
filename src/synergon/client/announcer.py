"""The announcer: notifies the node of this process, and the peers, of what this engine has changed in the store.

Announcements are hints: the sweep of a node finds tasks that were not announced.
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
    """Announces new, changed and ended tasks, and changes of limits, servers and queues."""

    def __init__(self, connection: Connection, kinds: Mapping[str, AnyTask]) -> None:
        self._connection = connection
        self._kinds = kinds

    # ------------------------------------------------------------ new tasks

    def announce_inserted(self, tasks: Sequence[NewTask], inserted: Sequence[Insertion]) -> bool:
        """Announce stored tasks. Returns True if a hint is sent in the next iteration of the event loop."""
        ready: dict[ReadyGroupName, int] = {}
        later: set[str] = set()
        waiting: set[str] = set()
        for task, insertion in zip(tasks, inserted, strict=True):
            if insertion.state == State.READY:
                group = (task.kind, task.queue, task.requirements)
                ready[group] = ready.get(group, 0) + 1
            if task.expires_in is not None or insertion.state == State.SCHEDULED:
                later.add(task.kind)
            elif insertion.state == State.WAITING and self._has_batches(task.kind):
                waiting.add(task.kind)
        if inserted and inserted[-1].completes_batch:  # a batch of any of these kinds
            for task in tasks:
                ready.setdefault((task.kind, None, KIND_DEFAULT), 1)
        is_hinted = self.announce_ready(ready)
        if later:
            self.announce_later(later)
        if waiting:
            self._announce_waiting(waiting)
        return is_hinted

    def _announce_waiting(self, kinds: Iterable[str]) -> None:
        """Announce that tasks of these kinds wait for their batches, which are due later."""
        node = self._connection.node
        if node is None:
            self.announce_later(kinds)
            return
        for kind in kinds:
            batch = self._kinds[kind].policy.batch
            assert batch is not None, "only kinds with batches are announced here"
            node.due_in(batch.wait_seconds)

    def _has_batches(self, kind: str) -> bool:
        known = self._kinds.get(kind)
        return known is not None and known.policy.batch is not None

    def announce_doubtful(self, tasks: Sequence[NewTask]) -> None:
        """Announce tasks whose insert was cancelled. The store may have them nevertheless."""
        self.announce_inserted(tasks, [Insertion(0, created=True, state=State.READY) for _ in tasks])
        self.announce_later({task.kind for task in tasks})

    def expect_commit(self) -> None:
        """Note that a caller's transaction will insert tasks. If the store does not announce its commit, nodes sweep
        often for a while."""
        connection = self._connection
        if connection.store.capabilities.listens:
            return
        if connection.node is not None:
            connection.node.watch()
        if connection.peers is not None:
            connection.peers.announce_control()

    # ------------------------------------------------------------ changed tasks

    def announce_moves(self, moves: Iterable[Moved]) -> None:
        """Announce what a cancel, retry or delete has changed."""
        done = [moved for moved in moves if moved.done]
        for moved in done:
            if moved.state is State.RUNNING:
                self._announce_cancel(moved)
        ready = Counter(moved.kind for moved in done if moved.state is State.READY and moved.kind is not None)
        if ready:
            self.announce_ready({(kind, None, KIND_DEFAULT): count for kind, count in ready.items()})
        ended = [moved.id for moved in done if moved.state in (None, State.CANCELLED)]
        for followed in (moved.follow_ups for moved in done if moved.follow_ups is not None):
            ended += followed.ended
            self.announce_ready({(kind, None, KIND_DEFAULT): 1 for kind in followed.ready})
        self._connection.waiters.recheck(ended)
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
        """Announce that tasks have left or changed their key queues: other tasks of these key queues may be ready
        now."""
        kinds = Counter(moved.kind for moved in moves if moved.kind is not None and self._has_key_queues(moved.kind))
        if kinds:
            self.announce_ready({(kind, None, KIND_DEFAULT): count for kind, count in kinds.items()})
            self.announce_later(kinds)

    def _has_key_queues(self, kind: str) -> bool:
        """Whether the kind may have key queues. True for a kind that is not registered here."""
        known = self._kinds.get(kind)
        return known is None or known.key_template is not None

    # ------------------------------------------------------------ announcements

    def announce_ready(self, work: Mapping[ReadyGroupName, int]) -> bool:
        """Announce how many tasks became ready, by ready group. Returns True if a hint is sent in the next iteration of
        the event loop."""
        connection = self._connection
        if connection.node is not None:
            connection.node.announce(work)
            return False
        return connection.peers is not None and connection.peers.announce_new(work)

    def announce_later(self, kinds: Iterable[str]) -> None:
        """Announce that tasks of these kinds become due or expire later, so that a node sets its alarm."""
        if self._connection.node is not None:
            self._connection.node.alarm.check_now()
        elif self._connection.peers is not None:
            self._connection.peers.announce_scheduled(kinds)

    def announce_change(self) -> None:
        """Announce a change after which tasks of any kind may be claimable."""
        if self._connection.node is not None:
            self._connection.node.check_everything()
        if self._connection.peers is not None:
            self._connection.peers.announce_control()
