"""Signals: what the parts of a node tell each other.

A part is given one `Signals` object and calls it; which parts a signal concerns is decided in one place, the node's own
signals (`node_signals`). A signal carries wake-ups and facts, never tasks to run; it does not raise and does not wait.
The methods here do nothing: they are the list of signals, and serve parts that run without a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from synergon.model.claims import Claim
from synergon.model.nodes import NodeRecord
from synergon.model.tasks import NewTask, Reaped


class Signals:
    """Does nothing with any signal."""

    # ------------------------------------------------------------ tasks

    def ready(self, kinds: Iterable[str]) -> None:
        """One task became ready for each time that a kind is named."""

    def due_in(self, seconds: float) -> None:
        """A task is due, or something else has to be looked at, after `seconds`."""

    def moment_passed(self) -> None:
        """The store's clock has reached a moment at which something may be possible that was not."""

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
        """An attempt has enqueued these with its success."""

    # ------------------------------------------------------------ capacity

    def capacity_freed(self) -> None:
        """An execution has ended: its slot and resources are free."""

    def permits_freed(self, kinds: Iterable[str | None]) -> None:
        """Tasks of these kinds have ended, and the store knows: their permits are free."""

    def surplus(self, kinds: Iterable[str]) -> None:
        """There may be more ready tasks of these kinds than this node can take."""

    def reserved(self, task_id: int) -> None:
        """This node has reserved capacity for the task."""

    def accepted(self, kind: str) -> None:
        """A task of the kind was accepted (`can_accept`), or is to be asked about again."""

    def rejected(self, kind: str, count: int) -> None:
        """This node does not accept so many ready tasks of the kind."""

    # ------------------------------------------------------------ the node itself

    def nodes_read(self, nodes: list[NodeRecord]) -> None:
        """The node table, as it was just read."""

    def joined(self) -> None:
        """The node has registered, under a new id."""

    def found_cordoned(self) -> None:
        """The store says that this node is cordoned."""

    def cordon_changed(self) -> None:
        """The node was cordoned or uncordoned, or drains."""

    def stop_requested(self) -> None:
        """An operator action wants this node to stop."""
