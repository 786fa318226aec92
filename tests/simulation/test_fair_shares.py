"""Tenants have their turns whatever goes wrong."""

from __future__ import annotations

import os
from collections.abc import Collection
from heapq import heappush
from typing import Final

import pytest
from tests.simulation.fair_world import FairWorld
from tests.simulation.known_seeds import check_caught
from tests.simulation.mutants import Mutant, Patch

from synergon.stores.memory.ready_groups import ReadyGroup
from synergon.stores.memory.row import Row
from synergon.stores.memory.session import Session
from synergon.stores.memory.tables import Tables
from synergon.stores.rows import TenantName
from synergon.stores.rules import fair_shares

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 12
SLICES: Final = 4


@pytest.mark.parametrize("first", range(SLICES))
def test_turns_hold_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = FairWorld(seed).run()
        assert report.broken is None, f"python -m tests.simulation --seed {seed}: {report.broken}"


def due_tasks_without_a_turn(patch: Patch) -> None:
    """A task that becomes ready later than at its insert gets no turn."""

    async def give_none(session: Session, ids: Collection[int]) -> None:
        pass

    patch.setattr(fair_shares, "tag", give_none)


def one_turn_for_all_tasks_of_a_tenant(patch: Patch) -> None:
    """All tasks of a tenant get the present turn, so that a tenant with many tasks starts them all at once."""

    def the_first(self: fair_shares._Turns, tenant: TenantName, step: int) -> int:
        return self._starts[tenant[:2]]

    patch.setattr(fair_shares._Turns, "next", the_first)


def turn_lost_at_retry(patch: Patch) -> None:
    """A task that runs again has to queue up again."""
    requeue = Tables.requeue

    def without_turn(self: Tables, row: Row, run_at: int, now: int) -> None:
        requeue(self, row, run_at, now)
        if row.fair_tag:
            self.set_fair_tag(row, row.fair_tag + 10**9)

    patch.setattr(Tables, "requeue", without_turn)


def claims_by_age(patch: Patch) -> None:
    """Claims ignore turns: each ready group is in the order of ids."""

    def by_age(self: ReadyGroup, row: Row) -> None:
        heappush(self._heap, (-row.priority, 0, row.id, row))

    def counts(self: ReadyGroup, row: Row, priority: int, tag: int = 0) -> bool:
        return valid(self, row, priority, row.fair_tag)

    valid = ReadyGroup._counts
    patch.setattr(ReadyGroup, "add", by_age)
    patch.setattr(ReadyGroup, "_counts", counts)


MUTANTS: Final[tuple[Mutant, ...]] = (
    due_tasks_without_a_turn,
    one_turn_for_all_tasks_of_a_tenant,
    turn_lost_at_retry,
    claims_by_age,
)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditor_of_turns_catches(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(FairWorld, mutate, monkeypatch)
