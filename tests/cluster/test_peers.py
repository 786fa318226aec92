"""Peers as real processes: a producer here, nodes elsewhere, and a sweep so rare that only hints explain the speed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.peers_support import OF_ANOTHER_RELEASE, RARELY, cluster, node, url_fixture  # noqa: F401
from tests.support import PATIENCE_SECONDS, until

from synergon import Engine, State


async def test_a_chain_runs_across_processes_that_each_run_one_kind(url: str) -> None:
    async with cluster(url, "first", "second", "third") as producer:
        for chains in (1, 2):  # in the first one everybody meets
            began = time.time()
            await producer.enqueue([producer.call("first")])
            await until(lambda wanted=chains: has_ended(producer, wanted))  # type: ignore[misc]  # bound now
        (last, _) = await producer.tasks(kind="third")
        print(f"\n{url.split(':')[0]}: a chain of three processes took {(last.result - began) * 1000:.0f} ms")


async def has_ended(producer: Engine, chains: int) -> bool:
    """Whether so many chains have come to their end."""
    return (await producer.counts(kind="third"))[State.SUCCEEDED] == chains


async def test_tasks_enqueued_before_any_node_joined_are_found(url: str) -> None:
    async with Engine(url, sweep=RARELY) as producer:
        (handle,) = await producer.enqueue([producer.call("stamp")])
        with node(url, "stamp"):
            await handle.result(timeout=PATIENCE_SECONDS)


async def test_an_unreachable_node_finds_work_by_its_sweep(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNERGON_LISTEN", "off")
    async with cluster(url, "stamp", sweep="0.5") as producer:
        (handle,) = await producer.enqueue([producer.call("stamp")])
        stored_at = time.time()
        assert await handle.result(timeout=PATIENCE_SECONDS) - stored_at < PATIENCE_SECONDS / 2


async def test_a_node_that_was_replaced_is_found_again(url: str) -> None:
    async with Engine(url, sweep=RARELY) as producer:
        for _ in range(2):
            with node(url, "stamp") as process:
                (handle,) = await producer.enqueue([producer.call("stamp")])
                await handle.result(timeout=PATIENCE_SECONDS)
                (handle,) = await producer.enqueue([producer.call("stamp")])
                await handle.result(timeout=PATIENCE_SECONDS)
                process.kill()


async def test_running_processes_go_over_to_a_new_secret(url: str) -> None:
    async with cluster(url, "stamp") as producer:
        for _ in range(2):
            (handle,) = await producer.enqueue([producer.call("stamp")])
            await handle.result(timeout=PATIENCE_SECONDS)
            before = await producer._store.secret()
            command = [sys.executable, "-m", "synergon", "migrate", "--new-secret", "--url", url]
            printed = await asyncio.to_thread(subprocess.check_output, command, text=True)
            assert "new secret" in printed
            assert await producer._store.secret() != before
        (handle,) = await producer.enqueue([producer.call("stamp")])
        await handle.result(timeout=PATIENCE_SECONDS)


async def test_a_node_of_another_protocol_version_is_logged_once_and_finds_work_by_its_sweep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with caplog.at_level("INFO", "synergon"):
        async with Engine(url, sweep=0.2) as producer:
            with node(url, "stamp", sweep="0.2", program=OF_ANOTHER_RELEASE):
                for _ in range(3):
                    (handle,) = await producer.enqueue([producer.call("stamp")])
                    await handle.result(timeout=PATIENCE_SECONDS)

                def mentions() -> list[str]:
                    return [text for text in caplog.messages if "does not accept hints" in text]

                await until(lambda: bool(mentions()))
                for _ in range(3):
                    (handle,) = await producer.enqueue([producer.call("stamp")])
                    await handle.result(timeout=PATIENCE_SECONDS)
    (mention,) = mentions()
    assert "answered 409 the sender speaks version 1 of the peer protocol and this node speaks 2" in mention
    assert "run the same release of synergon on all nodes; retrying" in mention
