"""The order in which tasks are taken across kinds: commands, urgent ones, priority, the end of a pipeline, age."""

from __future__ import annotations

from typing import Any

from tests.stores.actions import Worker, add, add_many, amounts, declare_limit, declare_pool, demands, states
from tests.stores.test_capacity import ids_of, kind_request, machine

from synergon.model.claims import KindRequest
from synergon.model.lifecycle import State
from synergon.model.requirements import SLOT
from synergon.policies import HIGHEST_PRIORITY
from synergon.stores.base import Store


async def test_at_equal_priority_the_end_of_a_pipeline_goes_first(store: Store, worker: Worker) -> None:
    ids = {kind: await add_many(store, 2, kind=kind) for kind in ("first", "second", "third")}
    high = await add(store, kind="first", priority=1)
    kind_requests = (kind_request("first", rank=2), kind_request("second", rank=1), kind_request("third"))
    taken: list[int] = []
    while claims := await worker.claim_kinds(*kind_requests, limit=2):
        taken += ids_of(claims)
    assert taken == [high, *ids["third"], *ids["second"], *ids["first"]]


async def test_the_order_is_the_same_whatever_the_rooms_have_beside(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 99)
    await declare_pool(store, a=99)
    command = await add(store, kind="stop", is_command=True, provider="gpu", max_attempts=1)
    plain = await add(store, kind="plain", priority=5)
    early = await add(store, kind="early", requirements=demands(cpu=1))
    late = await add(store, kind="late")
    urgent = await add(store, kind="urgent", priority=-9)
    urgent_later = await add(store, kind="urgent", priority=-9, requirements=demands(cpu=1))
    kind_requests = (
        kind_request("early", rank=1),
        kind_request("late", limits=("license",)),
        kind_request("plain"),
        KindRequest(kind="stop", count=9, provider="gpu", is_command=True),
        kind_request("urgent", is_urgent=True, rank=7),
    )
    claims = await worker.claim_kinds(*kind_requests, **machine(cpu=2))
    assert ids_of(claims) == [command, urgent, urgent_later, plain, late, early]


# ---------------------------------------------------------------- urgent


async def test_urgent_tasks_are_taken_although_the_node_is_full(store: Store, worker: Worker) -> None:
    plain = await add_many(store, 3, priority=HIGHEST_PRIORITY)
    urgent = await add_many(store, 3, kind="urgent")
    kind_requests = (kind_request(), KindRequest(kind="urgent", count=2, is_urgent=True))
    assert ids_of(await worker.claim_kinds(*kind_requests, limit=0, yielding={SLOT: 2})) == urgent[:2]
    assert ids_of(await worker.claim_kinds(*kind_requests, limit=2)) == [urgent[2], plain[0]]
    assert ids_of(await worker.claim_kinds(*kind_requests, limit=1)) == plain[1:2]


async def test_urgent_tasks_may_have_what_others_yield_and_no_more(store: Store, worker: Worker) -> None:
    urgent = await add_many(store, 3, kind="urgent", requirements=demands(cpu=2))
    await add(store, requirements=demands(cpu=1))
    silent = await add(store)
    state: dict[str, Any] = {"totals": amounts(cpu=8), "free": amounts(cpu=1), "yielding": amounts(cpu=4)}
    claims = await worker.claim_kinds(kind_request(), kind_request("urgent", is_urgent=True), **state)
    assert ids_of(claims) == [*urgent[:2], silent]
    assert await states(store, urgent) == [State.RUNNING, State.RUNNING, State.READY]


async def test_what_others_yield_is_for_nobody_else(store: Store, worker: Worker) -> None:
    await add(store, requirements=demands(cpu=1))
    assert await worker.claim_kinds(kind_request(), totals=amounts(cpu=1), yielding=amounts(cpu=1)) == []


async def test_what_others_yield_is_not_for_kinds_that_rest_and_these_take_nothing_from_other_urgent_ones(
    store: Store, worker: Worker
) -> None:
    resting = await add_many(store, 2, kind="resting", priority=5, requirements=demands(cpu=1))
    urgent = await add(store, kind="urgent", requirements=demands(cpu=2))
    kind_requests = (
        kind_request("resting", is_urgent=True, is_backed_off=True),
        kind_request("urgent", is_urgent=True),
    )
    state: dict[str, Any] = {"totals": amounts(cpu=4), "yielding": amounts(cpu=2)}
    claims = await worker.claim_kinds(*kind_requests, free=amounts(cpu=1), **state)
    assert ids_of(claims) == [resting[0], urgent]
    assert await worker.claim_kinds(*kind_requests, free=amounts(cpu=0), **state) == []


async def test_urgency_opens_no_limit(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 1)
    ids = await add_many(store, 2)
    assert ids_of(await worker.claim_kinds(kind_request(is_urgent=True, limits=("license",)), limit=1)) == ids[:1]


# ---------------------------------------------------------------- only these


async def test_only_the_named_tasks_are_taken_in_order(store: Store, worker: Worker) -> None:
    ids = await add_many(store, 5)
    high = await add(store, priority=1)
    other = await add(store, kind="other")
    named = (ids[4], ids[2], high, other, 4711)
    assert ids_of(await worker.claim_kinds(kind_request(only=named), kind_request("other", only=()))) == [
        high,
        ids[2],
        ids[4],
    ]
    assert ids_of(await worker.claim_kinds(kind_request(only=named))) == []
    assert ids_of(await worker.claim_kinds(kind_request(), kind_request("other"))) == [ids[0], ids[1], ids[3], other]


async def test_the_named_tasks_are_held_to_everything_else(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 3)
    await store.pause(["closed"])
    closed = await add(store, queue="closed")
    unwanted = await add(store, queue="unwanted")
    expired = await add(store, expires_in=0)
    far = await add(store, requirements=demands("elsewhere"))
    big = await add(store, requirements=demands(cpu=3))
    small = await add_many(store, 4, requirements=demands(cpu=1))
    named = (closed, unwanted, expired, far, big, *small)
    kind_requests = kind_request(only=named, limits=("license",))
    queues = frozenset({"default", "closed"})
    claims = await worker.claim_kinds(kind_requests, queues=queues, totals=amounts(cpu=4), free=amounts(cpu=2))
    assert ids_of(claims) == small[:2]
    claims = await worker.claim_kinds(kind_requests, queues=queues, limit=5, **machine(cpu=4))
    assert ids_of(claims) == [big]
    assert await states(store, [closed, unwanted, far, *small[2:]]) == [State.READY] * 5


async def test_a_named_task_is_found_behind_thousands(store: Store, worker: Worker) -> None:
    await add_many(store, 1100)
    last = await add(store, priority=-1)
    assert ids_of(await worker.claim_kinds(kind_request(only=(last,)), limit=1)) == [last]
