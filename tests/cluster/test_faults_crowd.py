"""Many workers on one file: each task runs once, on time, and what is killed under it explains every other start."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import cycle
from statistics import median

from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import IS_LONG_RUN, Cluster, cluster_fixture, until  # noqa: F401
from tests.support import SOON, Pace

from synergon import State

WATCH_SECONDS = 30 if IS_LONG_RUN else 1.5
"""How long to see whether anything runs again."""
KILLS = 10 if IS_LONG_RUN else 6


async def test_a_thousand_tasks_due_at_the_same_instant_run_once_each_on_three_workers(cluster: Cluster) -> None:
    due = datetime.now(UTC) + timedelta(seconds=2)
    labels = [f"task-{number}" for number in range(1000)]
    task = bodies.hold.with_options(run_at=due)
    workers = [cluster.launch() for _ in range(3)]
    handles = await cluster.enqueue(*(task.call(label, first=0) for label in labels))
    await asyncio.gather(*(cluster.joined(worker) for worker in workers))

    records = await cluster.ends_of(handles)
    assert {(record.state, record.attempts, record.claim_no) for record in records} == {(State.SUCCEEDED, 1, 1)}
    assert sorted(cluster.journal.labels("begins")) == sorted(labels)
    by_worker = Counter(entry.pid for entry in cluster.journal.entries("begins"))
    last = max(entry.at for entry in cluster.journal.entries("ends"))
    print(f"shares {sorted(by_worker.values())}; all done {last - due.timestamp():.3f} s after they were due")


async def test_tasks_due_one_to_five_seconds_from_now_run_on_time_and_never_again(cluster: Cluster) -> None:
    await asyncio.gather(*(cluster.start(sweep=3600) for _ in range(3)))  # so it is not the sweep that finds them
    labels = [f"in-{delay}" for delay in range(1, 6)]
    with Pace() as pace:
        handles = await cluster.enqueue(
            *(bodies.hold.with_options(delay=delay).call(f"in-{delay}", first=0) for delay in range(1, 6))
        )
        records = await cluster.ends_of(handles)
    begun = [cluster.journal.entries("begins", label)[0].at for label in labels]
    late = [at - record.run_at.timestamp() for at, record in zip(begun, records, strict=True)]
    print("late by " + ", ".join(f"{seconds * 1000:.1f}" for seconds in late) + " ms")
    assert min(late) > -0.002, "the store's clock has whole milliseconds"
    assert median(late) < pace.seconds(SOON)

    await asyncio.sleep(WATCH_SECONDS)
    assert cluster.journal.labels("begins") == labels
    assert await cluster.ends_of(handles) == records


async def test_workers_that_are_killed_again_and_again_lose_nothing_and_finish_nothing_twice(cluster: Cluster) -> None:
    labels = [f"task-{number}" for number in range(300 * KILLS)]
    handles = await cluster.enqueue(*(bodies.hold.call(label, first=0.025, later=0.025) for label in labels))
    workers = [cluster.launch(concurrency=5) for _ in range(3)]
    killed: set[int] = set()
    for turn in range(KILLS):
        victim = workers.pop(0)
        await cluster.joined(victim)
        await asyncio.sleep(0.4 + 0.02 * turn)
        victim.kill()
        killed.add(victim.pid)
        workers.append(cluster.launch(concurrency=5))
    await until("every task has ended", cluster.all_is_over, patience=90)

    records = await cluster.check_that_each_ended_once(handles)
    assert sorted(records) == sorted(labels)
    for record in records.values():
        deaths = sum(error.type == "NodeDied" for error in record.errors)
        assert record.claim_no == deaths + record.attempts, f"only a death leads to another claim: {record}"
    begun = cluster.journal.entries("begins")
    cut_short = [entry for entry in begun if entry.claim_no < records[entry.label].claim_no]
    assert all(killed & {entry.pid, entry.parent_pid} for entry in cut_short), "a process that lives has lost a claim"
    assert {(record.state, record.crashes) for record in records.values()} == {(State.SUCCEEDED, 0)}
    print(f"{len(cut_short)} bodies were killed")


async def test_a_rolling_restart_under_load_costs_no_task_anything(cluster: Cluster) -> None:
    labels = [f"task-{number}" for number in range(120)]
    ways = [bodies.hold] * 3 + [bodies.hold_in_thread] + [bodies.hold_in_process]
    handles = await cluster.enqueue(
        *(way.call(label, first=0.2, later=0.1) for way, label in zip(cycle(ways), labels, strict=False))
    )
    workers = [cluster.launch(concurrency=6, grace=0) for _ in range(2)]
    for _ in range(4):
        leaving = workers.pop(0)
        await cluster.joined(leaving)
        await asyncio.sleep(0.3)
        leaving.send(signal.SIGTERM)
        workers.append(cluster.launch(concurrency=6, grace=0))
        assert await leaving.ends() == 0

    records = await cluster.check_that_each_ended_once(handles)
    assert {(record.state, record.attempts, record.crashes) for record in records.values()} == {(State.SUCCEEDED, 1, 0)}
    print(f"{sum(record.claim_no > 1 for record in records.values())} tasks were given back")


async def test_processes_of_the_same_name_never_touch_each_others_work(cluster: Cluster) -> None:
    first = await cluster.start(name="twin", concurrency=1, lease=6)
    (of_first,) = await cluster.enqueue(bodies.wait_at_the_gate.call("of-first"))
    await cluster.journal.wait_for("begins", "of-first")
    second = await cluster.start(name="twin", concurrency=1, lease=6)
    (of_second,) = await cluster.enqueue(bodies.hold.call("of-second"))
    (begun,) = await cluster.journal.wait_for("begins", "of-second")
    assert begun.pid == second.pid
    second.kill()
    third = await cluster.start(name="twin", concurrency=1, lease=6)
    third.send(signal.SIGTERM)
    assert await third.ends() == 0

    cluster.open_gate()
    undisturbed = await cluster.end_of(of_first)
    assert (undisturbed.state, undisturbed.claim_no, undisturbed.crashes) == (State.SUCCEEDED, 1, 0)
    assert cluster.journal.entries("ends", "of-first")[0].pid == first.pid
    bereaved = await cluster.end_of(of_second)
    assert (bereaved.state, bereaved.attempts, bereaved.crashes) == (State.SUCCEEDED, 1, 0)
