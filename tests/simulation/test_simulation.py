"""Worlds full of faults in which every promise is kept, and the same world again from the same seed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest
from tests.simulation.known_seeds import check_caught
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.network_world import NetworkWorld
from tests.simulation.process import LOGGER as PROCESS_LOGGER
from tests.simulation.world import World

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 80
SLICES: Final = 8


@pytest.mark.parametrize("first", range(SLICES))
def test_every_promise_is_kept_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = World(seed).run()
        assert report.broken is None, f"python -m tests.simulation --seed {seed}: {report.broken}"


@pytest.mark.timeout(400)  # some seconds, unless the machine is very busy
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditor_catches(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(World, mutate, monkeypatch, 500)


@pytest.mark.parametrize(("kind", "seed"), [(World, 24), (NetworkWorld, 0), (NetworkWorld, 8)])
def test_a_seed_replays_exactly_also_in_another_process(kind: type[World], seed: int) -> None:
    here = kind(seed).run().events
    again = kind(seed).run().events
    code = f"from {kind.__module__} import {kind.__name__}; print('\\n'.join({kind.__name__}({seed}).run().events))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(here) > 100
    assert again == here
    assert elsewhere.stdout.splitlines() == here


def test_worlds_differ_by_their_seed() -> None:
    assert World(1).run().events != World(2).run().events


def test_what_is_dropped_with_its_event_loop_is_no_failure_of_a_task(caplog: pytest.LogCaptureFixture) -> None:
    PROCESS_LOGGER.addHandler(caplog.handler)
    try:
        assert World(0).run().broken is None
    finally:
        PROCESS_LOGGER.removeHandler(caplog.handler)
    assert caplog.records
    assert "different Context" not in caplog.text
