"""Everything at once, for some seconds; `make chaos` does it for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.__main__ import run
from tests.chaos.databases import SqliteDatabase
from tests.chaos.faults import Deed, faults_of, plan

NAMES = list(faults_of(SqliteDatabase(Path())))


def deeds(seed: int) -> list[Deed]:
    return list(plan(seed, NAMES, seconds=60, places=3, lease=3))


def test_the_same_seed_gives_the_same_deeds_in_the_same_order() -> None:
    assert deeds(7) == deeds(7)
    assert deeds(7) != deeds(8)
    assert {deed.name for seed in range(10) for deed in deeds(seed)} == set(NAMES)


@pytest.mark.timeout(400)
async def test_a_short_chaos_keeps_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("sqlite", seed=21, seconds=6, a_second=20) == 0, capsys.readouterr().out
    assert "every promise was kept" in capsys.readouterr().out
