"""How the test suite itself is run: workers by cores, and a word on what was skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import pytest_xdist_auto_num_workers

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(("cores", "auto", "logical"), [(1, 2, 1), (2, 4, 2), (64, 8, 8)])
def test_the_number_of_workers_follows_the_cores_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, cores: int, auto: int, logical: int
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    for asked, expected in {"auto": auto, "logical": logical}.items():
        config: Any = SimpleNamespace(option=SimpleNamespace(numprocesses=asked))
        assert pytest_xdist_auto_num_workers(config) == expected


def test_a_run_says_what_was_skipped_and_why_before_the_closing_line() -> None:
    tests = ["tests/stores/test_transactions.py", "-k", "memory", "-p", "no:cacheprovider", "-n", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *tests],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    *_, skipped, closing = run.stdout.splitlines()
    assert skipped.startswith("skipped ")
    assert skipped.endswith(": this store has no transactions")
    assert " passed" in closing or " skipped" in closing
