"""After a crash a task runs alone in a child process, and still can do what it could do before."""

from __future__ import annotations

import sqlite3

import psutil
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
    assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 1)
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


async def test_the_death_of_a_crowded_worker_does_not_make_another_start_a_crowd_of_processes(cluster: Cluster) -> None:
    labels = [f"body-{number}" for number in range(16)]
    first = await cluster.start(concurrency=100)
    handles = await cluster.enqueue(*(bodies.hold.call(label, first=60, later=0.3) for label in labels))
    await cluster.journal.wait_for("begins", *labels)
    first.kill()

    second = await cluster.start({"SYNERGON_CHILD_PROCESSES": "2"}, concurrency=100)
    most = 0

    async def have_ended() -> bool:
        nonlocal most
        most = max(most, len(psutil.Process(second.pid).children()))
        return (await cluster.engine.counts())[State.SUCCEEDED] == len(labels)

    await until("all have ended", have_ended)
    # One more may be seen on its way out while the next is on its way in.
    assert 1 <= most <= 4
    assert {record.attempts for record in await cluster.ends_of(handles)} == {1}
