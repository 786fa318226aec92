"""A worker is killed in the middle of its work: the work runs again, soon, and the death is not held against it."""

from __future__ import annotations

import sqlite3
import time

from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import Cluster, WorkerProcess, cluster_fixture, is_alive, until  # noqa: F401
from tests.support import SOON, Pace

from synergon import Engine, Handle, State
from synergon.model.nodes import ProcessIdentity
from synergon.node.processes.executors import LocalExecutor

LABELS = ("coroutine", "thread", "process")


async def begin_one_of_each(cluster: Cluster) -> list[Handle[str]]:
    """A body that would hold for a minute, in each of the three ways that a body can run."""
    handles = await cluster.enqueue(
        bodies.hold.call("coroutine"), bodies.hold_in_thread.call("thread"), bodies.hold_in_process.call("process")
    )
    await cluster.journal.wait_for("begins", *LABELS)
    return handles


def hide_process_of(worker: WorkerProcess, cluster: Cluster) -> None:
    """Let the worker look as if it were in another container, whose processes nobody here can see."""
    database = sqlite3.connect(cluster.database, timeout=10)
    with database:
        changed = database.execute(
            "UPDATE synergon_node SET process = CAST(json_set(process, '$.pid_namespace', 'pid:[elsewhere]') AS BLOB)"
            " WHERE json_extract(process, '$.pid') = ?",
            (worker.pid,),
        )
    database.close()
    assert changed.rowcount == 1


async def end_of_lease(worker: WorkerProcess, cluster: Cluster) -> float:
    """When the lease of the worker runs out, if it is not renewed."""
    now = time.time()
    return now + next(node.lease_remaining for node in await cluster.engine.nodes() if node.process.pid == worker.pid)


async def all_were_claimed_again_at(handles: list[Handle[str]], cluster: Cluster) -> float:
    """When the last of them was; nothing was charged. How long a process takes to start is no matter."""
    claimed_at = []
    for record in await cluster.ends_of(handles):
        assert record.state is State.SUCCEEDED, record
        assert (record.attempts, record.crashes, record.claim_no) == (1, 0, 2), record
        assert record.started_at is not None
        claimed_at.append(record.started_at.timestamp())
    assert sorted(cluster.journal.labels("ends")) == sorted(LABELS)
    return max(claimed_at)


async def test_work_of_a_killed_process_runs_again_at_once_where_its_host_sees_that_it_is_gone(
    cluster: Cluster,
) -> None:
    victim = await cluster.start(lease=30)
    handles = await begin_one_of_each(cluster)
    await cluster.start(lease=30)
    ends_at = await end_of_lease(victim, cluster)
    victim.kill()
    assert await all_were_claimed_again_at(handles, cluster) < ends_at


async def test_work_of_a_killed_process_that_nobody_can_see_runs_again_within_the_lease_and_five_seconds(
    cluster: Cluster,
) -> None:
    victim = await cluster.start(lease=2)
    handles = await begin_one_of_each(cluster)
    hide_process_of(victim, cluster)
    await cluster.start(lease=2)
    with Pace() as pace:
        killed_at = time.time()
        victim.kill()
        seconds = await all_were_claimed_again_at(handles, cluster) - killed_at
    print(f"all three ran again after {seconds:.2f} s, with a lease of 2 s")
    assert seconds < 2 + 5 + pace.seconds(SOON)


async def test_a_child_process_does_not_outlive_the_worker_that_was_killed(cluster: Cluster) -> None:
    victim = await cluster.start()
    await cluster.enqueue(bodies.hold_in_process.call("child"))
    (begun,) = await cluster.journal.wait_for("begins", "child")
    assert begun.parent_pid == victim.pid
    assert is_alive(begun.pid)
    victim.kill()
    await until("the child is dead", lambda: not is_alive(begun.pid))
    assert not cluster.journal.entries("ends")


async def test_a_worker_that_starts_after_the_death_finds_the_work_too(cluster: Cluster) -> None:
    victim = await cluster.start(lease=30)
    handles = await begin_one_of_each(cluster)
    ends_at = await end_of_lease(victim, cluster)
    victim.kill()
    await cluster.start(lease=30)
    assert await all_were_claimed_again_at(handles, cluster) < ends_at


class Elsewhere(LocalExecutor):
    """Runs where the processes of this host cannot be seen."""

    def is_gone(self, process: ProcessIdentity) -> bool:
        return False


async def test_work_of_a_kind_that_the_new_worker_does_not_have_goes_back_to_the_others_at_once(
    cluster: Cluster,
) -> None:
    victim = await cluster.start(lease=30)
    (handle,) = await cluster.enqueue(bodies.hold.call("kind"))
    await cluster.journal.wait_for("begins", "kind")
    other, newer = (Engine(cluster.engine.settings.url, lease=30, sweep=3600) for _ in range(2))
    other._ports.make_executor = Elsewhere

    @other.task(name="hold")
    async def hold(label: str) -> str:
        return f"{label} ran elsewhere"

    @newer.task
    async def something_else() -> None: ...

    async with other.worker(concurrency=1):
        ends_at = await end_of_lease(victim, cluster)
        victim.kill()
        async with newer.worker():
            record = await cluster.end_of(handle)
    assert record.result == "kind ran elsewhere"
    assert (record.attempts, record.crashes) == (1, 0)
    assert record.started_at is not None
    assert record.started_at.timestamp() < ends_at


async def test_a_child_process_that_dies_by_itself_is_a_crash_and_not_an_attempt(cluster: Cluster) -> None:
    worker = await cluster.start()
    handles = await cluster.enqueue(bodies.die_once.call("s", "segfault"), bodies.die_once.call("e", "exit"))
    by_segfault, by_exit = await cluster.ends_of(handles)
    for record in (by_segfault, by_exit):
        assert record.state is State.SUCCEEDED, record
        assert (record.attempts, record.crashes, record.claim_no) == (1, 1, 2), record
        assert [error.type for error in record.errors] == ["Crash"]
    assert "SIGSEGV" in by_segfault.errors[0].message
    assert "code 3" in by_exit.errors[0].message
    assert worker.is_running
    assert {entry.parent_pid for entry in cluster.journal.entries("begins")} == {worker.pid}
