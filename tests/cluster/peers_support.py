"""Nodes as real processes with one kind or a few, and a producer that runs nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.cluster.support import REPOSITORY
from tests.postgres_server import store_url
from tests.support import PATIENCE_SECONDS, until
from tests.warm_process import WarmProcess

from synergon import Engine

RARELY: Final = "3600"
"""A sweep so rare that only hints explain the speed."""


@pytest.fixture(name="url", params=("sqlite", "postgres"))
def url_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that other processes reach too."""
    return f"sqlite:///{tmp_path}/tasks.db" if request.param == "sqlite" else store_url()


AS_EVER: Final = "peers_worker"
OF_ANOTHER_RELEASE: Final = "peers_worker_of_another_release"


@contextmanager
def node(
    url: str,
    *kinds: str,
    sweep: str = RARELY,
    settings: Mapping[str, str] | None = None,
    program: str = AS_EVER,
) -> Iterator[WarmProcess]:
    """A process that runs these kinds. Settings are those of its environment."""
    process = WarmProcess(
        f"tests.cluster.apps.{program}",
        url,
        *kinds,
        folder=REPOSITORY,
        environment={**os.environ, "SYNERGON_SWEEP": sweep, **(settings or {})},
        streams=(0, 1, 2),
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:  # a test that failed has left a body running
            process.kill()
            process.wait()


async def joined(producer: Engine, number: int) -> None:
    """Return when there are so many nodes."""

    async def are_there() -> bool:
        return len(await producer.nodes()) == number

    await until(are_there, patience_seconds=30)


@asynccontextmanager
async def cluster(
    url: str, *kinds: str, sweep: str = RARELY, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Engine]:
    """A producer that runs nothing, and one process for each kind."""
    async with Engine(url, sweep=sweep) as producer:
        with ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(node(url, kind, sweep=sweep, settings=settings))
            await joined(producer, len(kinds))
            yield producer


def quantiles(seconds: list[float]) -> tuple[float, float]:
    """p50 and p99, in milliseconds."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2] * 1000, ordered[len(ordered) * 99 // 100] * 1000
