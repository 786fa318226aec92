"""Bounds on queues and providers hold whatever goes wrong, and no task waits below them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import pytest
from tests.simulation.bounded_world import BoundedWorld
from tests.simulation.known_seeds import check_caught
from tests.simulation.mutants import Mutant, Patch

from synergon.model.requirements import bound_cost
from synergon.node.attempts import runner
from synergon.node.claims.scheduler import Scheduler
from synergon.stores.rules import node_capacity

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 12
SLICES: Final = 4


@pytest.mark.parametrize("first", range(SLICES))
def test_bounds_hold_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = BoundedWorld(seed).run()
        assert report.broken is None, f"python -m tests.simulation --seed {seed}: {report.broken}"


def bounds_not_counted_by_claims(patch: Patch) -> None:
    """A claim takes tasks beyond the bounds."""
    patch.setattr(node_capacity, "bound_cost", lambda bounds, queue: {})


def bounds_of_queues_not_counted_by_claims(patch: Patch) -> None:
    """A claim takes tasks beyond the bounds of queues."""

    def without_queues(bounds: Iterable[str], queue: str | None) -> dict[str, int]:
        return {name: amount for name, amount in counted(bounds, queue).items() if name.startswith("provider ")}

    counted = bound_cost
    patch.setattr(node_capacity, "bound_cost", without_queues)


def running_tasks_not_counted(patch: Patch) -> None:
    """The ledger does not count what runs under a bound."""
    patch.setattr(runner, "bound_cost", lambda bounds, queue: {})


def held_back_tasks_forgotten(patch: Patch) -> None:
    """The node does not look again at what a bound held back, not even in its sweep."""
    note_unfit, wake = Scheduler._note_unfit, Scheduler.wake
    held_back: set[tuple[Scheduler, str]] = set()

    def forget(self: Scheduler, request, claims, taken) -> None:  # type: ignore[no-untyped-def]
        held_back.update((self, kind) for kind in claims.unfit)
        note_unfit(self, request, claims, taken)
        self._unfit.clear()

    def wake_others(self: Scheduler, kinds: Iterable[str]) -> None:
        wake(self, [kind for kind in kinds if (self, kind) not in held_back])

    patch.setattr(Scheduler, "_note_unfit", forget)
    patch.setattr(Scheduler, "wake", wake_others)


MUTANTS: Final[tuple[Mutant, ...]] = (
    bounds_not_counted_by_claims,
    bounds_of_queues_not_counted_by_claims,
    running_tasks_not_counted,
    held_back_tasks_forgotten,
)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditor_of_bounds_catches(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(BoundedWorld, mutate, monkeypatch)
