"""Text of tasks, servers and operators never reaches a terminal or a log with its control characters."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.cluster.cli_support import Finished, Shell, quickly
from tests.postgres_server import store_url
from tests.support import until

from synergon import Context, Engine
from synergon.cli import output
from synergon.model.nodes import NewNode
from synergon.model.process_identity import this_process

HOSTILE = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b1m\u202e\rgone\n2026-01-01 forged"
OBEYED = set(HOSTILE) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}


@pytest.fixture(params=("sqlite", "postgres"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/app.db" if request.param == "sqlite" else store_url()


@pytest.fixture
async def lived_in(url: str, caplog: pytest.LogCaptureFixture) -> list[int]:
    """The ids of tasks with hostile errors, progress, results and reasons."""
    caplog.set_level(logging.DEBUG, "synergon")
    engine = Engine(url)

    @engine.task(retry=1)
    async def fails() -> None:
        raise ValueError(HOSTILE)

    @engine.task
    async def works(ctx: Context, text: str) -> str:
        ctx.progress(0.5, HOSTILE)
        return text

    async with engine.worker():
        failed, worked = await fails.enqueue(), await works.enqueue(HOSTILE)
        await worked.result(timeout=30)
        await engine.wait(failed.id, timeout=30)
        await engine.pause("default")
        cancelled = await works.enqueue(HOSTILE)
        await engine._control.cancel([cancelled.id], HOSTILE)
        await until(lambda: "failed for good" in caplog.text)
    return [failed.id, worked.id, cancelled.id]


def obeyed(text: str) -> set[str]:
    return OBEYED & set(text)


async def test_the_log_holds_none(lived_in: list[int], caplog: pytest.LogCaptureFixture) -> None:
    records = caplog.get_records("setup")
    assert any("failed for good" in record.getMessage() for record in records)
    assert not any(obeyed(logging.Formatter().format(record)) for record in records)
    assert not any("\n" in record.getMessage() for record in records)


async def test_no_command_prints_any(url: str, lived_in: list[int], tmp_path: Path) -> None:
    shell = Shell.in_folder(tmp_path)

    def said(*arguments: str) -> str:
        finished = _in_thread(shell, *arguments, "--url", url)
        assert not obeyed(finished.out + finished.err), arguments
        return finished.out

    rows = said("tasks", "list").splitlines()
    assert len(rows) == 1 + len(lived_in), "a line break in an error makes no row"
    for task_id in map(str, lived_in):
        assert said("tasks", "show", task_id)
        assert len(said("tasks", "explain", task_id).splitlines()) == 1
        document = json.loads(said("tasks", "show", task_id, "--json"))
        texts = [*document["arguments"].values(), *(error["message"] for error in document["errors"])]
        assert HOSTILE in texts, "programs get the text as it is"
    assert len(said("audit").splitlines()) == 3
    entries = [json.loads(line) for line in said("audit", "--json").splitlines()]
    assert any(HOSTILE in str(value) for entry in entries for value in entry.values())
    said("doctor")
    said("doctor", "--json")


def _in_thread(shell: Shell, *arguments: str) -> Finished:
    """Commands have a loop of their own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(quickly, shell, *arguments).result()


async def test_the_address_of_a_node_is_shown_without_a_password(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that an earlier release wrote."""
    monkeypatch.setattr(output.console, "width", 200)
    engine = Engine(url)
    async with engine:
        await engine._store.register(
            NewNode(
                id="earlier",
                name="earlier",
                process=this_process(),
                kinds=(),
                queues=None,
                concurrency=1,
                version="0",
                address="http://kim:hunter2@node:7700",
                lease=60_000_000,
            )
        )
    shell = Shell.in_folder(tmp_path)
    for arguments in (["nodes"], ["nodes", "--json"], ["doctor"], ["doctor", "--json"]):
        finished = _in_thread(shell, *arguments, "--url", url)
        assert "earlier" in finished.out
        assert "hunter2" not in finished.out + finished.err
