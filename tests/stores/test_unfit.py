"""What a claim says of tasks that it did not take, and rows of producers that did not know their kind."""

from __future__ import annotations

from typing import Any

from tests.stores.actions import Worker, add, amounts, demands
from tests.stores.test_capacity import ids_of, kind_request, machine

from synergon.model.claims import KindRequest
from synergon.model.requirements import UNIT, Requirements, parse_requirements
from synergon.stores.base import Store


async def test_a_claim_names_the_kinds_of_which_something_fits_later(store: Store, worker: Worker) -> None:
    await add(store, kind="late", requirements=demands(cpu=2))
    await add(store, kind="never", requirements=demands(cpu=9))
    await add(store, kind="labelled", requirements=demands("moon", cpu=2))
    fits = await add(store, kind="fits", requirements=demands(cpu=1))
    kind_requests = [kind_request(kind) for kind in ("late", "never", "labelled", "fits", "empty")]
    claims = await worker.claim_kinds(*kind_requests, labels=frozenset(), totals=amounts(cpu=4), free=amounts(cpu=1))
    assert ids_of(claims) == [fits]
    assert claims.unfit == {"late"}
    assert (await worker.claim_kinds(*kind_requests, **machine(cpu=4))).unfit == frozenset()


async def test_what_does_not_fit_because_room_is_kept_for_another_fits_later(store: Store, worker: Worker) -> None:
    big = await add(store, kind="big", requirements=demands(cpu=4))
    await add(store, kind="small", requirements=demands(cpu=1))
    kind_requests = [kind_request("big"), kind_request("small")]
    full: dict[str, Any] = {"totals": amounts(cpu=4), "free": amounts(cpu=3), "shares": (amounts(cpu=1),)}
    first = await worker.claim_kinds(*kind_requests, patience=0, **full)
    assert first.reserved is not None
    assert first.reserved.id == big
    second = await worker.claim_kinds(*kind_requests, reserved_task=big, held=amounts(cpu=4), **full)
    assert ids_of(second) == []
    assert "small" in second.unfit


async def test_what_a_row_leaves_to_its_kind_is_weighed_by_the_kind(store: Store, worker: Worker) -> None:
    said = Requirements(needs=("eu",), left_to_kind=("cost", "forbids")).text
    task_id = await add(store, requirements=said)
    of_kind = kind_request("work", demands(cpu=2))
    assert ids_of(await worker.claim_kinds(of_kind, **machine("eu", cpu=1))) == []
    assert ids_of(await worker.claim_kinds(of_kind, **machine("us", cpu=2))) == []
    (claim,) = await worker.claim_kinds(of_kind, **machine("eu", cpu=2))
    assert (claim.id, claim.requirements) == (task_id, said)


async def test_who_may_run_for_longer_than_its_kind_fills_no_gap(store: Store, worker: Worker) -> None:
    await add(store, requirements=Requirements(cost={"cpu": UNIT}, is_long=True).text)
    brief = await add(store, requirements=demands(cpu=1))
    kind_request = KindRequest(kind="work", count=9, is_brief=True)
    claims = await worker.claim_kinds(kind_request, held=amounts(cpu=4), **machine(cpu=4))
    assert ids_of(claims) == [brief]
    assert parse_requirements(claims[0].requirements) == Requirements(cost={"cpu": UNIT})
