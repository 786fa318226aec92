"""Batches on real processes that are killed: none of their items is lost, and none ends twice."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.cluster.apps import faults_bodies as bodies
from tests.cluster.support import IS_LONG_RUN, Cluster, cluster_fixture, until  # noqa: F401

from synergon import Handle, Reason, State
from synergon.call import Call

ITEMS: Final = 100_000 if IS_LONG_RUN else 2_000
POISONOUS_AMONG: Final = 1_000
CHILDREN: Final = {"SYNERGON_CHILD_PROCESSES": "2", "SYNERGON_CONCURRENCY": "2"}
"""Few batches at once: all that run when the worker dies are isolated, and a process for each item takes its time."""


def labels(number: int) -> list[str]:
    """One poisonous item among every thousand."""
    return [f"poison-{n}" if n % POISONOUS_AMONG == 500 else f"item-{n}" for n in range(number)]


async def enqueue(cluster: Cluster, calls: list[Call[str | None]]) -> list[Handle[object]]:
    return [
        handle for start in range(0, len(calls), 1000) for handle in await cluster.enqueue(*calls[start : start + 1000])
    ]


async def test_a_poisonous_item_among_a_thousand_costs_no_other_item(cluster: Cluster) -> None:
    names = labels(ITEMS)
    handles = await enqueue(cluster, [bodies.batched.call(name) for name in names])
    worker = await cluster.start(CHILDREN)

    async def is_over() -> bool:
        nonlocal worker
        if not worker.is_running:  # a poisonous item has killed it, and a supervisor would start another one
            worker = await cluster.start(CHILDREN)
        return await cluster.all_is_over()

    await until("all items end", is_over, patience=60 + ITEMS / 20)
    ends = Counter(cluster.journal.labels("ends"))
    for name, record in zip(names, await cluster.ends_of(handles), strict=True):
        if name.startswith("poison"):
            assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.CRASHED, 3), record
        else:
            assert (record.state, record.crashes, record.result) == (State.SUCCEEDED, 0, name), record
            # A worker that dies may have run it, and not stored that yet: then it has been claimed again.
            assert 1 <= ends[name] <= record.claim_no, f"{name} ran {ends[name]} times in {record.claim_no} claims"
    assert ends.keys() == {name for name in names if name.startswith("item")}


async def test_a_poisonous_item_in_a_child_process_costs_no_other_item(cluster: Cluster) -> None:
    worker = await cluster.start(CHILDREN)
    names = ["item-0", "poison-1", *(f"item-{number}" for number in range(2, 20))]
    handles = await enqueue(cluster, [bodies.batched_in_process.call(name) for name in names])
    records = await cluster.ends_of(handles)
    assert [record.state for record in records] == [
        State.FAILED if name.startswith("poison") else State.SUCCEEDED for name in names
    ]
    assert records[1].crashes == 3
    assert Counter(cluster.journal.labels("ends")) == Counter(name for name in names if name.startswith("item"))
    assert worker.is_running


async def test_a_killed_worker_gives_its_batch_to_another(cluster: Cluster) -> None:
    names = [f"item-{number}" for number in range(100)]
    handles = await enqueue(cluster, [bodies.batched.call(name) for name in names])
    first = await cluster.start(CHILDREN)
    await cluster.journal.wait_for("begins", "item-0")
    first.kill()
    await first.ends()
    await cluster.start(CHILDREN)
    for record in await cluster.ends_of(handles):
        assert record.state is State.SUCCEEDED, record
