"""What tasks requirements of a node: it stands in the row, and a node is given what it can carry, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.actions import (
    HOUR,
    OUTCOMES,
    Worker,
    add,
    add_in_state,
    add_many,
    amounts,
    declare_limit,
    declare_pool,
    demands,
    listed,
    read,
    states,
)

from synergon.model.claims import Claims, KindRequest
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import State
from synergon.model.outcomes import Succeeded
from synergon.model.requirements import NO_REQUIREMENTS, parse_requirements
from synergon.model.tasks import NewTask
from synergon.stores.base import Store

WORK = KindRequest(kind="work", count=1000)


def machine(labels: str = "", **numbers: float) -> dict[str, Any]:
    """A node that has so much, all of it free."""
    return {"labels": frozenset(labels.split()), "totals": amounts(**numbers), "free": amounts(**numbers)}


def kind_request(kind: str = "work", requirements: str = "", **more: Any) -> KindRequest:
    """For many tasks of the kind, which requirements this if their rows say nothing."""
    return KindRequest(
        kind=kind,
        count=1000,
        requirements=parse_requirements(requirements) if requirements else NO_REQUIREMENTS,
        **more,
    )


def ids_of(claims: Claims) -> list[int]:
    return [claim.id for claim in claims]


# ---------------------------------------------------------------- the row


async def test_the_row_says_what_was_demanded_and_so_does_the_claim(store: Store, worker: Worker) -> None:
    asked = demands("gpu:a100", "zone:us", cpu=1, gpu=0.5)
    said, silent = await add(store, requirements=asked), await add(store)
    assert [(await read(store, task_id)).requirements for task_id in (said, silent)] == [asked, ""]
    claims = await worker.claim_kinds(WORK, **machine("gpu:a100", cpu=1, gpu=1))
    assert [(claim.id, claim.requirements) for claim in claims] == [(said, asked), (silent, "")]
    await worker.finish(claims[0], OUTCOMES["handed back"])
    assert (await read(store, said)).requirements == asked
    assert await listed(store, states=frozenset({State.READY})) == [said]


async def test_who_replaces_a_task_replaces_what_it_demands(store: Store, worker: Worker) -> None:
    task_id = await add(store, key="k", requirements=demands(cpu=9))
    assert await add(store, key="k", requirements=demands(cpu=8)) == task_id
    assert (await read(store, task_id)).requirements == demands(cpu=9)
    for asked in (demands(cpu=2), "", demands(cpu=1)):
        await add(store, key="k", on_conflict="replace", requirements=asked)
        assert (await read(store, task_id)).requirements == asked
    assert ids_of(await worker.claim_kinds(WORK, **machine(cpu=1))) == [task_id]
    assert ids_of(await worker.claim_kinds(WORK, **machine(cpu=9))) == []


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
async def test_a_task_that_is_run_again_demands_what_it_did(store: Store, worker: Worker, state: State) -> None:
    asked = demands(forbids="small")
    task_id = await add_in_state(store, state, requirements=asked)
    assert (await read(store, task_id)).requirements == asked
    await store.retry([task_id])
    assert (await read(store, task_id)).requirements == asked
    assert ids_of(await worker.claim_kinds(WORK, **machine("small"))) == []
    (claim,) = await worker.claim_kinds(WORK)
    assert claim.requirements == asked


async def test_children_and_tasks_of_a_group_say_what_they_demand(store: Store, worker: Worker) -> None:
    await add(store)
    children = tuple(NewTask(kind="child", requirements=asked) for asked in (demands(cpu=2), ""))
    verdict = await worker.run(Succeeded(children=children))
    group = await store.open_group(
        NewGroup(
            name="g",
            tasks=(NewTask(kind="child", requirements=demands(cpu=3)),),
            then=NewTask(kind="then", requirements=demands(cpu=4)),
        )
    )
    assert group.then is not None
    found = [*verdict.child_ids, group.insertions[0].id, group.then.id]
    assert [(await read(store, task_id)).requirements for task_id in found] == [
        demands(cpu=2),
        "",
        demands(cpu=3),
        demands(cpu=4),
    ]


# ---------------------------------------------------------------- who can carry what


async def test_a_node_gets_what_its_labels_allow(store: Store, worker: Worker) -> None:
    texts = (demands("a"), demands("a b"), demands(forbids="a"), demands("b", "c"), demands())
    needs_a, needs_both, no_a, b_without_c, anywhere = [await add(store, requirements=text) for text in texts]
    assert ids_of(await worker.claim_kinds(WORK, labels=frozenset("c"), limit=1)) == [no_a]
    assert ids_of(await worker.claim_kinds(WORK, labels=frozenset("ac"))) == [needs_a, anywhere]
    assert ids_of(await worker.claim_kinds(WORK, labels=frozenset("abc"))) == [needs_both]
    assert ids_of(await worker.claim_kinds(WORK, labels=frozenset("b"))) == [b_without_c]


async def test_the_room_says_what_silent_tasks_demand(store: Store, worker: Worker) -> None:
    silent = await add_many(store, 3)
    modest = await add(store, requirements=demands())
    greedy = await add(store, requirements=demands(cpu=9))
    claims = await worker.claim_kinds(kind_request(requirements=demands("a", cpu=2)), **machine("a", cpu=5))
    assert ids_of(claims) == [*silent[:2], modest]
    assert await worker.claim_kinds(kind_request(requirements=demands("b")), **machine("a", cpu=5)) == []
    assert ids_of(await worker.claim_kinds(WORK, **machine(cpu=9))) == [silent[2], greedy]


async def test_costs_fill_a_machine_exactly(store: Store, worker: Worker) -> None:
    ids = [
        await add(store, requirements=demands(cpu=cpu, ram=ram))
        for cpu, ram in ((3, 1), (3, 1), (3, 1), (1, 9), (2, 1))
    ]
    claims = await worker.claim_kinds(WORK, **machine(cpu=8, ram=9))
    assert ids_of(claims) == [ids[0], ids[1], ids[4]]
    assert await worker.claim_kinds(WORK, totals=amounts(cpu=8, ram=9), free=amounts(ram=6)) == []
    await worker.finish(claims[0], Succeeded())
    assert ids_of(await worker.claim_kinds(WORK, totals=amounts(cpu=8, ram=9), free=amounts(cpu=3, ram=7))) == [ids[2]]


async def test_the_smallest_part_that_is_missing_is_missing(store: Store, worker: Worker) -> None:
    task_id = await add(store, requirements=demands(gpu=0.3))
    rest = await add_many(store, 4, requirements=demands(gpu=0.3))
    almost: dict[str, Any] = {"totals": amounts(gpu=1), "free": {"gpu": 299_999}}
    assert await worker.claim_kinds(WORK, **almost) == []
    assert ids_of(await worker.claim_kinds(WORK, **{**almost, "free": {"gpu": 300_000}})) == [task_id]
    assert ids_of(await worker.claim_kinds(WORK, **machine(gpu=1))) == rest[:3]


async def test_what_the_node_does_not_have_at_all_is_nothing(store: Store, worker: Worker) -> None:
    await add(store, requirements=demands(license=1))
    free = await add(store, requirements=demands(license=0))
    assert ids_of(await worker.claim_kinds(WORK, **machine(cpu=4))) == [free]


async def test_kinds_queues_and_demands_share_one_machine_in_one_order(store: Store, worker: Worker) -> None:
    small = await add(store, kind="a", queue="x", requirements=demands(cpu=1))
    big = await add(store, kind="b", queue="y", requirements=demands(cpu=5), priority=1)
    silent = await add(store, kind="b", queue="x")
    late = await add(store, kind="a", queue="y", requirements=demands(cpu=1))
    kind_requests = (kind_request("a"), kind_request("b", demands(cpu=1)))
    assert ids_of(await worker.claim_kinds(*kind_requests, **machine(cpu=7))) == [big, small, silent]
    assert ids_of(await worker.claim_kinds(*kind_requests, **machine(cpu=7))) == [late]


async def test_a_node_in_debt_gets_only_what_costs_nothing_of_it(store: Store, worker: Worker) -> None:
    await add(store, requirements=demands(cpu=1))
    other, free = await add(store, requirements=demands(ram=1)), await add(store)
    found = await worker.claim_kinds(WORK, totals=amounts(cpu=8, ram=8), free={"cpu": -1, "ram": 1_000_000})
    assert ids_of(found) == [other, free]


async def test_paused_queues_expired_tasks_and_unwanted_queues_give_nothing(store: Store, worker: Worker) -> None:
    asked = demands(cpu=1)
    await add(store, requirements=asked, queue="closed")
    await add(store, requirements=asked, expires_in=0)
    await add(store, requirements=asked, queue="other")
    wanted = await add(store, requirements=asked)
    await store.pause(["closed"])
    queues = frozenset({"default", "closed"})
    assert ids_of(await worker.claim_kinds(WORK, queues=queues, **machine(cpu=4))) == [wanted]


async def test_a_demanding_task_that_comes_and_goes_is_one_task(store: Store, worker: Worker) -> None:
    ids = await add_many(store, 3, requirements=demands(cpu=1))
    later = await add(store, requirements=demands(cpu=1), delay=HOUR)
    await store.cancel(ids[:1])
    await store.delete(ids[1:2])
    await store.retry(ids[:1])
    assert ids_of(await worker.claim_kinds(WORK, **machine(cpu=4))) == [ids[0], ids[2]]
    assert await states(store, [later]) == [State.SCHEDULED]


# ---------------------------------------------------------------- nobody is hidden


@pytest.mark.parametrize(
    "unfit",
    [demands("nowhere"), demands(cpu=99), demands(cpu=2), demands(forbids="here")],
    ids=["label", "too big", "no room now", "forbidden"],
)
async def test_a_thousand_that_do_not_fit_hide_none_that_does(store: Store, worker: Worker, unfit: str) -> None:
    await add_many(store, 1100, requirements=unfit, priority=1)
    wanted = await add(store, requirements=demands(cpu=1))
    silent = await add(store)
    state: dict[str, Any] = {"labels": frozenset({"here"}), "totals": amounts(cpu=4), "free": amounts(cpu=1)}
    assert ids_of(await worker.claim_kinds(WORK, limit=2, **state)) == [wanted, silent]


async def test_many_different_demands_hide_none_that_fits(store: Store, worker: Worker) -> None:
    await store.insert([NewTask(kind="work", requirements=demands(cpu=2 + number)) for number in range(100)])
    wanted = await add(store, requirements=demands(cpu=1))
    assert ids_of(await worker.claim_kinds(WORK, totals=amounts(cpu=40), free=amounts(cpu=1))) == [wanted]
    assert len(await listed(store, states=frozenset({State.READY}))) == 100


# ---------------------------------------------------------------- beside limits and servers


async def test_limits_and_the_machine_must_both_have_room(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 3)
    big = await add_many(store, 2, requirements=demands(cpu=3))
    small = await add_many(store, 4, requirements=demands(cpu=1))
    claims = await worker.claim_kinds(kind_request(limits=("license",)), **machine(cpu=5))
    assert ids_of(claims) == [big[0], *small[:2]]
    assert await worker.claim_kinds(kind_request(limits=("license",)), **machine(cpu=5)) == []
    await worker.finish(claims[1], Succeeded())
    assert ids_of(await worker.claim_kinds(kind_request(limits=("license",)), **machine(cpu=5))) == [big[1]]
    (limit,) = await store.limits()
    assert limit.in_use == 3


async def test_what_does_not_fit_takes_no_place_of_a_limit_and_no_server(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 1)
    await declare_pool(store, a=1, b=1)
    await add_many(store, 3, requirements=demands(cpu=9), priority=1)
    ids = await add_many(store, 3, requirements=demands(cpu=1))
    claims = await worker.claim_kinds(kind_request(limits=("license",), provider="gpu"), **machine(cpu=5))
    assert ids_of(claims) == ids[:1]
    assert claims[0].server in ("a", "b")
    await store.set_limit("license", None)
    claims += await worker.claim_kinds(kind_request(limits=("license",), provider="gpu"), **machine(cpu=5))
    assert {claim.server for claim in claims} == {"a", "b"}


async def test_a_full_kind_leaves_the_machine_to_others(store: Store, worker: Worker) -> None:
    await declare_limit(store, "kind:full", 1)
    full = await add_many(store, 3, kind="full", requirements=demands(cpu=1), priority=1)
    free = await add_many(store, 3, kind="free", requirements=demands(cpu=1))
    kind_requests = (kind_request("full", limits=("kind:full",)), kind_request("free"))
    assert ids_of(await worker.claim_kinds(*kind_requests, **machine(cpu=3))) == [full[0], *free[:2]]
