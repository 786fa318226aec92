"""Tasks wait for the tasks that they need, are cancelled with them and come back with them, whatever goes wrong."""

from __future__ import annotations

import os
from typing import Final

import pytest
from tests.simulation.dependency_mutants import DEPENDENCY_MUTANTS
from tests.simulation.dependent_world import DependentWorld
from tests.simulation.known_seeds import check_caught
from tests.simulation.mutants import Mutant

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 12
SLICES: Final = 4


@pytest.mark.parametrize("first", range(SLICES))
def test_tasks_wait_for_what_they_need_and_share_its_fate(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = DependentWorld(seed).run()
        assert report.broken is None, f"seed {seed}: {report.broken}"


@pytest.mark.parametrize("mutate", DEPENDENCY_MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditor_of_dependencies_catches(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(DependentWorld, mutate, monkeypatch)
