"""The signals of a node: which parts each signal concerns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from synergon.model.claims import Claim
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.tasks import NewTask, Reaped
from synergon.node.attempts.attempt import Stop
from synergon.node.signals import Signals

if TYPE_CHECKING:
    from synergon.node.node import Node


class NodeSignals(Signals):
    """Passes each signal on to the parts of one node. The parts exist before the first signal comes."""

    def __init__(self, node: Node, *, on_ended: Callable[[Iterable[int]], None], on_stop: Callable[[], None]) -> None:
        self._node = node
        self._on_ended = on_ended
        self._on_stop = on_stop

    # ------------------------------------------------------------ tasks

    def ready(self, kinds: Iterable[str]) -> None:
        """Wake the scheduler, and send hints about what does not fit here; the queues are not known."""
        self._node.announce({(kind, None, KIND_DEFAULT): count for kind, count in Counter(kinds).items()})

    def due_in(self, seconds: float) -> None:
        """Set the alarm."""
        self._node.alarm.due_in(seconds)

    def moment_passed(self) -> None:
        """A server may be in service again."""
        self._node.scheduler.wake(self._node.permits.pooled)

    def claimed(self, claims: list[Claim]) -> None:
        """Start the attempts, unless the node was cordoned, stopped or lost its lease while the claim was in flight."""
        node = self._node
        node.hints.started(claims)
        if node.permits.rated and any(claim.kind in node.permits.rated for claim in claims):
            node.alarm.look()  # the next start of the rate is known now
        if node.scheduler.may_claim and node.membership.may_start:
            node.slots.submit(node.runner.admit(claims))
            node.canceller.claimed(claim.id for claim in claims)
        else:
            node.give_back(claims)

    def ended(self, ids: Collection[int]) -> None:
        """Tell the waiters here and the engines that enqueued the tasks."""
        self._on_ended(ids)
        self._node.hints.ended(ids)
        self._node.runner.preemption.returned(ids)

    def ended_unrun(self, ids: Collection[int]) -> None:
        """Tell waiters everywhere; a group that waited for these may have ended, now or at a later moment."""
        if ids:
            self._node.scheduler.wake_all()
            self._node.alarm.look()
        self._on_ended(ids)
        self._node.hints.ended_unrun(ids)

    def expired(self, ids: Collection[int]) -> None:
        """Tell waiters and hooks."""
        self.ended_unrun(ids)
        self._node.hooks.expired(list(ids), self._node.store.get)

    def reaped(self, tasks: Sequence[Reaped]) -> None:
        """Tell subscribers."""
        self._node.hooks.feed.reaped(list(tasks))

    def children(self, tasks: Iterable[NewTask]) -> None:
        """Have the warning about tasks that no node can run look at them."""
        self._node.children_to_check.note(tasks)

    # ------------------------------------------------------------ capacity

    def capacity_freed(self) -> None:
        """More can be claimed; and perhaps the last execution has ended."""
        self._node.scheduler.capacity_freed()
        self._node.shutdown.look()
        self._node.idle_hooks.look()

    def permits_freed(self, kinds: Iterable[str | None]) -> None:
        """Wake the kinds that may take them, or announce them where this node steps back."""
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
        """Send hints; what was reserved for a refused task is free for others."""
        self._node.hints.rejected(kind, count)
        reserved = self._node.reservation.reserved
        if reserved is not None and self._node.acceptance.is_rejected(reserved.kind, reserved.id):
            self._node.scheduler.look_at_unfit()

    # ------------------------------------------------------------ the node itself

    def nodes_read(self, nodes: list[NodeRecord]) -> None:
        """Update the peer directory, the cordon and the contested limits."""
        self._node.hints.learn(nodes)
        self._node.cordon.learn(nodes, self._node.id)
        self._node.handle_nodes(nodes)

    def joined(self) -> None:
        """Introduce the node to its peers."""
        self._node.say_hello()

    def found_cordoned(self) -> None:
        """Stop claiming."""
        self._node.cordon.found_cordoned()

    def cordon_changed(self) -> None:
        """Publish it at once; what is claimed and has not started does not start."""
        if self._node.cordon.is_cordoned:
            self._node.runner.stop_waiting(Stop.CORDON)
        self._node.status_publisher.update()
        self._node.membership.renew_soon()

    def stop_requested(self) -> None:
        """Stop the worker that contains this node."""
        self._on_stop()
