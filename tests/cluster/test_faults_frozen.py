"""A process that stands still past its lease, and one that only looks as if it did."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import Cluster, cluster_fixture  # noqa: F401

from synergon import Call, State


@pytest.mark.parametrize(
    "call",
    [
        bodies.hold.call("task", first=2),
        bodies.hold_in_thread.call("task", first=2),
        bodies.hold_in_process.call("task", first=2),
    ],
    ids=["coroutine", "thread", "process"],
)
async def test_a_process_that_was_stopped_past_its_lease_cannot_finish_what_another_has_taken(
    cluster: Cluster, call: Call[str]
) -> None:
    frozen = await cluster.start(lease=2)
    old_id = await cluster.node_id_of(frozen)
    (handle,) = await cluster.enqueue(call)
    await cluster.journal.wait_for("begins", "task")
    await cluster.freeze(frozen)

    other = await cluster.start(lease=2)
    record = await cluster.end_of(handle)
    assert (record.state, record.claim_no, record.crashes) == (State.SUCCEEDED, 2, 0)
    frozen.thaw()  # by its own clock the body has slept for long enough, and returns

    await frozen.says("joined again as node")
    await frozen.says("came too late and was rejected")
    assert await cluster.end_of(handle) == record, "the late outcome changed something"
    assert await cluster.node_id_of(frozen) != old_id
    other.kill()

    (next_one,) = await cluster.enqueue(bodies.hold.call("next", first=0))
    assert await next_one.result(timeout=30) == "next"
    assert cluster.journal.entries("ends", "next")[0].pid == frozen.pid
    assert frozen.log.count("came too late") == 1
    assert frozen.log.count("has lost its lease") == 1


async def test_a_process_whose_thread_will_not_end_after_the_lease_was_lost_exits_with_code_75(
    cluster: Cluster,
) -> None:
    frozen = await cluster.start(lease=2)
    (handle,) = await cluster.enqueue(bodies.hold_in_thread.call("stubborn", first=60))
    await cluster.journal.wait_for("begins", "stubborn")
    await cluster.freeze(frozen)
    await cluster.start(lease=2)
    record = await cluster.end_of(handle)
    frozen.thaw()
    assert await frozen.ends() == 75
    assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0)
    assert await cluster.end_of(handle) == record
    assert [entry.claim_no for entry in cluster.journal.entries("ends")] == [2]


async def test_a_body_that_blocks_the_event_loop_for_longer_than_the_lease_keeps_its_task(cluster: Cluster) -> None:
    blocked = await cluster.start(lease=4)
    (handle,) = await cluster.enqueue(bodies.block_the_loop.call("task", first=5))
    await cluster.journal.wait_for("begins", "task")
    await cluster.start(lease=4)
    record = await cluster.end_of(handle)
    assert (record.state, record.attempts, record.crashes, record.claim_no) == (State.SUCCEEDED, 1, 0, 1)
    (only,) = cluster.journal.entries("begins")
    assert only.pid == blocked.pid
    assert "has lost its lease" not in blocked.log
    assert f"task {handle.id} (block_the_loop) has blocked the event loop" in blocked.log


async def test_a_process_that_has_joined_again_is_not_ended_for_the_work_it_took_since(cluster: Cluster) -> None:
    workers = [await cluster.start(lease=4, concurrency=1) for _ in range(2)]
    before = await cluster.enqueue(bodies.hold.call("before-1"), bodies.hold.call("before-2"))
    await cluster.journal.wait_for("begins", "before-1", "before-2")
    since = await cluster.enqueue(bodies.hold.call("since-1", first=1.5), bodies.hold.call("since-2", first=1.5))
    await cluster.freeze(*workers)
    await asyncio.sleep(4.3)
    for worker in workers:
        worker.thaw()
    for record in await cluster.ends_of([*before, *since]):
        assert record.state is State.SUCCEEDED, record
    for worker in workers:
        assert worker.is_running, worker.log
        assert worker.log.count("joined again as node") == 1
