"""Every example runs, ends by itself, and leaves nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from tests.docs.pages import ROOT, text_of

SECONDS: Final = 90
EXAMPLES: Final = sorted((ROOT / "examples").glob("*.py"))
SIMPLE: Final = [path for path in EXAMPLES if path.stem != "scheduling"]


def run(example: Path, folder: Path, *options: str) -> str:
    """What it prints; a failure if it fails, warns, or leaves files."""
    temporary = folder / "temporary"
    temporary.mkdir()
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(example), *options],
        cwd=folder,
        env={"TMPDIR": str(temporary), "PATH": "", "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert not list(temporary.iterdir()), "it has left temporary files"
    assert list(folder.iterdir()) == [temporary], "it has left files"
    return ended.stdout


@pytest.mark.parametrize("example", SIMPLE, ids=lambda path: path.stem)
def test_an_example_runs_prints_and_cleans_up(example: Path, tmp_path: Path) -> None:
    assert run(example, tmp_path).strip(), "an example says what it does"


def test_scheduled_tasks_run_once_each_and_the_counters_are_right(tmp_path: Path) -> None:
    output = run(ROOT / "examples/scheduling.py", tmp_path, "--tasks", "5", "--first", "0.5", "--every", "0.7")
    executed = Counter(re.findall(r"TASK #(\d+) EXECUTED \(id \d+, attempt 1\)", output))
    assert executed == Counter({str(number): 1 for number in range(1, 6)}), output
    moved = [int(number) for number in re.findall(r"made (\d+) due tasks? ready", output)]
    assert sum(moved) == 5, f"each task became ready once:\n{output}"
    steps = [counters(line) for line in re.findall(r"status: (.*)", output)]
    assert steps[0] == Counter(scheduled=5)
    assert steps[-1] == Counter(succeeded=5)
    assert all(step.total() == 5 for step in steps), f"a task is in exactly one state:\n{output}"
    assert [step["succeeded"] for step in steps] == sorted(step["succeeded"] for step in steps)
    assert len(steps) == 6
    assert "each of the 5 tasks ran once" in output


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_index_lists_every_example(example: Path) -> None:
    assert f"(../examples/{example.name})" in text_of("docs/index.md")


def counters(status: str) -> Counter[str]:
    """`4 scheduled, 1 succeeded` as numbers."""
    return Counter({state: int(number) for number, state in (part.split() for part in status.split(", "))})


def test_the_examples_use_the_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check for leftovers above looks at the right place."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert tempfile.gettempdir() == str(tmp_path)
