"""Worlds whose processes talk over a network that loses, doubles, delays and cuts; and what hints are good for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from typing import Final

import pytest
from tests.simulation.mutants import Mutant
from tests.simulation.network_faults import CLIMATES
from tests.simulation.network_mutants import NETWORK_MUTANTS
from tests.simulation.network_world import NetworkWorld

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 24
SLICES: Final = 4
SEEDS_TO_CATCH: Final = 500

CAUGHT_BY: Final = {
    "foreign_kinds_not_told": 24,
    "producers_tell_nobody": 8,
    "failing_peer_dropped_for_ever": 8,
    "outgoing_lost_on_failure": 8,
    "done_never_sent": 8,
    "done_believed": 0,
    "cancel_believed": 10,
    "cancel_not_told": 11,
    "hinted_work_is_taken": 1,
    "new_hints_not_heard": 8,
    "scheduled_not_told": 27,
    "resumed_not_told": 8,
    "full_peer_is_enough": 98,
    "table_read_once": 8,
}
"""A seed that is known to show a mutant; it is tried first, so that the search is short."""


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
    mutate(monkeypatch)
    seeds: Iterable[int] = chain([CAUGHT_BY[mutate.__name__]], range(SEEDS_TO_CATCH))
    assert any(NetworkWorld(seed).run().broken for seed in seeds), f"{SEEDS_TO_CATCH} worlds have not shown it"
