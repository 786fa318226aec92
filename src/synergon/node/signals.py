"""Signals between the parts of a node.

A part is given one `Signals` object and calls it; which parts a signal concerns is decided in one place, `NodeSignals`.
A signal carries wake-ups and facts, never tasks to run; it does not raise and does not wait. The methods of `Signals`
do nothing: they are the list of signals, and serve parts that run without a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from synergon.model.claims import Claim
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.tasks import NewTask, Reaped
from synergon.node.attempts.attempt import Stop

if TYPE_CHECKING:
    from synergon.node.node import Node


class Signals:
    """Does nothing with any signal."""

    # ------------------------------------------------------------ tasks

    def ready(self, kinds: Iterable[str]) -> None:
        """One task became ready for each time that a kind is named."""

    def due_in(self, seconds: float) -> None:
        """A task is due, or another check is needed, after `seconds`."""

    def moment_passed(self) -> None:
        """The store's clock has passed a moment, such as the end of a back-off, after which more tasks may be
        claimable."""

    def claimed(self, claims: list[Claim]) -> None:
        """The scheduler has claimed these tasks: they start."""

    def ended(self, ids: Collection[int]) -> None:
        """Attempts of these tasks have ended here, and the store has their outcomes."""

    def ended_unrun(self, ids: Collection[int]) -> None:
        """These tasks have ended without an attempt on this node."""

    def expired(self, ids: Collection[int]) -> None:
        """These tasks have ended because nothing started them in time."""

    def reaped(self, tasks: Sequence[Reaped]) -> None:
        """These tasks were taken back from dead nodes."""

    def children(self, tasks: Iterable[NewTask]) -> None:
        """An attempt has enqueued these tasks with its success."""

    # ------------------------------------------------------------ capacity

    def capacity_freed(self) -> None:
        """More may fit on the node than before: an execution has ended, or running tasks may be preempted again."""

    def exchangeable(self) -> None:
        """An outcome waits for the next claim."""

    def permits_freed(self, kinds: Iterable[str | None]) -> None:
        """Tasks of these kinds have ended, and the store knows: their permits are free."""

    def surplus(self, kinds: Iterable[str]) -> None:
        """There may be more ready tasks of these kinds than this node can take."""

    def reserved(self, task_id: int) -> None:
        """This node has reserved capacity for the task."""

    def accepted(self, kind: str) -> None:
        """A task of the kind was accepted (`can_accept`), or is to be asked about again."""

    def rejected(self, kind: str, count: int) -> None:
        """This node has rejected this number of ready tasks of the kind."""

    # ------------------------------------------------------------ the node itself

    def nodes_read(self, nodes: list[NodeRecord]) -> None:
        """The node table was read."""

    def joined(self) -> None:
        """The node has registered, under a new id."""

    def found_cordoned(self) -> None:
        """The store says that this node is cordoned."""

    def cordon_changed(self) -> None:
        """The node was cordoned or uncordoned, or drains."""

    def stop_requested(self) -> None:
        """An operator action wants this node to stop."""


class ResultWaiters(Protocol):
    """Callers in this process that wait for results, as far as a node needs them."""

    def recheck(self, ids: Iterable[int]) -> None:
        """Check these tasks, which may have ended."""


class Host(Protocol):
    """What contains the node."""

    def stop_soon(self) -> None:
        """Stop the node."""


class NodeSignals(Signals):
    """Forwards each signal to the parts of one node. The parts exist before the first signal."""

    def __init__(self, node: Node, waiters: ResultWaiters, host: Host | None) -> None:
        self._node = node
        self._waiters = waiters
        self._host = host

    # ------------------------------------------------------------ tasks

    def ready(self, kinds: Iterable[str]) -> None:
        """Wake the scheduler, and send hints about what does not fit here; the queues are not known."""
        self._node.announce({(kind, None, KIND_DEFAULT): count for kind, count in Counter(kinds).items()})

    def due_in(self, seconds: float) -> None:
        """Set the alarm."""
        self._node.alarm.due_in(seconds)

    def moment_passed(self) -> None:
        """Wake the scheduler: a server's back-off may have ended."""
        self._node.scheduler.wake(self._node.permits.pooled)

    def claimed(self, claims: list[Claim]) -> None:
        """Start the attempts, unless the node was cordoned, stopped or lost its lease while the claim was in flight."""
        node = self._node
        node.hints.started(claims)
        if node.permits.rated and any(claim.kind in node.permits.rated for claim in claims):
            node.alarm.check_now()  # the next start of the rate is known now
        lease = node.membership.lease
        if node.scheduler.may_claim and lease is not None and not lease.is_over:
            node.slots.submit(node.runner.admit(claims))
            if node.canceller.requested_before_start:
                node.canceller.claimed(claim.id for claim in claims)
        else:
            node.hand_back(claims)

    def ended(self, ids: Collection[int]) -> None:
        """Notify the waiters here and the engines that enqueued the tasks."""
        self._waiters.recheck(ids)
        self._node.hints.ended(ids)
        if self._node.preemption.is_needed:
            self._node.preemption.outcomes_applied(ids)

    def ended_unrun(self, ids: Collection[int]) -> None:
        """Notify waiters everywhere. A group that waited for these tasks may have ended."""
        if ids:
            self._node.scheduler.wake_all()
            self._node.alarm.check_now()
        self._waiters.recheck(ids)
        self._node.hints.ended_unrun(ids)

    def expired(self, ids: Collection[int]) -> None:
        """Notify waiters and call hooks."""
        self.ended_unrun(ids)
        self._node.hooks.expired(list(ids), self._node.store.get)

    def reaped(self, tasks: Sequence[Reaped]) -> None:
        """Publish events."""
        if self._node.hooks.feed.subscribers:
            self._node.hooks.feed.reaped(list(tasks))

    def children(self, tasks: Iterable[NewTask]) -> None:
        """Check whether any node can run them, for the warning."""
        if self._node.children_to_check is not None:
            self._node.children_to_check.note(tasks)

    # ------------------------------------------------------------ capacity

    def capacity_freed(self) -> None:
        """Wake the scheduler, and check whether the last attempt has ended."""
        node = self._node
        node.scheduler.capacity_freed()
        if node.shutdown.is_waiting:
            node.shutdown.attempt_ended()
        if node.idle_hooks.hooks:
            node.idle_hooks.check_soon()

    def exchangeable(self) -> None:
        """Wake the scheduler."""
        self._node.scheduler.claim_soon()

    def permits_freed(self, kinds: Iterable[str | None]) -> None:
        """Wake the kinds of this node that may take the permits; where this node steps back, announce them to other
        nodes."""
        if not self._node.permits.is_needed:
            return
        freed = list(kinds)
        self._node.permits.note_freed(freed)
        left = self._node.scheduler.permits_freed(freed)
        if left:
            self._node.hints.freed(self._node.permits.names_of(left))

    def surplus(self, kinds: Iterable[str]) -> None:
        """Send hints."""
        self._node.hints.offer_surplus(kinds)

    def reserved(self, task_id: int) -> None:
        """Send hints."""
        self._node.hints.reserved(task_id)

    def accepted(self, kind: str) -> None:
        """Wake the scheduler."""
        self._node.scheduler.accepted(kind)

    def rejected(self, kind: str, count: int) -> None:
        """Send hints. Capacity that was reserved for a rejected task is free for others."""
        self._node.hints.rejected(kind, count)
        reserved = self._node.reservation.reserved
        if reserved is not None and self._node.acceptance.is_rejected(reserved.kind, reserved.id):
            self._node.scheduler.wake_unfit()

    # ------------------------------------------------------------ the node itself

    def nodes_read(self, nodes: list[NodeRecord]) -> None:
        """Update the peer directory, the cordon and the contested limits."""
        self._node.hints.update_directory(nodes)
        self._node.cordon.check_node_table(nodes, self._node.id)
        self._node.handle_nodes(nodes)

    def joined(self) -> None:
        """Introduce the node to its peers."""
        self._node.announce_join()

    def found_cordoned(self) -> None:
        """Stop claiming."""
        self._node.cordon.found_cordoned()

    def cordon_changed(self) -> None:
        """Publish the new status at once, and hand back claimed tasks that have not started."""
        if self._node.cordon.is_cordoned:
            self._node.runner.stop_waiting(Stop.CORDON)
        self._node.status_publisher.update()
        self._node.membership.renew_soon()

    def stop_requested(self) -> None:
        """Stop the worker that contains this node."""
        if self._host is not None:
            self._host.stop_soon()
