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


async def test_a_crowd_of_long_bodies_runs_again_at_once_when_its_worker_has_died(cluster: Cluster) -> None:
    labels = [f"body-{number}" for number in range(12)]
    first = await cluster.start(concurrency=100)
    await cluster.enqueue(*(bodies.hold.call(label, first=60, later=60) for label in labels))
    await cluster.journal.wait_for("begins", *labels)
    first.kill()

    second = await cluster.start({"SYNERGON_CHILD_PROCESSES": "1"}, concurrency=100)

    def have_all_begun() -> bool:
        return all(len(cluster.journal.entries("begins", label)) == 2 for label in labels)

    await until("all run again, none waits for another", have_all_begun)
    again = {cluster.journal.entries("begins", label)[-1].pid for label in labels}
    assert len(again) == len(labels), "each in a process of its own"
    assert second.pid not in again
    children = {child.pid for child in psutil.Process(second.pid).children()}
    assert again <= children

    # Whoever shares the one place for processes, and whoever runs here, does not wait for them either.
    handles = await cluster.enqueue(bodies.enqueue_from_process.call("beside"), bodies.hold.call("here", first=0))
    assert [record.state for record in await cluster.ends_of(handles)] == [State.SUCCEEDED] * 2
