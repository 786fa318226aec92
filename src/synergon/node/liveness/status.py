"""Status: what a node publishes about itself when it renews its lease.

The event loop encodes the status. The thread of the lease reads only the encoded bytes, and never waits for the loop
for long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from synergon.model.node_status import HOLDERS, PLAIN, HintStatus, NodeStatus, encode_status
from synergon.model.requirements import PROCESS
from synergon.node.attempts.attempt import Attempt
from synergon.node.claims.admission import Admission, kind_status
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.scheduler import Scheduler
from synergon.node.duties.cordon import Cordon


def node_status(
    admission: Admission,
    ledger: Ledger,
    running: Mapping[int, Attempt],
    scheduler: Scheduler,
    departure: str | None,
    schedules: Iterable[str] = (),
) -> NodeStatus:
    """The current status of the node. Safe from any thread; a concurrent change may appear only in the next status."""
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
        schedules=tuple(sorted(schedules)),
        holders=_holders(list(running.values())),
    )


def _holders(running: Iterable[Attempt]) -> dict[str, tuple[int, ...]]:
    shares: dict[str, list[tuple[int, int]]] = {}
    for attempt in running:
        for name, amount in attempt.cost.items():
            if name == PROCESS and attempt.waits_for_child:
                continue
            shares.setdefault(name, []).append((-amount, attempt.claim.id))
    return {name: tuple(task_id for _, task_id in sorted(held)[:HOLDERS]) for name, held in shares.items()}


class StatusPublisher:
    """The latest encoded status of the node. It is not updated while the event loop is blocked."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        admission: Admission,
        ledger: Ledger,
        running: Mapping[int, Attempt],
        scheduler: Scheduler,
        cordon: Cordon,
        schedules: Collection[str] = (),
        *,
        lease_seconds: float = 0.0,
        hint_status: Callable[[], HintStatus] = HintStatus,
    ) -> None:
        self._loop = loop
        self._admission = admission
        self._ledger = ledger
        self._running = running
        self._scheduler = scheduler
        self._cordon = cordon
        self._schedules = schedules
        self._lease_seconds = lease_seconds
        self._hint_status = hint_status
        self.latest: bytes = b"{}"
        self.version: int = 0
        """How often the status has been updated."""

    def current(self) -> NodeStatus:
        """The current status, not encoded. Cheap, and safe from any thread."""
        status = node_status(
            self._admission, self._ledger, self._running, self._scheduler, self._cordon.departure, self._schedules
        )
        return replace(status, lease_seconds=self._lease_seconds)

    def update(self) -> bytes:
        """Encode the current status and return it. Only on the event loop."""
        self.latest = encode_status(replace(self.current(), hints=self._hint_status()))
        self.version += 1
        return self.latest

    def request_update(self) -> None:
        """Schedule `update` on the event loop. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is exiting
            self._loop.call_soon_threadsafe(self.update)
