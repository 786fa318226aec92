"""A rate holds whatever goes wrong, and no task waits while the rate is free."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import pytest
from tests.simulation.known_seeds import check_caught
from tests.simulation.mutants import Mutant, Patch
from tests.simulation.rated_world import RatedWorld

from synergon.node.claims.scheduler import Scheduler
from synergon.stores.memory.limit_rows import LimitRows
from synergon.stores.rules import rates
from synergon.stores.rules.rates import RateMeter

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 12
SLICES: Final = 4


@pytest.mark.parametrize("first", range(SLICES))
def test_a_rate_holds_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = RatedWorld(seed).run()
        assert report.broken is None, f"python -m tests.simulation --seed {seed}: {report.broken}"


def starts_not_stored(patch: Patch) -> None:
    """A claim charges the rate, and does not store it."""

    async def forget(self: LimitRows, moments: Mapping[str, int]) -> None: ...

    patch.setattr(LimitRows, "set_next_starts", forget)


def units_not_charged(patch: Patch) -> None:
    """Every task counts once."""

    def charge_one(self: RateMeter, units: int) -> None:
        self.next_at = rates.after(self.rate, self.next_at, self.now, min(units, 1))

    patch.setattr(RateMeter, "charge", charge_one)


def burst_for_ever(patch: Patch) -> None:
    """A start within the burst costs nothing."""
    patch.setattr(RateMeter, "allowed", property(lambda self: self.rate.burst))


def deferred_kinds_forgotten(patch: Patch) -> None:
    """The node does not look again at what the rate held back, not even in its sweep."""
    wake, deferred = Scheduler.wake, set[tuple[Scheduler, str]]()

    def forget(self: Scheduler, kind: str, seconds: float) -> None:
        deferred.add((self, kind))

    def wake_others(self: Scheduler, kinds) -> None:  # type: ignore[no-untyped-def]
        wake(self, [kind for kind in kinds if (self, kind) not in deferred])

    patch.setattr(Scheduler, "_wake_later", forget)
    patch.setattr(Scheduler, "wake", wake_others)


def deferred_kinds_left_to_the_sweep(patch: Patch) -> None:
    """The node is not woken when the rate is free."""
    patch.setattr(Scheduler, "_wake_later", lambda self, kind, seconds: None)


MUTANTS: Final[tuple[Mutant, ...]] = (
    starts_not_stored,
    units_not_charged,
    burst_for_ever,
    deferred_kinds_forgotten,
    deferred_kinds_left_to_the_sweep,
)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditor_of_rates_catches(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(RatedWorld, mutate, monkeypatch)
