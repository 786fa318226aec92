"""Type checkers see the function's own arguments and result through every way of enqueueing it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RIGHT, WRONG = HERE / "typing_right.py", HERE / "typing_wrong.py"
REPOSITORY = HERE.parents[1]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The lines that mypy complains about, by file."""
    pytest.importorskip("mypy", reason="no type checker: install mypy")
    folder = tmp_path_factory.mktemp("typing")
    wrong = folder / WRONG.name
    wrong.write_text(WRONG.read_text().replace("# mypy: ignore-errors", "#", 1))
    mypy = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(folder / "cache")]
    found = subprocess.run([*mypy, str(RIGHT), str(wrong)], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    lines: dict[str, list[int]] = {RIGHT.name: [], WRONG.name: []}
    for name, number in re.findall(r"^(?:.*/)?(typing_\w+\.py):(\d+): error:", found.stdout, re.MULTILINE):
        lines[name].append(int(number))
    return lines


def test_what_users_write_has_no_type_error(errors: dict[str, list[int]]) -> None:
    assert errors[RIGHT.name] == []


def test_every_mistake_is_seen_and_nothing_else_is_taken_for_one(errors: dict[str, list[int]]) -> None:
    marked = [number for number, line in enumerate(WRONG.read_text().splitlines(), 1) if line.endswith("# wrong")]
    assert len(marked) > 25
    assert sorted(set(errors[WRONG.name])) == marked
