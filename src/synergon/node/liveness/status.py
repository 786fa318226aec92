"""Status: what a node publishes about itself with every renewal of its lease.

The event loop encodes the status; the lease's thread reads only the encoded bytes and never waits for the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from synergon.model.node_status import HOLDERS, PLAIN, NodeStatus, encode_status
from synergon.node.attempts.attempt import Attempt
from synergon.node.claims.admission import Admission, kind_status
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.scheduler import Scheduler
from synergon.node.duties.cordon import Cordon


def node_status(
    admission: Admission, ledger: Ledger, running: Mapping[int, Attempt], scheduler: Scheduler, departure: str | None
) -> NodeStatus:
    """The current status of the node. Safe from any thread; a concurrent change appears in the next status."""
    is_reserving = not admission.drops_reservation
    kinds = {kind_request.kind: kind_status(kind_request, task_type) for kind_request, task_type in admission.kinds()}
    return NodeStatus(
        is_published=True,
        labels=tuple(sorted(admission.labels)),
        totals=dict(ledger.totals),
        free=ledger.unpromised,
        yielding=admission.yielding,
        backed_off=admission.backed_off,
        shares=ledger.shares,
        held=admission.held if is_reserving else {},
        reserved_task=admission.reserved.id if is_reserving and admission.reserved is not None else None,
        reserved_kind=admission.reserved.kind if is_reserving and admission.reserved is not None else None,
        patience=admission.patience if is_reserving else None,
        brief=tuple(admission.brief) if is_reserving else (),
        slots_free=max(ledger.free, 0),
        commands_free=ledger.commands_free,
        taken=ledger.taken,
        promised=tuple(task_id for task_id, attempt in list(running.items()) if attempt.capacity_wait is not None),
        running={kind: count for kind in list(kinds) if (count := ledger.count(kind))},
        is_cordoned=scheduler.is_cordoned,
        is_stopping=not scheduler.is_open,
        departure=departure,
        kinds={kind: state for kind, state in kinds.items() if state != PLAIN},
        holders=_holders(list(running.values())),
    )


def _holders(running: Iterable[Attempt]) -> dict[str, tuple[int, ...]]:
    shares: dict[str, list[tuple[int, int]]] = {}
    for attempt in running:
        for name, amount in attempt.cost.items():
            shares.setdefault(name, []).append((-amount, attempt.claim.id))
    return {name: tuple(task_id for _, task_id in sorted(held)[:HOLDERS]) for name, held in shares.items()}


class StatusPublisher:
    """The latest encoded status of the node. It gets older while the event loop is blocked."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        admission: Admission,
        ledger: Ledger,
        running: Mapping[int, Attempt],
        scheduler: Scheduler,
        cordon: Cordon,
    ) -> None:
        self._loop = loop
        self._admission = admission
        self._ledger = ledger
        self._running = running
        self._scheduler = scheduler
        self._cordon = cordon
        self.latest = b"{}"
        self.version = 0
        """How often the status has been updated."""

    def current(self) -> NodeStatus:
        """The current status, not encoded. Cheap, and safe from any thread."""
        return node_status(self._admission, self._ledger, self._running, self._scheduler, self._cordon.departure)

    def update(self) -> bytes:
        """Encode the current status and return it. On the event loop only."""
        self.latest = encode_status(self.current())
        self.version += 1
        return self.latest

    def request_update(self) -> None:
        """Have the event loop call `update` soon. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is exiting
            self._loop.call_soon_threadsafe(self.update)
