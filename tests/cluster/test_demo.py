"""The demo, run for real: its scenario, its summary, and that it leaves nothing behind."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from synergon import State, TaskRecord
from synergon.demo.summary import Summary, print_summary
from synergon.demo.task_log import FILE_NAME, FOLDER_VARIABLE, TaskLog

PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background processes with SIGINT ignored
from synergon.demo.run import main
main(tasks=400, speed=4)
"""
PATIENCE_SECONDS = 60.0


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start the demo; what it leaves behind would be in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "80", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(folder: Path) -> list[psutil.Process]:
    """The workers of a demo in this folder, and their children."""
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(FOLDER_VARIABLE, "").startswith(str(folder))
        except psutil.Error:
            continue
        if is_ours and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def check_nothing_is_left(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    # What the kernel has been told to kill takes a moment to be gone.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_of(folder) == []


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1", "TERM": "xterm"}], ids=["plain", "terminal"])
def test_the_summary_is_consistent_and_nothing_is_left_behind(tmp_path: Path, environment: dict[str, str]) -> None:
    demo = start(tmp_path, **environment)
    output, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 0, output
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", output).splitlines()]
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    accepted = re.search(r"^enqueued +([\d,]+) ", text, re.MULTILINE)
    ended = re.search(r"^ended \(from the database\) +([\d,]+)  1 cancelled$", text, re.MULTILINE)
    died = re.search(r"^re-run after a process died +(\d+)", text, re.MULTILINE)
    assert accepted and ended and died, text  # noqa: PT018
    assert accepted[1] == ended[1]
    assert int(died[1]) >= 1
    assert re.search(r"SIGKILL to south while it runs \d+ tasks", text)
    assert re.search(r"north noticed after \d+ ms and re-ran all \d+ within \d", text)
    assert lines[-1] == "Database and log agree: no task was lost, and each ended exactly once."
    check_nothing_is_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list(tmp_path.rglob(FILE_NAME)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    demo.send_signal(number)
    output, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 130, output
    assert "interrupted" in output
    check_nothing_is_left(tmp_path)


def test_the_workers_of_a_killed_demo_end_too(tmp_path: Path) -> None:
    demo = start(tmp_path)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list(tmp_path.rglob(FILE_NAME)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    demo.kill()
    demo.communicate(timeout=PATIENCE_SECONDS)
    while processes_of(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestSummary:
    """The summary must notice every kind of discrepancy."""

    @staticmethod
    def discrepancies(folder: Path, lines: str, *records: TaskRecord, accepted: set[int]) -> list[str]:
        (folder / FILE_NAME).write_text("".join(f"{line.strip()} {n}.5\n" for n, line in enumerate(lines.splitlines())))
        log = TaskLog(folder)
        log.read()
        found = Summary(accepted, {9}, {record.id: record for record in records}, log)
        assert print_summary(found, Console(file=io.StringIO())) == (not found.discrepancies())
        return found.discrepancies()

    @staticmethod
    def record(
        task_id: int, state: State = State.SUCCEEDED, attempts: int = 1, claims: int | None = None
    ) -> TaskRecord:
        now = datetime.now(UTC)
        return TaskRecord(
            id=task_id,
            kind="mail",
            queue="default",
            state=state,
            run_at=now,
            enqueued_at=now,
            attempts=attempts,
            claim_no=claims or attempts,
        )

    def test_consistent_sources_have_no_discrepancies(self, tmp_path: Path) -> None:
        log = """start 1 1 mail north
            end 1 1 mail north
            start 2 1 mail south
            error 2 1 mail south
            start 2 2 mail south
            start 2 3 mail north
            end 2 3 mail north
            start 9 1 mail north
            error 9 1 mail north"""
        records = [self.record(1), self.record(2, attempts=2, claims=3), self.record(9, State.CANCELLED)]
        assert self.discrepancies(tmp_path, log, *records, accepted={1, 2, 9}) == []

    def test_a_task_whose_process_died_before_the_commit_may_finish_twice(self, tmp_path: Path) -> None:
        log = """start 1 1 mail south
            end 1 1 mail south
            start 1 2 mail north
            end 1 2 mail north"""
        assert self.discrepancies(tmp_path, log, self.record(1, claims=2), accepted={1}) == []
        assert self.discrepancies(tmp_path, log, self.record(1), accepted={1}) == [
            "task 1 (mail) was started 2 times in the log; the database has 1 claims"
        ]

    def test_an_error_whose_process_died_before_the_commit_is_not_an_attempt(self, tmp_path: Path) -> None:
        log = """start 1 1 mail south
            error 1 1 mail south
            start 1 2 mail north
            end 1 2 mail north"""
        assert self.discrepancies(tmp_path, log, self.record(1, claims=2), accepted={1}) == []

    def test_a_lost_task_that_has_run_is_noticed(self, tmp_path: Path) -> None:
        found = self.discrepancies(tmp_path, "start 1 1 mail north\nend 1 1 mail north", accepted={1})
        assert found == ["task 1 was accepted but is not in the database"]

    def test_a_lost_task_is_noticed(self, tmp_path: Path) -> None:
        assert self.discrepancies(tmp_path, "", accepted={1}) == ["task 1 was accepted but is not in the database"]

    def test_a_task_that_was_never_enqueued_is_noticed(self, tmp_path: Path) -> None:
        log = "start 1 1 mail north\nend 1 1 mail north"
        assert self.discrepancies(tmp_path, log, self.record(1), accepted=set()) == ["task 1 was never accepted"]

    def test_a_task_that_failed_is_noticed(self, tmp_path: Path) -> None:
        found = self.discrepancies(tmp_path, "", self.record(1, State.FAILED), accepted={1})
        assert found == ["task 1 (mail) is failed, not succeeded"]

    def test_a_success_that_is_not_in_the_log_is_noticed(self, tmp_path: Path) -> None:
        found = self.discrepancies(tmp_path, "", self.record(1), accepted={1})
        assert found == ["task 1 (mail) succeeded in the database but did not finish in the log"]

    def test_an_attempt_that_is_not_in_the_database_is_noticed(self, tmp_path: Path) -> None:
        log = """start 1 1 mail north
            error 1 1 mail north
            start 1 2 mail north
            end 1 2 mail north"""
        found = self.discrepancies(tmp_path, log, self.record(1), accepted={1})
        assert found == ["task 1 (mail) was started 2 times in the log; the database has 1 claims"]

    def test_an_attempt_that_is_not_in_the_log_is_noticed(self, tmp_path: Path) -> None:
        log = "start 1 1 mail north\nend 1 1 mail north"
        found = self.discrepancies(tmp_path, log, self.record(1, attempts=2), accepted={1})
        assert found == ["task 1 (mail) failed 1 times in the database but 0 times in the log"]
