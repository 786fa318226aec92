"""A task that capacity is reserved for: what it needs of that which all nodes share is left to it by its node, too."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.stores.actions import Worker, add, add_many, amounts, declare_limit, declare_pool, demands, read
from tests.stores.test_capacity import ids_of, kind_request

from synergon.model.claims import Claims, KindRequest
from synergon.stores.base import Store

BIG = demands(cpu=8)
LICENSED: dict[str, Any] = {"limits": ("license",)}
SERVED: dict[str, Any] = {"provider": "gpu"}


async def share(store: Store, positions: int) -> None:
    """So many places in the limit, and on the server."""
    await declare_limit(store, "license", positions)
    await declare_pool(store, a=positions)


async def keeping(worker: Worker, big: int, *kind_requests: KindRequest, free: float = 3, **more: Any) -> Claims:
    """What a node of 8 processors takes, of which so many are free, while it has reserved capacity for the task."""
    state = {"totals": amounts(cpu=8), "free": amounts(cpu=free), "held": amounts(cpu=free), "patience": 0}
    return await worker.claim_kinds(*kind_requests, reserved_task=big, **{**state, **more})


@pytest.mark.parametrize("needed", [LICENSED, SERVED])
@pytest.mark.parametrize("of_its_kind", [{}, {"count": 0}, {"only": ()}])
async def test_the_last_place_is_left_to_the_task(
    store: Store, worker: Worker, needed: dict[str, Any], of_its_kind: dict[str, Any]
) -> None:
    """Whether others of its kind are asked for, and whether it is offered itself."""
    await share(store, 1)
    big = await add(store, requirements=BIG, provider=needed.get("provider"))
    other = await add(store, kind="other", priority=9, provider=needed.get("provider"))
    kind_requests = [replace(kind_request(**needed), **of_its_kind), kind_request("other", **needed)]
    claims = await keeping(worker, big, *kind_requests)
    assert (ids_of(claims), claims.reserved and claims.reserved.id) == ([], big)
    assert ids_of(await keeping(worker, big, kind_request(**needed), kind_requests[1], free=8)) == [big]
    assert (await read(store, other)).reserved_by is None


@pytest.mark.parametrize("needed", [LICENSED, SERVED])
async def test_others_have_what_is_left_over(store: Store, worker: Worker, needed: dict[str, Any]) -> None:
    await share(store, 2)
    big = await add(store, requirements=BIG, provider=needed.get("provider"))
    first, _ = await add_many(store, 2, kind="other", priority=9, provider=needed.get("provider"))
    kind_requests = kind_request(**needed), kind_request("other", **needed)
    claims = await keeping(worker, big, *kind_requests)
    assert (ids_of(claims), claims.reserved and claims.reserved.id) == ([first], big)
    assert ids_of(await keeping(worker, big, *kind_requests)) == []


@pytest.mark.parametrize("needed", [LICENSED, SERVED])
async def test_an_urgent_one_goes_before_the_task(store: Store, worker: Worker, needed: dict[str, Any]) -> None:
    await share(store, 1)
    big = await add(store, requirements=BIG, provider=needed.get("provider"))
    urgent, _ = await add_many(store, 2, kind="other", provider=needed.get("provider"))
    claims = await keeping(worker, big, kind_request(**needed), kind_request("other", is_urgent=True, **needed))
    assert (ids_of(claims), claims.reserved) == ([urgent], None)
    assert (await read(store, big)).reserved_by is None


async def test_nothing_is_left_to_a_task_that_is_let_go_of_or_gone(store: Store, worker: Worker) -> None:
    await share(store, 2)
    big = await add(store, requirements=BIG)
    first, second = await add_many(store, 2, kind="other")
    kind_requests = kind_request(**LICENSED), kind_request("other", **LICENSED)
    assert ids_of(await keeping(worker, big, *kind_requests)) == [first]
    await store.cancel([big])
    assert ids_of(await keeping(worker, big, *kind_requests)) == [second]


async def test_a_place_is_left_to_others_when_the_node_lets_go_of_the_task(store: Store, worker: Worker) -> None:
    await share(store, 1)
    big = await add(store, requirements=BIG)
    other = await add(store, kind="other")
    kind_requests = kind_request(**LICENSED), kind_request("other", **LICENSED)
    assert ids_of(await keeping(worker, big, *kind_requests)) == []
    claims = await keeping(worker, big, *kind_requests, reserve_microseconds=0, held={})
    assert (ids_of(claims), claims.reserved) == ([other], None)


@pytest.mark.parametrize("needed", [LICENSED, SERVED])
async def test_room_is_kept_for_one_of_equals_whose_place_others_may_take(
    store: Store, worker: Worker, needed: dict[str, Any]
) -> None:
    """It starts when one that costs the same has ended; but only if there is a place for it at that moment, too."""
    await share(store, 1)
    big = await add(store, requirements=BIG, provider=needed.get("provider"))
    state: dict[str, Any] = {"totals": amounts(cpu=8), "free": {}, "patience": 0, "shares": (amounts(cpu=8),)}
    claims = await worker.claim_kinds(kind_request(**needed), **state)
    assert (ids_of(claims), claims.reserved and claims.reserved.id) == ([], big)
