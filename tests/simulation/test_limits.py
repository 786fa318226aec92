"""Limits hold whatever goes wrong, and nobody is left waiting with room for it."""

from __future__ import annotations

import os
from typing import Final

import pytest
from tests.simulation.known_seeds import check_caught
from tests.simulation.limit_mutants import LIMIT_MUTANTS
from tests.simulation.limited_world import LimitedWorld
from tests.simulation.mutants import Mutant

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 12
SLICES: Final = 4


@pytest.mark.parametrize("first", range(SLICES))
def test_limits_hold_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = LimitedWorld(seed).run()
        assert report.broken is None, f"python -m tests.simulation --seed {seed}: {report.broken}"


@pytest.mark.parametrize("mutate", LIMIT_MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditor_of_limits_catches(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(LimitedWorld, mutate, monkeypatch)
