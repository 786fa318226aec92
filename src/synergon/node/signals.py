"""Signals between the parts of a node.

Each part gets one `Signals` object and calls its methods. `NodeSignals` alone decides which parts a signal concerns. A
signal carries wake-ups and facts, never tasks to run. It does not raise and does not wait. The methods of `Signals` do
nothing: they are the list of signals, and serve parts that run without a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from synergon.model.claims import Claim
from synergon.model.limits import ServerChange
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.tasks import NewTask, Reaped
from synergon.node.attempts.attempt import Stop

if TYPE_CHECKING:
    from synergon.node.node import Node


class Signals:
    """The list of signals. Its methods do nothing."""

    # ------------------------------------------------------------ tasks

    def ready(self, kinds: Iterable[str]) -> None:
        """Tasks became ready. `kinds` has the kind of each, so a kind may occur several times."""

    def due_in(self, seconds: float) -> None:
        """A task is due after `seconds`, or the alarm must check then for another reason."""

    def moment_passed(self) -> None:
        """The store's clock has passed a moment, such as the end of a back-off, after which more tasks may be
        claimable."""

    def claimed(self, claims: list[Claim]) -> None:
        """The scheduler has claimed these tasks. They start now."""

    def ended(self, ids: Collection[int]) -> None:
        """Attempts of these tasks have ended here, and the store has their outcomes."""

    def ended_unrun(self, ids: Collection[int]) -> None:
        """These tasks have ended without an attempt on this node."""

    def expired(self, ids: Collection[int]) -> None:
        """These tasks have ended because they were not started in time, or because of a dependency."""

    def reaped(self, tasks: Sequence[Reaped]) -> None:
        """These tasks were taken from dead nodes."""

    def children(self, tasks: Iterable[NewTask]) -> None:
        """An attempt has enqueued these tasks with its success."""

    # ------------------------------------------------------------ capacity

    def capacity_freed(self) -> None:
        """More tasks may fit on the node than before: an attempt has ended, or running tasks may be preempted again."""

    def exchangeable(self) -> None:
        """An outcome waits for the next claim, to be exchanged."""

    def permits_freed(self, kinds: Iterable[str | None]) -> None:
        """Tasks of these kinds have ended, and the store has their outcomes: their permits are free."""

    def servers_changed(self, changes: Collection[ServerChange]) -> None:
        """These servers were taken out of service, or are back."""

    def surplus(self, kinds: Iterable[str]) -> None:
        """There may be more ready tasks of these kinds than this node can take."""

    def reserved(self, task_id: int) -> None:
        """This node has reserved capacity for the task."""

    def accepted(self, kind: str) -> None:
        """A task of the kind was accepted (`can_accept`), or `can_accept` must be called again."""

    def rejected(self, kind: str, count: int) -> None:
        """This node has rejected this number of ready tasks of the kind."""

    # ------------------------------------------------------------ the node itself

    def nodes_read(self, nodes: list[NodeRecord]) -> None:
        """The rows of all nodes were read."""

    def joined(self) -> None:
        """The node has registered, under a new id."""

    def found_cordoned(self) -> None:
        """The store says that this node is cordoned."""

    def cordon_changed(self) -> None:
        """The node was cordoned or uncordoned, or is to drain."""

    def stop_requested(self) -> None:
        """An operator action stops this node."""


class ResultWaiters(Protocol):
    """The interface of a node to the callers in this process that wait for results."""

    def recheck(self, ids: Iterable[int]) -> None:
        """Check these tasks: they may have ended."""


class Host(Protocol):
    """The worker that contains the node."""

    def _stop_soon(self) -> None:
        """Start to stop the node."""


class NodeSignals(Signals):
    """Forwards each signal to the parts of one node. All parts exist before the first signal."""

    def __init__(self, node: Node, waiters: ResultWaiters, host: Host | None) -> None:
        self._node = node
        self._waiters = waiters
        self._host = host

    # ------------------------------------------------------------ tasks

    def ready(self, kinds: Iterable[str]) -> None:
        """Wake the scheduler, and send hints about tasks that do not fit here. Their queues are not known."""
        self._node.announce({(kind, None, KIND_DEFAULT): count for kind, count in Counter(kinds).items()})

    def due_in(self, seconds: float) -> None:
        """Set the alarm."""
        self._node.alarm.due_in(seconds)

    def moment_passed(self) -> None:
        """Wake the scheduler for kinds with a provider: the back-off of a server may have ended."""
        self._node.scheduler.wake(self._node.permits.pooled)

    def claimed(self, claims: list[Claim]) -> None:
        """Start the attempts. If the node was cordoned, stopped or lost its lease while the claim was in flight, hand
        them back."""
        node = self._node
        node.hints.started(claims, node.id)
        if node.permits.rated and any(claim.kind in node.permits.rated for claim in claims):
            node.alarm.check_now()  # the next start of the rate is known now
        if node.permits.batch_waits:  # tasks that these batches have left may be due then
            for kind in node.permits.batch_waits.keys() & {claim.kind for claim in claims}:
                node.alarm.due_in(node.permits.batch_waits[kind])
        lease = node.membership.lease
        if node.scheduler.may_claim and lease is not None and not lease.is_over:
            attempts = node.runner.admit(claims)
            if any(claim.has_dependencies for claim in claims):
                attempts = node.dependencies.hold_back(attempts)
            node.slots.submit(attempts)
            if node.canceller.requested_before_start:
                node.canceller.claimed(claim.id for claim in claims)
        else:
            node.hand_back(claims)

    def ended(self, ids: Collection[int]) -> None:
        """Notify the waiters here, the engines that wait for the tasks, and the preemption."""
        self._waiters.recheck(ids)
        self._node.hints.ended(ids)
        if self._node.preemption.is_needed:
            self._node.preemption.outcomes_applied(ids)

    def ended_unrun(self, ids: Collection[int]) -> None:
        """Notify waiters everywhere. Wake all kinds, because a group of these tasks may have ended."""
        if ids:
            self._node.scheduler.wake_all()
            self._node.alarm.check_now()
        self._waiters.recheck(ids)
        self._node.hints.ended_unrun(ids)

    def expired(self, ids: Collection[int]) -> None:
        """Notify waiters everywhere, and publish events."""
        self.ended_unrun(ids)
        self._node.hooks.expired(list(ids), self._node.store.get)

    def reaped(self, tasks: Sequence[Reaped]) -> None:
        """Publish events of these tasks."""
        if self._node.hooks.feed.subscribers:
            self._node.hooks.feed.reaped(list(tasks))

    def children(self, tasks: Iterable[NewTask]) -> None:
        """Check whether any node can run these tasks; if none can, a warning is logged."""
        if self._node.children_to_check is not None:
            self._node.children_to_check.note(tasks)

    # ------------------------------------------------------------ capacity

    def capacity_freed(self) -> None:
        """Wake the scheduler, the shutdown and the idle hooks, so that they check again."""
        node = self._node
        node.scheduler.capacity_freed()
        if node.shutdown.is_waiting:
            node.shutdown.attempt_ended()
        if node.idle_hooks.hooks:
            node.idle_hooks.check_soon()

    def exchangeable(self) -> None:
        """Wake the scheduler, so that it sends the outcome with a claim."""
        self._node.scheduler.claim_soon()

    def permits_freed(self, kinds: Iterable[str | None]) -> None:
        """Wake the kinds of this node that may take the permits. Where this node steps back, announce the permits to
        other nodes."""
        if not self._node.permits.is_needed:
            return
        freed = list(kinds)
        self._node.permits.note_freed(freed)
        left = self._node.scheduler.permits_freed(freed)
        if left:
            self._node.hints.freed(self._node.permits.names_of(left))

    def servers_changed(self, changes: Collection[ServerChange]) -> None:
        """Log and publish the changes. If servers are back, wake the kinds that run on them, here and on peers."""
        node = self._node
        node.server_probes.report(changes, node.id)
        if any(not change.is_out for change in changes):
            node.scheduler.wake(node.permits.pooled)
            node.hints.freed(node.permits.names_of(node.permits.pooled))

    def surplus(self, kinds: Iterable[str]) -> None:
        """Send hints about these kinds."""
        self._node.hints.offer_surplus(kinds)

    def reserved(self, task_id: int) -> None:
        """Send hints about the reservation."""
        self._node.hints.reserved(task_id)

    def accepted(self, kind: str) -> None:
        """Mark the kind as dirty."""
        self._node.scheduler.accepted(kind)

    def rejected(self, kind: str, count: int) -> None:
        """Send hints about the rejected tasks. If the reserved task is rejected, wake the kinds whose tasks did not
        fit."""
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
        """Send the peers a hint that the node has joined."""
        self._node.announce_join()

    def found_cordoned(self) -> None:
        """Cordon the node."""
        self._node.cordon.found_cordoned()

    def cordon_changed(self) -> None:
        """Publish the new status at once. If the node is cordoned, hand back claimed tasks that have not started."""
        if self._node.cordon.is_cordoned:
            self._node.runner.stop_waiting(Stop.CORDON)
        self._node.status_publisher.update()
        self._node.membership.renew_soon()

    def stop_requested(self) -> None:
        """Stop the worker that contains this node."""
        if self._host is not None:
            self._host._stop_soon()
