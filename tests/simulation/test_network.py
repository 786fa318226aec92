"""Worlds whose processes talk over a network that loses, doubles, delays and cuts; and what hints are good for."""

from __future__ import annotations

import os
from typing import Final

import pytest
from tests.simulation.known_seeds import check_caught
from tests.simulation.mutants import Mutant
from tests.simulation.network_faults import CLIMATES
from tests.simulation.network_mutants import NETWORK_MUTANTS
from tests.simulation.network_world import NetworkWorld

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 24
SLICES: Final = 4


@pytest.mark.parametrize("first", range(SLICES))
def test_every_promise_is_kept_whatever_the_network_does(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = NetworkWorld(seed).run()
        assert report.broken is None, f"python -m tests.simulation --seed {seed}: {report.broken}"


def test_every_climate_is_among_the_seeds() -> None:
    assert {NetworkWorld(seed).climate for seed in range(SEEDS)} == set(CLIMATES)


@pytest.mark.timeout(400)  # a second, unless the known seed shows it no longer
@pytest.mark.parametrize("mutate", NETWORK_MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditors_catch(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(NetworkWorld, mutate, monkeypatch, 500)
