"""Peers as real processes: a producer here, nodes elsewhere, and a sweep so rare that only hints explain the speed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.postgres_server import store_url
from tests.support import PATIENCE_SECONDS, until

from synergon import Engine, State

APP: Final = Path(__file__).parent / "apps" / "peers_worker.py"
RARELY: Final = "3600"
ROUNDS: Final = 100


@pytest.fixture(params=("sqlite", "postgres"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that other processes reach too."""
    return f"sqlite:///{tmp_path}/tasks.db" if request.param == "sqlite" else store_url()


@contextmanager
def node(url: str, *kinds: str, sweep: str = RARELY) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs these kinds."""
    process = subprocess.Popen([sys.executable, str(APP), url, *kinds], env={**os.environ, "SYNERGON_SWEEP": sweep})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


@contextmanager
def node_of_another_release(url: str, kind: str, sweep: str) -> Iterator[None]:
    """The same, with a later version of the peers' protocol."""
    program = (
        "import runpy, sys; from synergon.peering import wire; wire.PROTOCOL += 1; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    program = f"import sys; sys.argv = {[str(APP), url, kind]!r}; {program}"
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "SYNERGON_SWEEP": sweep})
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


@asynccontextmanager
async def cluster(url: str, *kinds: str, sweep: str = RARELY) -> AsyncIterator[Engine]:
    """A producer that runs nothing, and one process for each kind."""
    async with Engine(url, sweep=sweep) as producer:
        with ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(node(url, kind, sweep=sweep))

            async def are_there() -> bool:
                return len(await producer.nodes()) == len(kinds)

            await until(are_there)
            yield producer


def quantiles(seconds: list[float]) -> tuple[float, float]:
    """p50 and p99, in milliseconds."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2] * 1000, ordered[len(ordered) * 99 // 100] * 1000


async def test_a_worker_elsewhere_starts_and_its_result_is_here_within_milliseconds(url: str) -> None:
    starts, results = [], []
    async with cluster(url, "stamp") as producer:
        for number in range(ROUNDS + 1):
            (handle,) = await producer.enqueue([producer.call("stamp")])
            stored_at = time.time()
            started_at = await handle.result(timeout=PATIENCE_SECONDS)
            if number:  # the first one meets everybody
                starts.append(started_at - stored_at)
                results.append(time.time() - started_at)
            await asyncio.sleep(0.02)
    start, result = quantiles(starts), quantiles(results)
    print(f"\n{url.split(':')[0]}: start p50 {start[0]:.1f} ms, p99 {start[1]:.1f} ms; ", end="")
    print(f"from start to result here p50 {result[0]:.1f} ms, p99 {result[1]:.1f} ms")
    # Far above what an idle machine shows, and far below what any sweep could.
    assert start[0] < 50
    assert result[0] < 50


async def test_a_chain_runs_across_processes_that_each_run_one_kind(url: str) -> None:
    async with cluster(url, "first", "second", "third") as producer:
        for chains in (1, 2):  # in the first one everybody meets
            began = time.time()
            await producer.enqueue([producer.call("first")])
            await until(lambda wanted=chains: has_ended(producer, wanted))  # type: ignore[misc]
        (last, _) = await producer.tasks(kind="third")
        print(f"\n{url.split(':')[0]}: a chain of three processes took {(last.result - began) * 1000:.0f} ms")


async def has_ended(producer: Engine, chains: int) -> bool:
    """Whether so many chains have come to their end."""
    return (await producer.counts(kind="third"))[State.SUCCEEDED] == chains


async def test_work_that_was_waiting_before_any_node_came_is_found(url: str) -> None:
    async with Engine(url, sweep=RARELY) as producer:
        (handle,) = await producer.enqueue([producer.call("stamp")])
        with node(url, "stamp"):
            await handle.result(timeout=PATIENCE_SECONDS)


async def test_a_node_that_cannot_be_called_finds_work_by_its_sweep(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNERGON_LISTEN", "off")
    async with cluster(url, "stamp", sweep="0.5") as producer:
        (handle,) = await producer.enqueue([producer.call("stamp")])
        stored_at = time.time()
        assert await handle.result(timeout=PATIENCE_SECONDS) - stored_at < 5


async def test_a_node_that_was_replaced_is_found_again(url: str) -> None:
    async with Engine(url, sweep=RARELY) as producer:
        for _ in range(2):
            with node(url, "stamp") as process:
                (handle,) = await producer.enqueue([producer.call("stamp")])
                await handle.result(timeout=PATIENCE_SECONDS)
                (handle,) = await producer.enqueue([producer.call("stamp")])
                await handle.result(timeout=PATIENCE_SECONDS)
                process.kill()


async def test_a_node_that_speaks_another_version_is_mentioned_once_and_finds_work_by_its_sweep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with caplog.at_level("INFO", "synergon"):
        async with Engine(url, sweep=0.2) as producer:
            with node_of_another_release(url, "stamp", sweep="0.2"):
                for _ in range(3):
                    (handle,) = await producer.enqueue([producer.call("stamp")])
                    await handle.result(timeout=PATIENCE_SECONDS)

                def mentions() -> list[str]:
                    return [text for text in caplog.messages if "does not take hints" in text]

                await until(lambda: bool(mentions()))
                for _ in range(3):
                    (handle,) = await producer.enqueue([producer.call("stamp")])
                    await handle.result(timeout=PATIENCE_SECONDS)
    (mention,) = mentions()
    assert "answered 409 the sender speaks version 1 of the peers' protocol and this node speaks 2" in mention
    assert "run the same release of synergon on all nodes; it is tried again" in mention
