"""In the middle of a deploy every promise is kept, too."""

from __future__ import annotations

import os
from typing import Final

import pytest
from tests.simulation.deploy_mutants import DEPLOY_MUTANTS
from tests.simulation.deploy_world import DeployWorld
from tests.simulation.known_seeds import check_caught
from tests.simulation.mutants import Mutant

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 24
SLICES: Final = 4


@pytest.mark.parametrize("first", range(SLICES))
def test_refusals_cost_nothing_and_come_to_an_end_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = DeployWorld(seed).run()
        assert report.broken is None, f"python -m tests.simulation --seed {seed}: {report.broken}"


@pytest.mark.parametrize("mutate", DEPLOY_MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditor_of_deploys_catches(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(DeployWorld, mutate, monkeypatch)
