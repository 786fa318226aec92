"""Batches are whole and right whatever goes wrong, and no item is left waiting."""

from __future__ import annotations

import os
from typing import Final

import pytest
from tests.simulation.batch_mutants import BATCH_MUTANTS
from tests.simulation.batched_world import BatchedWorld
from tests.simulation.known_seeds import check_caught
from tests.simulation.mutants import Mutant

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 12
SLICES: Final = 4


@pytest.mark.parametrize("first", range(SLICES))
def test_batches_are_right_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = BatchedWorld(seed).run()
        assert report.broken is None, f"batched world {seed}: {report.broken}"


@pytest.mark.parametrize("mutate", BATCH_MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditor_of_batches_catches(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(BatchedWorld, mutate, monkeypatch)
