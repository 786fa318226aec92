"""A task that kills the process it runs in: it is stopped after three crashes that its parent saw, and no other task
pays for it."""

from __future__ import annotations

from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import Cluster, cluster_fixture  # noqa: F401

from synergon import Reason, State
from synergon.policies import OWNER_DEATH_LIMIT

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
    assert (record.crashes, record.attempts, record.claim_no) == (3, 0, 4)
    assert [error.type for error in record.errors] == ["NodeDied", *["Crash"] * 3]

    in_worker, *in_children = cluster.journal.entries("begins", "poison")
    assert in_worker.pid == first.pid
    assert len({entry.pid for entry in in_children}) == 3, "each in a process of its own"
    assert {entry.parent_pid for entry in in_children} == {second.pid}

    (after,) = await cluster.enqueue(bodies.hold.call("after", first=0))
    assert await after.result(timeout=30) == "after"
    assert cluster.journal.entries("ends", "after")[0].pid == second.pid


async def test_long_tasks_survive_three_poisonous_ones_that_take_their_workers_down_one_after_the_other(
    cluster: Cluster,
) -> None:
    innocents = await cluster.enqueue(*(bodies.wait_at_the_gate.call(label) for label in INNOCENTS[:3]))
    poisonous = []
    for number in range(3):
        worker = await cluster.start({"SYNERGON_CHILD_PROCESSES": "6"})
        await cluster.journal.wait_for("begins", *INNOCENTS[:3], times=number + 1)
        poisonous += await cluster.enqueue(bodies.poison.call(f"poison-{number}"))
        assert await worker.ends() == -9

    last = await cluster.start({"SYNERGON_CHILD_PROCESSES": "6"})
    for record in await cluster.ends_of(poisonous):
        assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.CRASHED, 3), record
    cluster.open_gate()
    for record in await cluster.ends_of(innocents):
        assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0), record
        assert record.claim_no == 4
    assert last.is_running


async def test_a_task_survives_nine_workers_that_are_killed_and_ends_with_the_tenth(cluster: Cluster) -> None:
    once, ever = await cluster.enqueue(bodies.wait_at_the_gate.call("once"), bodies.wait_at_the_gate.call("ever"))
    for number in range(OWNER_DEATH_LIMIT):
        worker = await cluster.start()
        await cluster.journal.wait_for("begins", "ever", times=number + 1)
        if number == OWNER_DEATH_LIMIT - 1:
            cluster.open_gate("once")
            record = await cluster.end_of(once)
            assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0), record
            assert record.owner_deaths == OWNER_DEATH_LIMIT - 1
        else:
            await cluster.journal.wait_for("begins", "once", times=number + 1)
        worker.kill()
        await worker.ends()

    await cluster.start()
    record = await cluster.end_of(ever)
    assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.CRASHED, 0), record
    assert [error.type for error in record.errors] == ["NodeDied"] * OWNER_DEATH_LIMIT


async def test_nine_innocent_tasks_that_shared_a_process_with_a_poisonous_one_all_succeed(cluster: Cluster) -> None:
    first = await cluster.start()
    innocents = await cluster.enqueue(*(bodies.hold.call(label) for label in INNOCENTS))
    await cluster.journal.wait_for("begins", *INNOCENTS)
    (poisonous,) = await cluster.enqueue(bodies.poison.call("poison"))
    assert await first.ends() == -9

    second = await cluster.start()
    for record in await cluster.ends_of(innocents):
        assert record.state is State.SUCCEEDED, record
        assert (record.attempts, record.crashes) == (1, 0), record
    record = await cluster.end_of(poisonous)
    assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.CRASHED, 3)
    assert second.is_running
