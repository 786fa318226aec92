"""The child processes and slots of a node: kinds that share them are taken together, in the order of all tasks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.actions import HOUR, Worker, add, add_many, amounts, declare_pool, demands
from tests.stores.test_capacity import ids_of, kind_request

from synergon.model.claims import KindRequest
from synergon.model.requirements import (
    ONE_PROCESS,
    PROCESS,
    SLOT,
    UNIT,
    Requirements,
    parse_requirements,
    with_execution,
)
from synergon.stores.base import Store

IN_CHILD = Requirements(is_process=True).text
NOT_IN_CHILD = Requirements(is_process=False).text


def child(kind: str, **more: Any) -> KindRequest:
    """For many tasks of a kind whose bodies run in child processes."""
    return KindRequest(kind=kind, count=1000, requirements=ONE_PROCESS, **more)


def node(free: int, of: int = 2, cpu: float = 0, **more: Any) -> dict[str, Any]:
    """A node with so many child processes."""
    totals, left = {PROCESS: of * UNIT, **amounts(cpu=8)}, {PROCESS: free * UNIT, **amounts(cpu=cpu)}
    return {"totals": totals, "free": left, **more}


async def test_kinds_share_child_processes_in_the_order_of_all_tasks(store: Store, worker: Worker) -> None:
    first = await add(store, kind="a")
    plain = await add(store, kind="plain")
    second = await add_many(store, 2, kind="b")
    high = await add(store, kind="b", priority=1)
    last = await add(store, kind="plain")
    kind_requests = (child("a"), child("b"), kind_request("plain"))
    claims = await worker.claim_kinds(*kind_requests, patience=HOUR, **node(2))
    assert ids_of(claims) == [high, first, plain, last]
    assert claims.unfit == {"b"}
    assert ids_of(await worker.claim_kinds(*kind_requests, **node(2))) == second


async def test_others_do_not_wait_for_a_backlog_in_child_processes(store: Store, worker: Worker) -> None:
    await add_many(store, 3, kind="a")
    await add_many(store, 3, kind="b")
    plain = await add(store, kind="plain", priority=-1)
    kind_requests = (child("a"), child("b"), kind_request("plain"))
    assert len(await worker.claim_kinds(*kind_requests, limit=2, **node(2))) == 2
    assert ids_of(await worker.claim_kinds(*kind_requests, limit=2, **node(0))) == [plain]


@pytest.mark.parametrize(("free", "taken"), [(2, 2), (0, 0), (-1, 0)])
async def test_a_kind_alone_takes_no_more_child_processes_than_are_free(
    store: Store, worker: Worker, free: int, taken: int
) -> None:
    ids = await add_many(store, 4, kind="a", queue="x")
    plain = await add(store, kind="plain")
    claims = await worker.claim_kinds(child("a"), kind_request("plain"), **node(free))
    assert ids_of(claims) == [*ids[:taken], plain]


async def test_a_row_that_says_so_takes_a_child_process_whatever_its_kind(store: Store, worker: Worker) -> None:
    (first, *_), silent = await add_many(store, 3, requirements=IN_CHILD), await add(store)
    claims = await worker.claim_kinds(kind_request(), child("a"), patience=HOUR, **node(1))
    assert [(claim.id, claim.requirements) for claim in claims] == [(first, IN_CHILD), (silent, "")]
    assert claims.unfit == {"work"}
    assert await worker.claim_kinds(kind_request(), child("a"), **node(0)) == []


async def test_a_row_that_says_so_takes_none_although_its_kind_does(store: Store, worker: Worker) -> None:
    await add(store, kind="a")
    beside = await add(store, kind="a", requirements=NOT_IN_CHILD)
    assert ids_of(await worker.claim_kinds(child("a"), **node(0))) == [beside]


async def test_a_row_that_leaves_its_cost_to_the_kind_takes_both(store: Store, worker: Worker) -> None:
    said = Requirements(left_to_kind=("cost", "needs", "forbids"), is_process=True).text
    task_id = await add(store, requirements=said)
    of_kind = kind_request(requirements=demands(cpu=2))
    for short in (node(1, cpu=1), node(0, cpu=2)):
        assert await worker.claim_kinds(of_kind, **short) == []
    assert ids_of(await worker.claim_kinds(of_kind, **node(1, cpu=2))) == [task_id]


async def test_a_node_without_child_processes_never_takes_what_needs_one(store: Store, worker: Worker) -> None:
    await add(store, kind="a")
    await add(store, requirements=IN_CHILD)
    claims = await worker.claim_kinds(child("a"), kind_request(), child("b"), **node(0, of=0))
    assert (ids_of(claims), claims.unfit) == ([], frozenset())


async def test_no_room_is_kept_for_a_task_that_lacks_a_child_process(store: Store, worker: Worker) -> None:
    await add(store, kind="a", requirements=demands(cpu=4))
    await add(store, requirements=IN_CHILD)
    claims = await worker.claim_kinds(child("a"), child("b"), kind_request(), patience=0, **node(0))
    assert (ids_of(claims), claims.reserved, claims.unfit) == ([], None, frozenset({"a", "work"}))


async def test_room_is_kept_for_a_big_task_with_the_child_process_that_it_takes(store: Store, worker: Worker) -> None:
    big = await add(store, kind="a", requirements=demands(cpu=4))
    small = await add(store, kind="b")
    kind_requests = (child("a"), child("b"))
    kept = (await worker.claim_kinds(*kind_requests, patience=0, shares=(amounts(cpu=1),), **node(1, cpu=2))).reserved
    assert kept is not None
    assert (kept.id, kept.requirements) == (big, with_execution(parse_requirements(demands(cpu=4)), is_process=True))
    held: dict[str, Any] = {"reserved_task": big, "held": kept.requirements.cost}
    assert await worker.claim_kinds(*kind_requests, **node(1, cpu=2), **held) == []
    assert ids_of(await worker.claim_kinds(*kind_requests, **node(2, cpu=4), **held)) == [big, small]


async def test_a_command_waits_for_a_child_process_and_takes_no_slot(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=None)
    stops = await add_many(store, 2, kind="stop", is_command=True, provider="gpu", target="a")
    plain = await add(store, kind="plain")
    kind_requests = (child("stop", provider="gpu", is_command=True), kind_request("plain"))
    assert ids_of(await worker.claim_kinds(*kind_requests, limit=1, **node(1))) == [stops[0], plain]
    assert await worker.claim_kinds(*kind_requests, limit=1, **node(0)) == []
    assert ids_of(await worker.claim_kinds(*kind_requests, limit=0, **node(1))) == stops[1:]


# ---------------------------------------------------------------- urgent


async def test_urgent_kinds_share_what_others_yield_by_the_priority_of_their_tasks(
    store: Store, worker: Worker
) -> None:
    low = await add_many(store, 2, kind="a", priority=1)
    high = await add_many(store, 2, kind="b", priority=2)
    plain = await add(store, kind="plain", priority=9)
    kind_requests = [kind_request(kind, is_urgent=True) for kind in "ab"]
    claims = await worker.claim_kinds(*kind_requests, kind_request("plain"), limit=1, yielding={SLOT: 2})
    assert ids_of(claims) == [*high, low[0]]
    assert ids_of(await worker.claim_kinds(*kind_requests, kind_request("plain"), limit=0)) == []
    assert ids_of(await worker.claim_kinds(*kind_requests, kind_request("plain"), limit=2)) == [low[1], plain]


async def test_urgent_kinds_share_the_child_processes_that_others_yield(store: Store, worker: Worker) -> None:
    first, *_ = await add_many(store, 2, kind="a")
    high = await add(store, kind="b", priority=1)
    threaded = await add(store, kind="c")
    kind_requests = [
        child("a", is_urgent=True),
        child("b", is_urgent=True),
        kind_request("c", is_urgent=True),
        child("d"),
    ]
    await add(store, kind="d", priority=9)
    claims = await worker.claim_kinds(*kind_requests, **node(1), yielding={PROCESS: UNIT})
    assert ids_of(claims) == [high, first, threaded]


async def test_tasks_of_a_short_kind_are_claimed_ahead(store: Store, worker: Worker) -> None:
    ids = await add_many(store, 9, kind="a")
    plain = await add(store, kind="plain")
    claims = await worker.claim_kinds(child("a", ahead=3), kind_request("plain"), **node(1))
    assert ids_of(claims) == [*ids[:4], plain]
    assert ids_of(await worker.claim_kinds(child("a", ahead=2), **node(0))) == ids[4:6]
    assert ids_of(await worker.claim_kinds(child("a", ahead=3), child("b"), **node(0))) == [], "b is not short"
    assert ids_of(await worker.claim_kinds(child("a", ahead=2), child("b", ahead=1), **node(0))) == ids[6:7]


async def test_nothing_is_claimed_ahead_beside_tasks_with_requirements_of_their_own(
    store: Store, worker: Worker
) -> None:
    ids = await add_many(store, 3, kind="a")
    suspect = await add(store, kind="a", requirements=IN_CHILD)
    assert ids_of(await worker.claim_kinds(child("a", ahead=3), **node(1))) == ids[:1]
    assert ids_of(await worker.claim_kinds(child("a", ahead=3), **node(0))) == []
    assert ids_of(await worker.claim_kinds(child("a", ahead=3), **node(3))) == [*ids[1:], suspect]
