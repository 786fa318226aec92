"""Orders: what people told the engine to do is done and written down in one step."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.actions import HOUR, MILLISECOND, Worker, add, declare_limit, declare_pool, pass_time, state_of

from synergon.model.operator_actions import AuditRecord, NewAction, Verb
from synergon.model.record import from_datetime
from synergon.model.tasks import Cutoffs
from synergon.stores.base import Store


async def order(store: Store, verb: Verb, subject: str, value: Any = None) -> AuditRecord:
    return await store.act(NewAction(verb=verb, subject=subject, value=value, who="ada"))


async def test_an_order_is_done_and_written_down_with_who_when_what_and_outcome(store: Store) -> None:
    before = await store.now()
    given = await order(store, "pause", "mail")
    after = await store.now()
    (queue,) = await store.queues()
    assert queue.is_paused
    assert (given.verb, given.subject, given.who, given.outcome) == ("pause", "mail", "ada", "paused")
    assert before <= from_datetime(given.requested_at) <= after
    assert given.done_at == given.requested_at
    assert await store.audit() == [given]


async def test_every_verb_says_what_came_of_it(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 1)
    await declare_pool(store, a=1)
    task_id = await add(store)
    running = await add(store, kind="other")
    await worker.claim("other")
    orders: list[tuple[Verb, str, Any]] = [
        ("pause", "mail", None),
        ("pause", "mail", None),
        ("resume", "mail", None),
        ("resume", "mail", None),
        ("set_limit", "license", 3),
        ("set_limit", "license", None),
        ("set_servers", "gpu", [["b", 2], ["https://C.example/", None]]),
        ("add_server", "gpu", ["d", 1]),
        ("add_server", "gpu", ["b", 5]),
        ("close_server", "gpu", "b"),
        ("close_server", "gpu", "b"),
        ("remove_server", "gpu", "d"),
        ("cancel", str(task_id), "enough"),
        ("cancel", str(task_id), None),
        ("cancel", str(running), None),
        ("retry", str(running), None),
        ("retry", str(task_id), None),
        ("delete", str(running), None),
        ("delete", str(task_id), None),
        ("delete", str(task_id), None),
        ("delete_all", "kind=x", None),
    ]
    outcomes = [(await order(store, *entry)).outcome for entry in orders]
    assert outcomes == [
        "paused",
        "was paused already",
        "resumed",
        "was not paused",
        "limit license is 3 now, was 1",
        "limit license is unlimited now, was 3",
        "provider gpu has 2 servers now: a removed, was 1; b added with 2; https://c.example added with unlimited",
        "provider gpu has 3 servers now: d added with 1",
        "provider gpu has 3 servers now: b 2 → 5",
        "provider gpu has 3 servers now: b 5 → 0",
        "provider gpu has 3 servers now: nothing has changed",
        "provider gpu has 2 servers now: d removed, was 1",
        "cancelled",
        "ended before",
        "cancel requested",
        "rejected: the task is running",
        "retried",
        "rejected: the task is running",
        "deleted",
        "rejected: no task of that id",
        None,
    ]
    assert [given.outcome for given in await store.audit()] == outcomes[::-1]
    assert [(limit.name, limit.value) for limit in await store.limits()] == [("license", None)]
    assert [(one.address, one.capacity) for one in await store.servers()] == [("b", 0), ("https://c.example", None)]
    assert await state_of(store, task_id) is None


@pytest.mark.parametrize(
    ("verb", "subject", "value", "why"),
    [
        ("set_limit", "unheard of", 3, "no limit of that name"),
        ("set_limit", "license", -1, "a limit is a whole number"),
        ("set_limit", "license", True, "a limit is a whole number"),
        ("set_servers", "unheard of", [], "no provider of that name"),
        ("set_servers", "gpu", "b", "servers are"),
        ("set_servers", "gpu", [["b", -1]], "a capacity is a whole number"),
        ("set_servers", "gpu", [["b", 1], ["b", 2]], "the same address"),
        ("add_server", "unheard of", ["b", 1], "no provider of that name"),
        ("add_server", "gpu", "b", "a new server is [address, capacity]"),
        ("add_server", "gpu", ["b", -1], "a capacity is a whole number"),
        ("add_server", "gpu", [{}, 1], "address"),
        ("remove_server", "gpu", "b", "provider gpu has no server b; it has a"),
        ("close_server", "gpu", "b", "provider gpu has no server b; it has a"),
        ("close_server", "gpu", None, "address"),
        ("cancel", "4711", None, "no task of that id"),
        ("cancel", "x", None, "no id of a task"),
        ("stop", "nobody", None, "no node of that id"),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused_and_that_is_written_down(
    store: Store, verb: Verb, subject: str, value: Any, why: str
) -> None:
    await declare_limit(store, "license", 1)
    await declare_pool(store, a=1)
    refused = await order(store, verb, subject, value)
    assert refused.is_rejected
    assert (refused.outcome or "").startswith("rejected: ")
    assert why in (refused.outcome or "")
    assert refused.done_at == refused.requested_at
    assert await store.audit() == [refused]
    assert await store.audit(node_id=subject) == []
    assert not await store.action_done(refused.id, "done all the same")
    assert [limit.value for limit in await store.limits()] == [1]
    assert [one.address for one in await store.servers()] == ["a"]


async def test_a_node_carries_out_its_orders_once_oldest_first(store: Store, worker: Worker) -> None:
    await Worker.start(store, "other")
    given = [await order(store, verb, worker.node_id) for verb in ("cordon", "uncordon", "stop")]
    await order(store, "stop", "other")
    await order(store, "pause", worker.node_id)  # a queue may be named like a node
    assert [one.outcome for one in given] == [None] * 3
    assert await store.audit(node_id=worker.node_id) == given
    assert await store.audit(limit=1, node_id=worker.node_id) == given[:1]
    assert await store.action_done(given[0].id, "cordoned")
    assert not await store.action_done(given[0].id, "cordoned again")
    assert not await store.action_done(given[2].id + 4711, "cordoned")
    assert await store.audit(node_id=worker.node_id) == given[1:]
    (done,) = [one for one in await store.audit() if one.id == given[0].id]
    assert done.outcome == "cordoned"
    assert done.done_at is not None


async def test_orders_are_told_newest_first_and_no_more_than_asked(store: Store) -> None:
    given = [await order(store, "pause", f"queue-{number}") for number in range(5)]
    assert await store.audit(limit=3) == given[:1:-1]
    assert [one.id for one in given] == sorted({one.id for one in given})


async def test_old_orders_are_forgotten_oldest_first_in_batches(store: Store, worker: Worker) -> None:
    given = [await order(store, "pause", f"queue-{number}") for number in range(3)]
    waiting = await order(store, "stop", worker.node_id)
    await pass_time(store, MILLISECOND)
    await store.prune(Cutoffs(), 1000)
    await store.prune(Cutoffs(audit=HOUR), 1000)
    assert await store.audit() == [waiting, *given[::-1]]
    await store.prune(Cutoffs(audit=0), 2)
    assert await store.audit() == [waiting, given[2]]
    await store.prune(Cutoffs(audit=0), 1000)
    assert await store.audit() == await store.audit(node_id=worker.node_id) == []
