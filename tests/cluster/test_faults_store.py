"""The file is there and cannot be written for a while: nodes wait and go on, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import Cluster, WorkerProcess, cluster_fixture, until  # noqa: F401

from synergon import State


async def test_a_file_that_somebody_locks_under_load_is_waited_for(cluster: Cluster) -> None:
    workers = [await cluster.start(concurrency=8) for _ in range(2)]
    labels = [f"task-{number}" for number in range(600)]
    handles = await cluster.enqueue(*(bodies.hold.call(label, first=0.02) for label in labels))
    await until("the work is under way", lambda: len(cluster.journal.labels("ends")) > 50)
    async with cluster.file_locked():
        await asyncio.sleep(3)
        done = len(cluster.journal.labels("ends"))
    records = await cluster.ends_of(handles)
    assert done < len(labels), "the lock was no hindrance"
    assert {(record.state, record.attempts, record.claim_no) for record in records} == {(State.SUCCEEDED, 1, 1)}
    assert sorted(cluster.journal.labels("ends")) == sorted(labels)
    assert all(worker.is_running for worker in workers)


async def test_a_file_that_is_locked_for_longer_than_the_lease_makes_no_task_run_beside_itself(
    cluster: Cluster,
) -> None:
    workers = [await cluster.start(lease=4, concurrency=2) for _ in range(2)]
    short, long = [f"short-{number}" for number in range(4)], [f"long-{number}" for number in range(4)]
    of_short = await cluster.enqueue(*(bodies.hold.call(label, first=0.5) for label in short))
    of_long = await cluster.enqueue(*(bodies.hold.call(label, first=3, later=3) for label in long))
    await cluster.journal.wait_for("begins", *short)
    async with cluster.file_locked():
        await asyncio.sleep(5)  # the short ones end, their nodes ask for more, and lose their leases

    for record in await cluster.ends_of(of_short):
        assert (record.state, record.attempts) == (State.SUCCEEDED, 1), record
    for record in await cluster.ends_of(of_long):
        assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0), record
    assert sorted(label for label in cluster.journal.labels("begins") if label in long) == long
    assert all("joined again as node" in worker.log for worker in workers)
    assert all(worker.is_running for worker in workers)


# ------------------------------------------------------------ a disk that is full or broken


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk: run the tests as root, who may mount one ({mounted.stderr.strip()})")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take every byte that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    os.write(file.fileno(), b"x" * size)
            except OSError:
                continue


@asynccontextmanager
async def outcomes_held_up(cluster: Cluster, worker: WorkerProcess) -> AsyncIterator[None]:
    """Twenty bodies run when the trouble begins, twenty wait; when it is over, all succeed as if nothing had been."""
    labels = [f"task-{number}" for number in range(40)]
    handles = await cluster.enqueue(*(bodies.bulky.call(label, seconds=0.7, length=20_000) for label in labels))
    await cluster.journal.wait_for("begins", *labels[:20])
    yield
    records = await cluster.ends_of(handles)
    assert {(record.state, record.attempts, record.crashes) for record in records} == {(State.SUCCEEDED, 1, 0)}
    assert sorted(cluster.journal.labels("begins")) == sorted(labels)
    assert worker.is_running


async def test_a_worker_on_a_full_disk_waits_and_finishes_when_there_is_room(tmp_path: Path, small_disk: Path) -> None:
    async with Cluster(tmp_path, small_disk / "tasks.db") as cluster:
        worker = await cluster.start(concurrency=20)
        async with outcomes_held_up(cluster, worker):
            fill(small_disk / "filler")
            await worker.says("disk is full")
            await worker.says("the store is away")
            await asyncio.sleep(1)
            (small_disk / "filler").unlink()


async def test_a_worker_whose_writes_fail_waits_and_finishes_when_they_succeed(cluster: Cluster) -> None:
    worker = await cluster.start(concurrency=20)
    limits = psutil.Process(worker.pid)
    without = limits.rlimit(psutil.RLIMIT_FSIZE)
    async with outcomes_held_up(cluster, worker):
        limits.rlimit(psutil.RLIMIT_FSIZE, (16_384, without[1]))  # nothing is written past this length of any file
        await worker.says("look at the disk")
        await worker.says("the store is away")
        await asyncio.sleep(1)
        limits.rlimit(psutil.RLIMIT_FSIZE, without)
