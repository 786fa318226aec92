"""A dry run says what the next claim does, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.actions import Worker, add, add_many, amounts, check_contents, declare_limit, declare_pool, demands
from tests.stores.test_capacity import ids_of, kind_request

from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.tasks import NewTask
from synergon.stores.base import Store

BIG = demands(cpu=8)
SHORT: dict[str, Any] = {"totals": amounts(cpu=8), "free": amounts(cpu=2), "shares": (amounts(cpu=1),)}


async def fill(store: Store) -> list[int]:
    """Tasks under a limit, on servers, with requirements, of several priorities, and commands."""
    await declare_limit(store, "license", 3)
    await declare_pool(store, a=1, b=1)
    ids = await add_many(store, 3, kind="licensed")
    ids += await add_many(store, 3, kind="licensed", priority=1, queue="other")
    ids += await add_many(store, 2, kind="served", target="a", provider="gpu")
    ids += await add_many(store, 3, kind="served", provider="gpu")
    ids += await add_many(store, 2, kind="gpu.stop", is_command=True, provider="gpu", target="b")
    ids += await add_many(store, 3, requirements=demands(cpu=1))
    ids.append(await add(store, requirements=BIG, priority=-1))
    return ids


KINDS = (
    kind_request("licensed", limits=("license",)),
    kind_request("served", provider="gpu"),
    KindRequest(kind="gpu.stop", count=9, provider="gpu", is_command=True),
    kind_request(),
)


@pytest.mark.parametrize("limit", [1, 4, 50])
@pytest.mark.parametrize("patience", [None, 0], ids=["impatient", "patient"])
async def test_a_dry_run_agrees_with_the_claim_that_follows(
    store: Store, worker: Worker, limit: int, patience: int | None
) -> None:
    ids = await fill(store)
    request = ClaimRequest(node_id=worker.node_id, kinds=KINDS, limit=limit, patience=patience, **SHORT)
    for _ in range(3):
        found = {task_id: await store.dry_run(request, task_id) for task_id in ids}
        claims = await store.claim(request)
        assert {task_id for task_id, said in found.items() if said.is_taken} == set(ids_of(claims))
        reserved = {said.reserved for said in found.values()} - {None}
        assert reserved == (set() if claims.reserved is None else {claims.reserved.id})
    await check_contents(store)


async def test_a_dry_run_leaves_to_a_reserved_task_what_is_held_for_it(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    small = await add(store, requirements=demands(cpu=1))
    first = await worker.claim_kinds(kind_request(), patience=0, **SHORT)
    assert first.reserved is not None
    request = ClaimRequest(
        node_id=worker.node_id, kinds=(kind_request(),), limit=9, reserved_task=big, held=amounts(cpu=8), **SHORT
    )
    assert not (await store.dry_run(request, small)).is_taken
    (record,) = await store.get([big])
    assert record is not None
    assert record.reserved_by == worker.node_id


async def test_a_dry_run_of_a_task_that_is_not_ready_takes_nothing(store: Store, worker: Worker) -> None:
    await store.insert([NewTask(kind="work")])
    request = ClaimRequest(node_id=worker.node_id, kinds=(kind_request(),), limit=9)
    assert not (await store.dry_run(request, 999_999)).is_taken
