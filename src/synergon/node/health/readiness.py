"""Readiness: whether a worker can run tasks now, and if not, why.

Another thread reads everything here, so a worker answers even while the event loop of its node is blocked. No check
calls the store: the lease is renewed there every sixth of its length, so the last answer of the store is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergon.model.record import Record

if TYPE_CHECKING:
    from synergon.node.node import Node

BLOCKED_SECONDS: Final = 2.0
"""After how many seconds without an answer the event loop counts as blocked."""
LATE_BEATS: Final = 3
"""After how many beats without a renewal the lease counts as late, even if no renewal has failed."""
LATE_SECONDS: Final = 5.0
"""A sweep or a claim is late if it ends this many seconds after its interval; with a long lease, half of the lease."""


class WorkerHealth(Record, frozen=True, kw_only=True):
    """The answer to `/ready`."""

    ready: bool
    reasons: tuple[str, ...]
    """Why the worker is not ready. Empty if it is."""
    node: str
    cordoned: bool = False
    """Whether an operator has cordoned the node. A cordoned node still counts as ready."""


class Readiness:
    """Knows whether one worker is ready. While there is no node, the worker writes the reason to `start_trouble`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.node: Node | None = None
        self.start_trouble = "the worker has not started yet"
        """Why there is no node yet."""
        self.is_stopping = False

    def health(self) -> WorkerHealth:
        """The current health of the worker. Safe from any thread."""
        node = self.node
        reasons = tuple(self._reasons(node))
        is_cordoned = node is not None and node.cordon.is_cordoned
        return WorkerHealth(ready=not reasons, reasons=reasons, node=self._name, cordoned=is_cordoned)

    @property
    def is_stuck(self) -> bool:
        """Whether only a restart may help: the event loop is blocked, or a loop of the node does not move although the
        store answers."""
        node = self.node
        if node is None or self.is_stopping or node.is_stopping:
            return False
        return bool(_blocked(node)) or (not _store_troubles(node) and bool(_late(node)))

    def _reasons(self, node: Node | None) -> list[str]:
        if self.is_stopping or (node is not None and node.is_stopping):
            return ["the worker is stopping"]
        if node is None:
            return [self.start_trouble]
        return [*_blocked(node), *_store_troubles(node), *_late(node)]


def _blocked(node: Node) -> list[str]:
    watchdog = node.membership.watchdog
    seconds = 0.0 if watchdog is None else watchdog.blocked_seconds
    return [f"the event loop has been blocked for {seconds:.1f} s"] if seconds > BLOCKED_SECONDS else []


def _store_troubles(node: Node) -> list[str]:
    lease = node.membership.lease
    if lease is None or lease.is_over:
        return ["the lease is lost; the node stops its tasks and joins again"]
    found = [] if lease.trouble is None else [f"the lease cannot be renewed: {lease.trouble}"]
    if node.outage.trouble is not None and not found:
        found.append(f"the store is away: {node.outage.trouble}")
    if node.completer.is_store_failing:
        found.append("outcomes cannot be written to the store; they wait")
    return found + [
        f"the {duty.name} cannot use the store: {duty.trouble}"
        for duty in node.regular_duties
        if duty.trouble is not None and not found
    ]


def _late(node: Node) -> list[str]:
    now, lease = node.clock.monotonic(), node.membership.lease
    found: list[str] = []
    if lease is not None and lease.age_seconds > LATE_BEATS * lease.beat_seconds:
        found.append(
            f"the lease was renewed {lease.age_seconds:.1f} s ago; it should be every {lease.beat_seconds:.1f} s"
        )
    patience = node.sweep_seconds + max(LATE_SECONDS, node.lease_seconds / 2)
    return found + [
        f"the last step of the {duty.name} ended {now - duty.succeeded_at:.1f} s ago; it should every {patience:.1f} s"
        for duty in node.regular_duties
        if now - duty.succeeded_at > patience
    ]
