"""Bounds of a node on queues and providers: a claim takes no task beyond them, and none behind one is hidden."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.stores.actions import HOUR, Worker, add, add_many, amounts, declare_pool, demands
from tests.stores.test_capacity import ids_of, kind_request

from synergon.model.requirements import UNIT, provider_bound, queue_bound
from synergon.stores.base import Store

MAIL, VIDEO, POOL = queue_bound("mail"), queue_bound("video"), provider_bound("gpu")


def node(**free: int) -> dict[str, Any]:
    """A node whose bounds are five each, with so much of them free."""
    names = {"mail": MAIL, "video": VIDEO, "pool": POOL}
    left = {names[name]: number * UNIT for name, number in free.items()}
    return {"totals": {**dict.fromkeys(left, 5 * UNIT), **amounts(cpu=8)}, "free": {**left, **amounts(cpu=8)}}


def bounded(kind: str = "work", **more: Any) -> Any:
    return kind_request(kind, bounds=(MAIL, VIDEO), **more)


async def test_each_queue_gives_no_more_than_is_free_of_its_bound(store: Store, worker: Worker) -> None:
    mail = await add_many(store, 4, queue="mail", priority=1)
    video = await add_many(store, 4, queue="video")
    other = await add_many(store, 2, queue="other")
    claims = await worker.claim_kinds(bounded(), **node(mail=2, video=1))
    assert ids_of(claims) == [*mail[:2], video[0], *other]
    assert claims.unfit == {"work"}
    assert await worker.claim_kinds(bounded(), **node(mail=0, video=0)) == []
    assert ids_of(await worker.claim_kinds(bounded(), **node(mail=5, video=0))) == mail[2:]


async def test_kinds_of_a_queue_share_its_bound_in_the_order_of_all_tasks(store: Store, worker: Worker) -> None:
    first = await add(store, kind="a", queue="mail")
    second = await add(store, kind="b", queue="mail")
    await add(store, kind="a", queue="mail")
    high = await add(store, kind="b", queue="mail", priority=1)
    claims = await worker.claim_kinds(bounded("a"), bounded("b"), patience=0, **node(mail=3, video=3))
    assert ids_of(claims) == [high, first, second]
    assert claims.unfit == {"a"}
    assert claims.reserved is None


async def test_a_full_bound_gets_no_reservation_however_long_its_tasks_have_waited(
    store: Store, worker: Worker
) -> None:
    await add(store, queue="mail", requirements=demands(cpu=1))
    other = await add(store, queue="other", requirements=demands(cpu=8))
    claims = await worker.claim_kinds(bounded(), patience=0, **node(mail=0, video=0))
    assert ids_of(claims) == [other]
    assert claims.reserved is None


async def test_a_row_with_requirements_of_its_own_counts_for_the_bound(store: Store, worker: Worker) -> None:
    first = await add(store, queue="mail", requirements=demands(cpu=1))
    await add(store, queue="mail", requirements=demands(cpu=2))
    await add(store, queue="mail")
    assert ids_of(await worker.claim_kinds(bounded(), patience=HOUR, **node(mail=1, video=1))) == [first]


async def test_kinds_of_a_provider_share_its_bound_whatever_their_queues(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=None)
    first = await add(store, kind="a", queue="mail")
    second = await add(store, kind="b", queue="other")
    await add(store, kind="a", queue="other")
    plain = await add(store, kind="plain", queue="other")
    kinds = [kind_request(kind, provider="gpu", bounds=(MAIL, POOL)) for kind in ("a", "b")]
    claims = await worker.claim_kinds(*kinds, kind_request("plain", bounds=(MAIL,)), **node(mail=5, pool=2))
    assert ids_of(claims) == [first, second, plain]
    assert claims.unfit == {"a"}


async def test_an_urgent_task_may_use_what_would_be_yielded_of_a_bound(store: Store, worker: Worker) -> None:
    urgent = await add(store, kind="alarm", queue="mail")
    request = replace(bounded("alarm"), is_urgent=True)
    assert await worker.claim_kinds(request, **node(mail=0, video=0)) == []
    claims = await worker.claim_kinds(request, **node(mail=0, video=0), yielding={MAIL: UNIT})
    assert ids_of(claims) == [urgent]
