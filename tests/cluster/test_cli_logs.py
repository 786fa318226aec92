"""What a worker logs about tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell


def worker_log(folder: Path, *options: str) -> str:
    """The log of a worker that runs one task that succeeds and one that fails."""
    shell = Shell.in_folder(folder)
    shell.enqueue("greet", name="Ada")
    shell.enqueue("send", to="a@b.c")
    return shell.run("worker", "app", "--drain", *options).err


def test_a_final_failure_is_an_error_with_its_traceback(tmp_path: Path) -> None:
    log = worker_log(tmp_path)
    assert "ERROR" in log
    assert "task 2 (send), attempt 2 of 2: ValueError" in log
    assert log.count("Traceback (most recent call last):") == 1
    assert "LoggedTraceback" not in log
    assert "task 1 (greet)" not in log


def test_all_ends_are_logged_on_request_with_their_seconds(tmp_path: Path) -> None:
    log = worker_log(tmp_path, "--log-tasks", "all")
    assert "task 1 (greet) succeeded after 0." in log
    assert log.count("failed for good") == 1
    assert "starts" not in log


def test_starts_are_logged_on_the_level_debug(tmp_path: Path) -> None:
    log = worker_log(tmp_path, "--log-tasks", "all", "-l", "debug")
    assert "task 1 (greet) starts" in log
    assert "task 2 (send) starts" in log


@pytest.mark.parametrize("processes", [(), ("--processes", "1")])
def test_no_task_is_logged_on_request(tmp_path: Path, processes: tuple[str, ...]) -> None:
    log = worker_log(tmp_path, "--log-tasks", "off", *processes)
    assert "task 1" not in log
    assert "task 2" not in log
    assert "has stopped" in log


@pytest.mark.parametrize("processes", [(), ("--processes", "1")])
def test_every_line_is_json_on_request(tmp_path: Path, processes: tuple[str, ...]) -> None:
    shell = Shell.in_folder(tmp_path)
    app = tmp_path / "app.py"
    tell = "@engine.task\ndef tell() -> None:\n    logging.getLogger('shop').warning('hi')\n"
    app.write_text(f"{app.read_text()}\nimport logging\n\n{tell}")
    shell.enqueue("tell")
    shell.enqueue("send", to="a@b.c")
    said = shell.run("worker", "app", "--drain", "--log-format", "json", *processes).err
    lines = [json.loads(line) for line in said.splitlines()]
    assert all({"time", "level", "logger", "message", "node"} <= line.keys() for line in lines)
    (own,) = [line for line in lines if line["logger"] == "shop"]
    assert (own["message"], own["task_id"], own["kind"], own["attempt"]) == ("hi", 1, "tell", 1)
    (failure,) = [line for line in lines if line["level"] == "error"]
    assert (failure["task_id"], failure["kind"]) == (2, "send")
    assert "ValueError" in failure["exception"]


TRACED = """
import logging

from opentelemetry.sdk.trace import TracerProvider

from synergon.contrib import otel

otel.instrument(engine, tracer_provider=TracerProvider())


@engine.task
async def in_loop() -> None:
    logging.getLogger("shop").warning("hi")


@engine.task
def in_thread() -> None:
    logging.getLogger("shop").warning("hi")


@engine.task(runs_in="process")
def in_child() -> None:
    logging.getLogger("shop").warning("hi")
"""


def test_records_of_functions_name_task_and_trace_wherever_they_run(tmp_path: Path) -> None:
    shell = Shell.in_folder(tmp_path)
    app = tmp_path / "app.py"
    app.write_text(f"{app.read_text()}\n{TRACED}")
    kinds = ("in_loop", "in_thread", "in_child")
    for kind in kinds:
        shell.enqueue(kind)
    said = shell.run("worker", "app", "--drain", "--log-format", "json", "--name", "kim").err
    lines = {line["kind"]: line for line in map(json.loads, said.splitlines()) if line["logger"] == "shop"}
    assert lines.keys() == set(kinds)
    for number, kind in enumerate(kinds, start=1):
        line = lines[kind]
        assert (line["task_id"], line["attempt"], line["node"]) == (number, 1, "kim")
        assert len(line["trace_id"]) == 32
    assert len({line["trace_id"] for line in lines.values()}) == 3
