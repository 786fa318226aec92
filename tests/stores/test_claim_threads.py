"""The threads of a node: a claim takes no more plain functions than threads are free; other tasks wait for none."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.actions import HOUR, Worker, add, add_many
from tests.stores.test_capacity import ids_of, kind_request

from synergon.model.claims import KindRequest
from synergon.model.requirements import ONE_PROCESS, ONE_THREAD, PROCESS, THREAD, UNIT, Requirements
from synergon.stores.base import Store

IN_CHILD = Requirements(is_process=True).text
NOT_IN_CHILD = Requirements(is_process=False).text


def threaded(kind: str, **more: Any) -> KindRequest:
    """For many tasks of a kind whose functions run in threads."""
    return KindRequest(kind=kind, count=1000, requirements=ONE_THREAD, is_threaded=True, **more)


def node(threads: int, processes: int = 0, **more: Any) -> dict[str, Any]:
    """A node with two threads and two child processes, some of them free."""
    totals = {THREAD: 2 * UNIT, PROCESS: 2 * UNIT}
    return {"totals": totals, "free": {THREAD: threads * UNIT, PROCESS: processes * UNIT}, **more}


@pytest.mark.parametrize(("free", "taken"), [(2, 2), (1, 1), (0, 0), (-1, 0)])
async def test_a_kind_takes_no_more_threads_than_are_free(store: Store, worker: Worker, free: int, taken: int) -> None:
    ids = await add_many(store, 4, kind="a")
    plain = await add(store, kind="plain")
    claims = await worker.claim_kinds(threaded("a"), kind_request("plain"), **node(free))
    assert ids_of(claims) == [*ids[:taken], plain]


@pytest.mark.parametrize("free", [2, 1])
async def test_kinds_that_all_run_in_threads_share_them_in_the_order_of_all_tasks(
    store: Store, worker: Worker, free: int
) -> None:
    first = await add(store, kind="a")
    second = await add_many(store, 2, kind="b")
    high = await add(store, kind="b", priority=1)
    taken: list[int] = []
    while found := ids_of(await worker.claim_kinds(threaded("a"), threaded("b"), **node(free))):
        assert len(found) <= free
        taken += found
    assert taken == [high, first, *second]


async def test_kinds_share_threads_beside_others_that_need_none(store: Store, worker: Worker) -> None:
    first = await add(store, kind="a")
    plain = await add(store, kind="plain")
    second = await add_many(store, 2, kind="b")
    high = await add(store, kind="b", priority=1)
    last = await add(store, kind="plain")
    kind_requests = (threaded("a"), threaded("b"), kind_request("plain"))
    claims = await worker.claim_kinds(*kind_requests, patience=HOUR, **node(2))
    assert ids_of(claims) == [high, first, plain, last]
    assert claims.unfit == {"b"}
    assert ids_of(await worker.claim_kinds(*kind_requests, **node(2))) == second


async def test_slots_bound_threads_too(store: Store, worker: Worker) -> None:
    ids = [await add(store, kind=kind) for kind in "abab"]
    assert ids_of(await worker.claim_kinds(threaded("a"), threaded("b"), limit=1, **node(2))) == ids[:1]
    assert ids_of(await worker.claim_kinds(threaded("a"), threaded("b"), limit=9, **node(2))) == ids[1:3]


async def test_a_row_that_says_so_takes_a_child_process_instead_of_a_thread(store: Store, worker: Worker) -> None:
    child, *_ = await add(store, kind="a", requirements=IN_CHILD), await add(store, kind="a")
    claims = await worker.claim_kinds(threaded("a"), patience=HOUR, **node(0, 1))
    assert (ids_of(claims), claims.unfit) == ([child], frozenset({"a"}))


async def test_a_row_that_says_so_takes_a_thread_instead_of_a_child_process(store: Store, worker: Worker) -> None:
    beside = await add(store, kind="a", requirements=NOT_IN_CHILD)
    kind = KindRequest(kind="a", count=1000, requirements=ONE_PROCESS, is_threaded=True)
    assert await worker.claim_kinds(kind, **node(0, 2)) == []
    assert ids_of(await worker.claim_kinds(kind, **node(1))) == [beside]


async def test_no_capacity_is_reserved_for_a_task_that_lacks_a_thread(store: Store, worker: Worker) -> None:
    await add(store, kind="a")
    claims = await worker.claim_kinds(threaded("a"), threaded("b"), kind_request(), patience=0, **node(0))
    assert (ids_of(claims), claims.reserved) == ([], None)


async def test_urgent_kinds_take_the_threads_that_others_yield(store: Store, worker: Worker) -> None:
    ids = await add_many(store, 2, kind="a")
    urgent = threaded("a", is_urgent=True)
    assert await worker.claim_kinds(urgent, **node(0)) == []
    assert ids_of(await worker.claim_kinds(urgent, **node(0), yielding={THREAD: UNIT})) == ids[:1]
