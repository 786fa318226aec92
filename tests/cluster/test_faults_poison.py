"""A task that kills the process it runs in: it is stopped after three crashes, and nobody else pays for it."""

from __future__ import annotations

from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import Cluster, cluster_fixture  # noqa: F401

from synergon import Reason, State

INNOCENTS = tuple(f"innocent-{number}" for number in range(9))


async def test_a_task_that_kills_its_process_ends_crashed_after_three_and_the_second_worker_lives_on(
    cluster: Cluster,
) -> None:
    first = await cluster.start()
    (handle,) = await cluster.enqueue(bodies.poison.call("poison"))
    assert await first.ends() == -9

    second = await cluster.start()
    record = await cluster.end_of(handle)
    assert (record.state, record.reason) == (State.FAILED, Reason.CRASHED)
    assert (record.crashes, record.attempts, record.claim_no) == (3, 0, 3)
    assert [error.type for error in record.errors] == ["Crash"] * 3

    in_worker, *in_children = cluster.journal.entries("begins", "poison")
    assert in_worker.pid == first.pid
    assert len({entry.pid for entry in in_children}) == 2, "each in a process of its own"
    assert {entry.parent_pid for entry in in_children} == {second.pid}

    (after,) = await cluster.enqueue(bodies.hold.call("after", first=0))
    assert await after.result(timeout=30) == "after"
    assert cluster.journal.entries("ends", "after")[0].pid == second.pid


async def test_nine_innocent_tasks_that_shared_a_process_with_a_poisonous_one_all_succeed(cluster: Cluster) -> None:
    first = await cluster.start()
    innocents = await cluster.enqueue(*(bodies.hold.call(label) for label in INNOCENTS))
    await cluster.journal.wait_for("begins", *INNOCENTS)
    (poisonous,) = await cluster.enqueue(bodies.poison.call("poison"))
    assert await first.ends() == -9

    second = await cluster.start()
    for record in await cluster.ends_of(innocents):
        assert record.state is State.SUCCEEDED, record
        assert (record.attempts, record.crashes) == (1, 1), record
    record = await cluster.end_of(poisonous)
    assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.CRASHED, 3)
    assert second.is_running
