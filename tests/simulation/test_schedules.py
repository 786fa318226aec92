"""Each occurrence of a schedule creates at most one task, whatever goes wrong, and all others are counted."""

from __future__ import annotations

import os
from typing import Final

import pytest
from tests.simulation.known_seeds import check_caught
from tests.simulation.mutants import Mutant
from tests.simulation.schedule_mutants import SCHEDULE_MUTANTS
from tests.simulation.scheduled_world import ScheduledWorld

SEEDS: Final = 400 if os.environ.get("SYNERGON_LONG") else 12
SLICES: Final = 4


@pytest.mark.parametrize("first", range(SLICES))
def test_each_occurrence_creates_one_task_or_is_counted(first: int) -> None:
    for seed in range(first, SEEDS, SLICES):
        report = ScheduledWorld(seed).run()
        assert report.broken is None, f"python -m tests.simulation --seed {seed}: {report.broken}"


@pytest.mark.parametrize("mutate", SCHEDULE_MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_auditor_of_schedules_catches(mutate: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    check_caught(ScheduledWorld, mutate, monkeypatch)
