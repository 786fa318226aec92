"""Producers, workers and whoever waits for results are three different processes."""

from __future__ import annotations

import asyncio
import os
import sys

from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import REPOSITORY, Cluster, cluster_fixture  # noqa: F401

from synergon import Engine, Handle

PRODUCER = """
import asyncio
from tests.cluster.apps.faults_bodies import engine, hold

async def produce():
    async with engine:
        print((await hold.enqueue("made elsewhere", first=0.5)).id)

asyncio.run(produce())
"""


async def test_a_result_comes_back_to_the_process_that_asked_for_the_work(cluster: Cluster) -> None:
    worker = await cluster.start()
    async with Engine(cluster.engine.settings.url) as producer:
        (handle,) = await producer.enqueue([bodies.hold.call("task", first=0.5)])
        assert await handle.result(timeout=30) == "task"
    assert cluster.journal.entries("ends", "task")[0].pid == worker.pid != os.getpid()


async def test_a_third_process_may_wait_for_a_task_that_another_made_and_another_runs(cluster: Cluster) -> None:
    worker = await cluster.start()
    producer = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PRODUCER,
        cwd=REPOSITORY,
        env={**os.environ, "SYNERGON_URL": cluster.engine.settings.url},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await producer.communicate()
    async with Engine(cluster.engine.settings.url) as waiter:
        handle: Handle[str] = Handle(waiter, int(said))
        assert await handle.result(timeout=30) == "made elsewhere"
    assert worker.is_running
