"""Ways to break limits on purpose: what the auditor of limited worlds must notice."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Final

from tests.simulation.mutants import Mutant, Patch

from synergon.model.claims import ClaimRequest, Claims
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.node.attempts.completer import Completer
from synergon.stores.memory import MemoryStore
from synergon.stores.memory.ready_rows import ReadyRows
from synergon.stores.memory.session import Session
from synergon.stores.rows import KeyQueueCounts
from synergon.stores.rules import finish, follow_ups, key_queues
from synergon.stores.rules.shared_capacity import UNLIMITED, SharedCapacity
from synergon.stores.session import Moves


def key_queue_not_balanced_after_an_end(patch: Patch) -> None:
    """The end of a task does not let the next task of its key queue start."""

    async def draw_without_key_queues(session: Session) -> Moves:
        session.touched.key_queues.clear()
        return await follow_ups.apply_follow_ups(session)

    patch.setattr(finish, "follow_ups", SimpleNamespace(apply_follow_ups=draw_without_key_queues))


def limit_of_a_key_queue_ignored(patch: Patch) -> None:
    """One task more than the limit allows is let in."""
    free = key_queues._Balance._free

    def one_more(self: key_queues._Balance, counts: KeyQueueCounts) -> int:
        return free(self, counts) + 1

    patch.setattr(key_queues._Balance, "_free", one_more)


def shared_limit_ignored(patch: Patch) -> None:
    """A claim takes tasks that have no license."""
    patch.setattr(SharedCapacity, "_remaining", lambda self, name: UNLIMITED)


def exchanged_outcomes_dropped_in_outages(patch: Patch) -> None:
    """An exchange that failed was the only try to write its outcomes."""

    def forget(self: Completer) -> None:
        self._exchanging = []
        self._note_flushed()

    patch.setattr(Completer, "not_exchanged", forget)


def exchange_without_lease(patch: Patch) -> None:
    """An exchange claims for a node whose lease is over."""
    is_cordoned, exchange = ReadyRows.is_cordoned, MemoryStore.exchange
    is_exchanging = False

    async def has_a_lease(self: ReadyRows, node_id: str) -> bool | None:
        if is_exchanging and node_id in self._tables.nodes:
            return self._tables.nodes[node_id].cordoned_at is not None
        return await is_cordoned(self, node_id)

    async def exchange_anyway(
        self: MemoryStore, outcomes: Sequence[FencedOutcome], request: ClaimRequest
    ) -> tuple[list[Verdict], Claims]:
        nonlocal is_exchanging
        is_exchanging = True
        try:
            return await exchange(self, outcomes, request)
        finally:
            is_exchanging = False

    patch.setattr(ReadyRows, "is_cordoned", has_a_lease)
    patch.setattr(MemoryStore, "exchange", exchange_anyway)


def exchange_without_limits(patch: Patch) -> None:
    """The claim of an exchange does not count what others hold of a limit."""
    left, exchange = SharedCapacity._remaining, MemoryStore.exchange
    is_exchanging = False

    def left_unless_exchanging(self: SharedCapacity, name: str) -> int:
        return UNLIMITED if is_exchanging else left(self, name)

    async def exchange_freely(
        self: MemoryStore, outcomes: Sequence[FencedOutcome], request: ClaimRequest
    ) -> tuple[list[Verdict], Claims]:
        nonlocal is_exchanging
        is_exchanging = True
        try:
            return await exchange(self, outcomes, request)
        finally:
            is_exchanging = False

    patch.setattr(SharedCapacity, "_remaining", left_unless_exchanging)
    patch.setattr(MemoryStore, "exchange", exchange_freely)


LIMIT_MUTANTS: Final[tuple[Mutant, ...]] = (
    key_queue_not_balanced_after_an_end,
    limit_of_a_key_queue_ignored,
    shared_limit_ignored,
    exchanged_outcomes_dropped_in_outages,
    exchange_without_lease,
    exchange_without_limits,
)
