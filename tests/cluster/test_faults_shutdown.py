"""A worker is told to stop: what can be finished is finished, the rest is given back at no cost."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import Cluster, WorkerProcess, cluster_fixture, is_alive, until  # noqa: F401

from synergon import Call, State


async def test_with_enough_grace_a_running_body_finishes_however_it_runs(cluster: Cluster) -> None:
    worker = await cluster.start(grace=30)
    handles = await cluster.enqueue(
        bodies.hold.call("coroutine", first=1),
        bodies.hold_in_thread.call("thread", first=1),
        bodies.hold_in_process.call("process", first=1),
    )
    await cluster.journal.wait_for("begins", "coroutine", "thread", "process")
    worker.send(signal.SIGTERM)
    (late,) = await cluster.enqueue(bodies.hold.call("late", first=0))
    assert await worker.ends() == 0
    for handle in handles:
        record = await handle.status()
        assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0), record
    assert (await late.status()).state in (State.READY, State.SUCCEEDED)
    assert await cluster.engine.nodes() == []


@pytest.mark.parametrize(
    "call",
    [bodies.hold.call("task"), bodies.hold_in_process.call("task"), bodies.hold_in_thread.call("task")],
    ids=["coroutine", "process", "thread that will not end"],
)
async def test_with_too_little_grace_a_running_task_is_given_back_uncharged(cluster: Cluster, call: Call[str]) -> None:
    worker = await cluster.start(grace=0.2)
    (handle,) = await cluster.enqueue(call)
    (begun,) = await cluster.journal.wait_for("begins", "task")
    told_at = time.monotonic()
    worker.send(signal.SIGTERM)
    assert await worker.ends() == 0
    print(f"ended {time.monotonic() - told_at:.2f} s after the signal")
    assert not is_alive(begun.pid)
    record = await handle.status()
    assert (record.state, record.attempts, record.crashes, record.claim_no) == (State.READY, 0, 0, 1), record
    assert await cluster.engine.nodes() == []

    await cluster.start()
    record = await cluster.end_of(handle)
    assert (record.state, record.attempts, record.crashes, record.claim_no) == (State.SUCCEEDED, 1, 0, 2), record


async def interrupt_until_it_ends(worker: WorkerProcess) -> int:
    """Signals that come too close together are one, so more than two may be needed."""
    worker.send(signal.SIGINT)
    await asyncio.sleep(0.5)
    assert worker.is_running, "one signal stops in order, and the body still has its grace"
    while worker.is_running:
        worker.send(signal.SIGINT)
        await asyncio.sleep(0.2)
    return await worker.ends()


@pytest.mark.parametrize(
    "call",
    [bodies.hold_in_thread.call("task"), bodies.block_the_loop.call("task")],
    ids=["thread", "coroutine that blocks the loop"],
)
async def test_the_second_interrupt_ends_the_process_at_once(cluster: Cluster, call: Call[str]) -> None:
    worker = await cluster.start(grace=60)
    (handle,) = await cluster.enqueue(call)
    await cluster.journal.wait_for("begins", "task")
    async with asyncio.timeout(30):  # half of its grace
        assert await interrupt_until_it_ends(worker) == 130

    await cluster.start()
    record = await cluster.end_of(handle)
    assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0), record


async def announces_its_stop(cluster: Cluster, worker: WorkerProcess) -> None:
    async def is_published() -> bool:
        return any(node.state.is_stopping for node in await cluster.engine.nodes() if node.process.pid == worker.pid)

    await until(f"the row of worker {worker.pid} says that it stops", is_published)


async def test_a_worker_that_is_killed_while_it_stops_charges_nothing(cluster: Cluster) -> None:
    worker = await cluster.start(grace=60)
    (handle,) = await cluster.enqueue(bodies.block_the_loop.call("task"))
    await cluster.journal.wait_for("begins", "task")
    worker.send(signal.SIGTERM)
    worker.kill()

    await cluster.start()
    record = await cluster.end_of(handle)
    assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0), record


async def test_a_child_that_gets_the_signal_too_charges_nothing(cluster: Cluster) -> None:
    worker = await cluster.start(grace=60)
    (handle,) = await cluster.enqueue(bodies.hold_in_process.call("task"))
    (begun,) = await cluster.journal.wait_for("begins", "task")
    worker.send(signal.SIGTERM)
    await announces_its_stop(cluster, worker)
    os.kill(begun.pid, signal.SIGTERM)
    assert await worker.ends() == 0
    record = await handle.status()
    assert (record.state, record.attempts, record.crashes, record.errors) == (State.READY, 0, 0, ()), record
