"""Limits on what runs at once, over all nodes: exact, and nobody else is held up by them."""

from __future__ import annotations

import asyncio

import pytest
from tests.stores.actions import OUTCOMES, Worker, add, add_many, declare_limit

from synergon.model.claims import KindRequest
from synergon.model.limits import LimitRecord, NewLimit
from synergon.model.outcomes import Succeeded
from synergon.stores.base import Store


def kind_request(*limits: str, kind: str = "work", count: int = 1000) -> KindRequest:
    return KindRequest(kind=kind, count=count, limits=limits)


async def limit_of(store: Store, name: str) -> LimitRecord:
    (found,) = [limit for limit in await store.limits() if limit.name == name]
    return found


async def test_no_more_run_than_the_limit_says_and_each_end_makes_room_for_one(store: Store, worker: Worker) -> None:
    await declare_limit(store, "kind:work", 3)
    ids = await add_many(store, 10)
    claims = await worker.claim_kinds(kind_request("kind:work"))
    assert [claim.id for claim in claims] == ids[:3]
    assert await worker.claim_kinds(kind_request("kind:work")) == []
    assert (await limit_of(store, "kind:work")).in_use == 3
    await worker.finish(claims[1], Succeeded())
    assert [claim.id for claim in await worker.claim_kinds(kind_request("kind:work"))] == [ids[3]]


async def test_nodes_that_claim_at_the_same_time_share_one_limit(store: Store) -> None:
    await declare_limit(store, "license", 7)
    await add_many(store, 60)
    workers = [await Worker.start(store, f"node-{number}") for number in range(6)]
    got = await asyncio.gather(*(worker.claim_kinds(kind_request("license", count=5)) for worker in workers))
    assert sum(map(len, got)) == 7
    assert len({claim.id for claims in got for claim in claims}) == 7


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_every_way_out_of_running_gives_the_place_back(store: Store, worker: Worker, outcome: str) -> None:
    await declare_limit(store, "kind:work", 1)
    await add(store)
    (claim,) = await worker.claim_kinds(kind_request("kind:work"))
    await worker.finish(claim, OUTCOMES[outcome])
    assert (await limit_of(store, "kind:work")).in_use == 0


async def test_a_dead_node_gives_its_places_back_when_it_is_reaped(store: Store, worker: Worker) -> None:
    await declare_limit(store, "kind:work", 2)
    await add_many(store, 4)
    lost = await Worker.start(store, "lost")
    assert len(await lost.claim_kinds(kind_request("kind:work"))) == 2
    await store.unregister("lost")
    assert await worker.claim_kinds(kind_request("kind:work")) == []
    await store.reap([], 10)
    assert len(await worker.claim_kinds(kind_request("kind:work"))) == 2


async def test_all_limits_hold_together_and_a_shared_name_is_one_limit(store: Store, worker: Worker) -> None:
    for name, value in {"kind:a": 5, "kind:b": 2, "license": 4}.items():
        await declare_limit(store, name, value)
    await add_many(store, 10, kind="b")
    await add_many(store, 10, kind="a")
    both = (kind_request("kind:a", "license", kind="a"), kind_request("kind:b", "license", kind="b"))
    claims = await worker.claim_kinds(*both)
    assert [claim.kind for claim in claims] == ["b", "b", "a", "a"]
    assert [(limit.name, limit.in_use) for limit in await store.limits()] == [
        ("kind:a", 2),
        ("kind:b", 2),
        ("license", 4),
    ]


async def test_a_name_that_is_given_twice_is_held_once(store: Store, worker: Worker) -> None:
    await declare_limit(store, "api", 2)
    await add_many(store, 5)
    assert len(await worker.claim_kinds(kind_request("api", "api"))) == 2
    assert (await limit_of(store, "api")).in_use == 2


async def test_a_full_kind_hides_no_other_kind_however_good_its_places_are(store: Store, worker: Worker) -> None:
    await declare_limit(store, "kind:full", 0)
    await add_many(store, 2000, kind="full", priority=9)
    free = await add_many(store, 5, kind="free")
    claims = await worker.claim_kinds(kind_request("kind:full", kind="full"), kind_request(kind="free"), limit=3)
    assert [claim.id for claim in claims] == free[:3]


async def test_kinds_are_merged_in_order_under_their_limits(store: Store, worker: Worker) -> None:
    await declare_limit(store, "kind:a", 1)
    first = await add(store, kind="a")
    low = await add(store, kind="b")
    high = await add(store, kind="b", priority=1)
    await add(store, kind="a")
    claims = await worker.claim_kinds(kind_request("kind:a", kind="a"), kind_request(kind="b"))
    assert [claim.id for claim in claims] == [high, first, low]


async def test_the_node_s_own_numbers_hold_beside_the_limits(store: Store, worker: Worker) -> None:
    await declare_limit(store, "kind:work", 5)
    await add_many(store, 10)
    assert len(await worker.claim_kinds(kind_request("kind:work", count=2))) == 2
    assert len(await worker.claim_kinds(kind_request("kind:work"), limit=1)) == 1
    assert len(await worker.claim_kinds(kind_request("kind:work"))) == 2


async def test_a_limit_can_be_raised_lowered_closed_and_lifted_while_work_runs(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 2)
    await add_many(store, 20)
    running = await worker.claim_kinds(kind_request("license"))
    assert await store.set_limit("license", 4)
    running += await worker.claim_kinds(kind_request("license"))
    assert len(running) == 4
    assert await store.set_limit("license", 1)
    for claim in running[:3]:
        assert await worker.claim_kinds(kind_request("license")) == []
        await worker.finish(claim, Succeeded())
    assert await worker.claim_kinds(kind_request("license")) == []
    await worker.finish(running[3], Succeeded())
    assert len(await worker.claim_kinds(kind_request("license"))) == 1
    assert await store.set_limit("license", 0)
    assert await worker.claim_kinds(kind_request("license")) == []
    assert await store.set_limit("license", None)
    assert len(await worker.claim_kinds(kind_request("license"))) == 15


async def test_nobody_can_set_what_nobody_has_declared(store: Store) -> None:
    assert not await store.set_limit("license", 3)
    assert not await store.set_servers("gpu", [])
    assert await store.limits() == []
    assert await store.servers() == []


async def test_a_limit_that_is_not_on_record_limits_nothing(store: Store, worker: Worker) -> None:
    await add_many(store, 10)
    assert len(await worker.claim_kinds(kind_request("unheard of"))) == 10


async def test_what_started_without_a_limit_does_not_count_for_it(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 2)
    await add_many(store, 10)
    assert len(await worker.claim(limit=3)) == 3
    assert len(await worker.claim_kinds(kind_request("license"))) == 2


async def test_a_restart_with_the_same_code_keeps_what_the_operator_set(store: Store) -> None:
    await declare_limit(store, "license", 2)
    await store.set_limit("license", 7)
    await declare_limit(store, "license", 2)
    assert (await limit_of(store, "license")).value == 7
    await declare_limit(store, "license", 3)
    assert (await limit_of(store, "license")).value == 3
    await declare_limit(store, "license", 2)
    assert (await limit_of(store, "license")).value == 2


async def test_two_nodes_declare_the_same_at_the_same_time(store: Store) -> None:
    declarations = [NewLimit(name=f"limit-{number}", value=number) for number in range(5)]
    await asyncio.gather(*(store.declare(declarations, []) for _ in range(4)))
    assert [(limit.name, limit.value) for limit in await store.limits()] == [
        (f"limit-{number}", number) for number in range(5)
    ]


async def test_a_paused_queue_gives_nothing_under_limits_either(store: Store, worker: Worker) -> None:
    await declare_limit(store, "kind:work", 2)
    await add_many(store, 3, queue="closed", priority=5)
    ids = await add_many(store, 3)
    await store.pause(["closed"])
    assert [claim.id for claim in await worker.claim_kinds(kind_request("kind:work"))] == ids[:2]


async def test_an_expired_task_takes_no_place(store: Store, worker: Worker) -> None:
    await declare_limit(store, "kind:work", 1)
    await add(store, expires_in=0)
    fresh = await add(store)
    assert [claim.id for claim in await worker.claim_kinds(kind_request("kind:work"))] == [fresh]
