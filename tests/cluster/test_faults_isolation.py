"""After the death of its worker a task runs isolated, and still can do what it could do before."""

from __future__ import annotations

import sqlite3

from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import Cluster, cluster_fixture, until  # noqa: F401

from synergon import State


async def test_a_body_with_a_transaction_survives_the_death_of_its_worker(cluster: Cluster) -> None:
    first = await cluster.start()
    (handle,) = await cluster.enqueue(bodies.hold_then_write.call("order"))
    await cluster.journal.wait_for("begins", "order")
    first.kill()

    second = await cluster.start()
    record = await cluster.end_of(handle)
    assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0)
    assert cluster.journal.entries("ends", "order")[-1].pid == second.pid, "in the worker's own process"
    with sqlite3.connect(cluster.database) as database:
        assert database.execute("SELECT label FROM written").fetchall() == [("order",)]
    database.close()


async def test_bodies_in_child_processes_can_enqueue_and_wait(cluster: Cluster) -> None:
    await cluster.start()
    handles = await cluster.enqueue(
        bodies.enqueue_from_process.call("with a loop"),
        bodies.enqueue_from_process_without_a_loop.call("without"),
    )
    assert [record.result for record in await cluster.ends_of(handles)] == ["with a loop", "without"]


async def test_suspects_run_a_few_at_a_time_in_processes_of_their_own_and_others_do_not_wait_for_them(
    cluster: Cluster,
) -> None:
    labels = [f"body-{number}" for number in range(6)]
    first = await cluster.start(concurrency=100)
    suspects = await cluster.enqueue(*(bodies.wait_at_the_gate.call(label) for label in labels))
    await cluster.journal.wait_for("begins", *labels)
    first.kill()

    second = await cluster.start({"SYNERGON_CHILD_PROCESSES": "2"}, concurrency=100)
    await until("two of them run again", lambda: len(cluster.journal.entries("begins")) == len(labels) + 2)
    others = await cluster.enqueue(*(bodies.hold.call(f"fresh-{number}", first=0) for number in range(5)))
    assert [record.state for record in await cluster.ends_of(others)] == [State.SUCCEEDED] * 5
    again = [entry for label in labels for entry in cluster.journal.entries("begins", label)[1:]]
    assert len({entry.pid for entry in again}) == len(again) == 2
    assert {entry.parent_pid for entry in again} == {second.pid}

    cluster.open_gate()
    for record in await cluster.ends_of(suspects):
        assert (record.state, record.attempts, record.crashes, record.claim_no) == (State.SUCCEEDED, 1, 0, 2)
    pids = [cluster.journal.entries("ends", label)[0].pid for label in labels]
    assert len(set(pids)) == len(labels), "each in a process of its own"
    assert second.pid not in pids


async def test_a_suspect_that_cannot_be_isolated_runs_alone_on_its_worker(cluster: Cluster) -> None:
    first = await cluster.start()
    (suspect,) = await cluster.enqueue(bodies.hold_then_write.call("suspect"))
    await cluster.journal.wait_for("begins", "suspect")
    first.kill()

    second = await cluster.start(concurrency=4)
    (neighbour,) = await cluster.enqueue(bodies.wait_at_the_gate.call("neighbour"))
    await cluster.journal.wait_for("begins", "neighbour")
    (written,) = await cluster.enqueue(bodies.hold_then_write.call("written", first=0))
    await cluster.end_of(written)  # from now on the worker knows that the function cannot run in a child
    cluster.open_gate()
    await cluster.end_of(neighbour)
    assert (await cluster.end_of(suspect)).state is State.SUCCEEDED
    (ended,) = cluster.journal.entries("ends", "suspect")
    assert ended.pid == second.pid
    begun = [entry for entry in cluster.journal.entries("begins", "suspect") if entry.pid == second.pid]
    assert begun[-1].at >= cluster.journal.entries("ends", "neighbour")[0].at
