"""Ways to break limits on purpose: what the auditor of limited worlds must notice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.simulation.mutants import Mutant, Patch

from synergon.model.claims import ClaimRequest, Claims
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.node.attempts.completer import Completer
from synergon.stores.memory import MemoryStore, attempts, key_queues
from synergon.stores.memory.key_queues import KeyQueue, KeyQueueName
from synergon.stores.memory.tables import Tables
from synergon.stores.rules.shared_capacity import UNLIMITED, SharedCapacity


def line_not_counted_again_after_an_end(patch: Patch) -> None:
    """What ends a task does not let the next of its line start."""
    finish, balance = attempts.finish, Tables._balance
    is_finishing = False

    def finish_only(tables: Tables, fenced_outcomes: Sequence[FencedOutcome], now: int) -> list[Verdict]:
        nonlocal is_finishing
        is_finishing = True
        try:
            return finish(tables, fenced_outcomes, now)
        finally:
            is_finishing = False

    def balance_otherwise(self: Tables, name: KeyQueueName | None, now: int) -> None:
        if not is_finishing:
            balance(self, name, now)

    patch.setattr(attempts, "finish", finish_only)
    patch.setattr(Tables, "_balance", balance_otherwise)


def limit_of_a_line_ignored(patch: Patch) -> None:
    """Whoever is next in a line is let in, full or not."""
    give_places = key_queues._give_permits

    def give_one_more(tables: Tables, key_queue: KeyQueue, permits: int) -> None:
        give_places(tables, key_queue, permits + 1)

    patch.setattr(key_queues, "_give_permits", give_one_more)


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
    check_lease, exchange = attempts.check_lease, MemoryStore.exchange
    is_exchanging = False

    def check_unless_exchanging(tables: Tables, node_id: str, now: int) -> None:
        if not is_exchanging or node_id not in tables.nodes:
            check_lease(tables, node_id, now)

    async def exchange_anyway(
        self: MemoryStore, outcomes: Sequence[FencedOutcome], request: ClaimRequest
    ) -> tuple[list[Verdict], Claims]:
        nonlocal is_exchanging
        is_exchanging = True
        try:
            return await exchange(self, outcomes, request)
        finally:
            is_exchanging = False

    patch.setattr(attempts, "check_lease", check_unless_exchanging)
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
    line_not_counted_again_after_an_end,
    limit_of_a_line_ignored,
    shared_limit_ignored,
    exchanged_outcomes_dropped_in_outages,
    exchange_without_lease,
    exchange_without_limits,
)
