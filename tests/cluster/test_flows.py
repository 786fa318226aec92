"""A flow whose worker is killed in one of its steps ends with the result that it would have had."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cluster.apps import flow_app
from tests.cluster.support import PATIENCE_SECONDS, REPOSITORY

from synergon import State

PAGES = ["eu0", "eu1", "us0", "us1"]


@asynccontextmanager
async def worker(url: str, killed_in: str, mark: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker process, which is stopped at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "synergon", "worker", "tests.cluster.apps.flow_app:engine"),
        cwd=REPOSITORY,
        env={**os.environ, "SYNERGON_URL": url, "FLOW_KILL": killed_in, "FLOW_KILLED": str(mark)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.mark.parametrize("step", ["fetch eu", "fetch us", "merge", "render us 0", "publish"])
async def test_a_flow_whose_worker_is_killed_ends_with_the_same_results(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    engine = flow_app.engine
    monkeypatch.setattr(engine, "settings", engine.settings.changed({"url": url}, "test"))
    async with engine:
        run = await flow_app.new_flow().enqueue()
        async with worker(url, step, tmp_path / "killed") as victim, asyncio.timeout(PATIENCE_SECONDS):
            assert await victim.wait() == -signal.SIGKILL
        async with worker(url, step, tmp_path / "killed"):
            assert await run.result(timeout=PATIENCE_SECONDS) == PAGES
            record = await run.wait(timeout=PATIENCE_SECONDS)
        assert (record.state, record.counts) == (State.SUCCEEDED, {State.SUCCEEDED: 9})
        attempts = [task.attempts for task in await engine.tasks()]
        assert attempts == [1] * 9  # the death of a worker is not charged
