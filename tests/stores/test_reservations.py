"""Room that a node keeps: a task that does not fit is not passed over for ever, and one node at most waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.stores.actions import (
    HOUR,
    MILLISECOND,
    Worker,
    add,
    add_many,
    amounts,
    declare_limit,
    declare_pool,
    demands,
    pass_time,
    read,
)
from tests.stores.test_capacity import ids_of, kind_request

from synergon.model.claims import Claims, ReservedTask
from synergon.model.operator_actions import NewAction
from synergon.model.outcomes import HandedBack, Succeeded
from synergon.model.requirements import parse_requirements
from synergon.model.tasks import Rescheduling
from synergon.stores.base import Store

BIG, SMALL = demands(cpu=8), demands(cpu=1)


async def keep(worker: Worker, free: float = 3, **more: Any) -> Claims:
    """What a node of 8 processors takes, of which so many are free and tasks use one each of the others, and which has
    been patient enough."""
    state = {"totals": amounts(cpu=8), "free": amounts(cpu=free), "patience": 0, "shares": (amounts(cpu=1),)}
    kind_requests = more.pop("kinds", (kind_request(),))
    return await worker.claim_kinds(*kind_requests, **{**state, **more})


async def test_room_is_kept_for_the_first_that_does_not_fit_and_nothing_behind_it_is_taken(
    store: Store, worker: Worker
) -> None:
    before = await add(store, requirements=SMALL)
    big = await add(store, requirements=BIG)
    behind = await add(store, requirements=SMALL)
    claims = await keep(worker)
    assert ids_of(claims) == [before]
    assert claims.reserved == ReservedTask(id=big, kind="work", requirements=parse_requirements(BIG))
    assert (await read(store, big)).reserved_by == worker.node_id
    assert (await read(store, behind)).reserved_by is None


async def test_the_demand_of_what_is_kept_is_the_room_s_where_the_row_says_nothing(
    store: Store, worker: Worker
) -> None:
    task_id = await add(store)
    claims = await keep(worker, kinds=(kind_request(requirements=BIG),))
    assert claims.reserved == ReservedTask(id=task_id, kind="work", requirements=parse_requirements(BIG))


async def test_nobody_keeps_room_before_the_task_was_due_for_long_enough(store: Store, worker: Worker) -> None:
    now = await store.now()
    new = await add(store, requirements=BIG)
    small = await add(store, requirements=SMALL)
    claims = await keep(worker, patience=HOUR)
    assert (ids_of(claims), claims.reserved) == ([small], None)
    old = await add(store, requirements=demands(cpu=7), run_at=now - 2 * HOUR)
    claims = await keep(worker, patience=HOUR)
    assert claims.reserved is not None
    assert claims.reserved.id == old
    assert (await read(store, new)).reserved_by is None


async def test_a_node_without_patience_keeps_no_room(store: Store, worker: Worker) -> None:
    await add(store, requirements=BIG)
    small = await add(store, requirements=SMALL)
    claims = await keep(worker, patience=None)
    assert (ids_of(claims), claims.reserved) == ([small], None)


async def test_no_room_is_kept_for_what_could_never_run_here(store: Store, worker: Worker) -> None:
    await add(store, requirements=demands(cpu=9))
    await add(store, requirements=demands("elsewhere", cpu=8))
    small = await add(store, requirements=SMALL)
    claims = await keep(worker)
    assert (ids_of(claims), claims.reserved) == ([small], None)


async def test_no_room_is_kept_for_what_a_limit_or_a_pause_holds_up(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 0)
    await store.pause(["closed"])
    await add(store, kind="held", requirements=BIG)
    await add(store, queue="closed", requirements=BIG)
    await add(store, expires_in=0, requirements=BIG)
    small = await add(store, requirements=SMALL)
    claims = await keep(worker, kinds=(kind_request("held", limits=("license",)), kind_request()))
    assert (ids_of(claims), claims.reserved) == ([small], None)


async def test_room_is_kept_for_a_task_whose_limit_has_a_place(store: Store, worker: Worker) -> None:
    await declare_limit(store, "license", 1)
    big = await add(store, requirements=BIG)
    await add(store, requirements=SMALL)
    claims = await keep(worker, kinds=(kind_request(limits=("license",)),))
    assert ids_of(claims) == []
    assert claims.reserved is not None
    assert claims.reserved.id == big


async def test_only_one_of_three_nodes_keeps_room_and_the_others_go_on(store: Store) -> None:
    big = await add(store, requirements=BIG)
    small = await add_many(store, 4, requirements=SMALL)
    workers = [await Worker.start(store, f"node-{number}") for number in range(3)]
    claims = [await keep(worker, limit=2) for worker in workers]
    assert [one.reserved is not None for one in claims] == [True, False, False]
    assert [ids_of(one) for one in claims] == [[], small[:2], small[2:]]
    assert (await read(store, big)).reserved_by == "node-0"


async def test_the_next_of_another_demand_is_kept_by_the_next_node(store: Store, worker: Worker) -> None:
    await add(store, requirements=BIG)
    next_big = await add(store, requirements=demands(cpu=7))
    await keep(worker)
    claims = await keep(await Worker.start(store, "other"))
    assert claims.reserved is not None
    assert claims.reserved.id == next_big


async def test_while_room_is_kept_others_get_what_is_not_held(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    small = await add_many(store, 4, requirements=SMALL)
    await keep(worker)
    claims = await keep(worker, free=5, reserved_task=big, held=amounts(cpu=3))
    assert ids_of(claims) == small[:2]
    assert claims.reserved == ReservedTask(id=big, kind="work", requirements=parse_requirements(BIG))


async def test_brief_and_urgent_tasks_may_use_the_room_until_then(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    await add_many(store, 2, requirements=SMALL)
    brief = await add(store, kind="brief", requirements=demands(cpu=2))
    urgent = await add(store, kind="urgent", requirements=demands(cpu=2))
    await keep(worker)
    kind_requests = (kind_request(), kind_request("brief", is_brief=True), kind_request("urgent", is_urgent=True))
    claims = await keep(worker, free=4, reserved_task=big, held=amounts(cpu=4), kinds=kind_requests)
    assert ids_of(claims) == [urgent, brief]


async def test_what_is_held_is_there_for_the_one_it_is_held_for(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=demands(cpu=7))
    small = await add_many(store, 3, requirements=SMALL)
    await keep(worker)
    claims = await keep(worker, free=8, reserved_task=big, held=amounts(cpu=7))
    assert ids_of(claims) == [big, small[0]]
    assert claims.reserved is None
    assert (await read(store, big)).reserved_by is None


async def test_a_better_one_of_its_kind_does_not_hide_the_one_that_room_is_kept_for(
    store: Store, worker: Worker
) -> None:
    big = await add(store, requirements=BIG)
    await keep(worker)
    await add(store, requirements=BIG, priority=1)
    claims = await keep(worker, free=8, reserved_task=big, held=amounts(cpu=8))
    assert ids_of(claims) == [big]


async def test_a_node_keeps_room_for_one_task_at_a_time(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    await keep(worker)
    better = await add(store, requirements=demands(cpu=7), priority=1)
    claims = await keep(worker, reserved_task=big, held=amounts(cpu=3))
    assert claims.reserved is not None
    assert claims.reserved.id == big
    assert (await read(store, better)).reserved_by is None


async def test_a_task_that_another_node_keeps_room_for_goes_to_whoever_has_room(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    await keep(worker)
    other = await Worker.start(store, "other")
    (claim,) = await keep(other, free=8)
    assert claim.id == big
    assert (await read(store, big)).reserved_by is None
    claims = await keep(worker, reserved_task=big, held=amounts(cpu=3))
    assert (ids_of(claims), claims.reserved) == ([], None)
    await other.finish(claim, HandedBack())
    assert (await keep(other)).reserved is not None


async def test_room_is_kept_until_its_time_is_over(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    other = await Worker.start(store, "other")
    assert (await keep(worker, reserve_microseconds=MILLISECOND)).reserved is not None
    await pass_time(store, MILLISECOND)
    assert (await keep(other)).reserved is not None
    assert (await read(store, big)).reserved_by == "other"
    assert (await keep(worker, reserved_task=big, held=amounts(cpu=3))).reserved is None
    assert (await read(store, big)).reserved_by == "other"


async def test_its_time_is_renewed_by_every_claim(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    other = await Worker.start(store, "other")
    await keep(worker, reserve_microseconds=MILLISECOND)
    assert (await keep(worker, reserved_task=big, reserve_microseconds=HOUR)).reserved is not None
    await pass_time(store, MILLISECOND)
    assert (await keep(other)).reserved is None


async def test_a_claim_that_looks_at_no_kind_of_demand_renews_too(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    await add(store, kind="plain")
    await keep(worker, reserve_microseconds=MILLISECOND)
    claims = await keep(
        worker, kinds=(kind_request("plain"), kind_request()), reserved_task=big, reserve_microseconds=HOUR
    )
    assert len(claims) == 1
    assert claims.reserved is not None
    await pass_time(store, MILLISECOND)
    assert (await keep(await Worker.start(store, "other"))).reserved is None


async def test_a_node_that_forgot_may_choose_the_same_again(store: Store, worker: Worker) -> None:
    await add(store, requirements=BIG)
    assert (await keep(worker)).reserved == (await keep(worker)).reserved is not None


async def test_a_node_that_is_gone_keeps_no_room(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    lost = await Worker.start(store, "lost")
    await keep(lost)
    await store.unregister("lost")
    assert (await keep(worker)).reserved is not None
    assert (await read(store, big)).reserved_by == worker.node_id


async def test_a_node_that_is_cordoned_keeps_no_room(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    await keep(await Worker.start(store, "cordoned"))
    await store.act(NewAction(verb="cordon", subject="cordoned", who="ada"))
    assert (await keep(worker)).reserved is not None
    assert (await read(store, big)).reserved_by == worker.node_id


async def test_a_task_that_replaces_another_starts_with_no_room_kept_for_it(store: Store, worker: Worker) -> None:
    big = await add(store, key="k", requirements=BIG)
    await keep(worker)
    await add(store, key="k", requirements=BIG, on_conflict="replace")
    assert (await read(store, big)).reserved_by is None
    await keep(worker)
    await store.cancel([big])
    await store.retry([big])
    assert (await read(store, big)).reserved_by is None


@pytest.mark.parametrize("how", ["cancelled", "taken", "paused", "put off", "unasked"])
async def test_room_is_not_kept_for_a_task_that_cannot_come_any_more(store: Store, worker: Worker, how: str) -> None:
    big = await add(store, requirements=BIG, queue="mail")
    await add(store, requirements=SMALL)
    await keep(worker)
    match how:
        case "cancelled":
            await store.cancel([big])
        case "taken":
            await keep(await Worker.start(store, "other"), free=8)
        case "paused":
            await store.pause(["mail"])
        case "put off":
            await store.reschedule([Rescheduling(id=big, delay=HOUR)])
    kind_requests = (kind_request("other"),) if how == "unasked" else (kind_request(),)
    assert (await keep(worker, kinds=kind_requests, reserved_task=big, held=amounts(cpu=3))).reserved is None
    assert (await read(store, big)).reserved_by is None


@pytest.mark.parametrize("count", [100, 0])
async def test_room_is_not_kept_for_a_task_whose_limit_is_full_by_now(store: Store, worker: Worker, count: int) -> None:
    await declare_limit(store, "license", 1)
    big = await add(store, requirements=BIG)
    limited = kind_request(limits=("license",))
    assert (await keep(worker, kinds=(limited,))).reserved is not None
    user = await add(store, kind="user")
    other = await Worker.start(store, "other")
    (claim,) = await other.claim_kinds(kind_request("user", limits=("license",)))
    assert claim.id == user
    small = await add(store, kind="small", requirements=SMALL)
    claims = await keep(
        worker, kinds=(replace(limited, count=count), kind_request("small")), reserved_task=big, held=amounts(cpu=2)
    )
    assert (ids_of(claims), claims.reserved) == ([small], None)
    assert (await read(store, big)).reserved_by is None
    assert (await keep(worker, kinds=(limited,))).reserved is None
    await other.finish(claim, Succeeded())
    assert (await keep(worker, kinds=(limited,))).reserved is not None


@pytest.mark.parametrize("count", [100, 0])
async def test_room_is_not_kept_for_a_task_whose_server_is_closed_by_now(
    store: Store, worker: Worker, count: int
) -> None:
    await declare_pool(store, a=1, b=1)
    big = await add(store, requirements=BIG, provider="gpu", target="a")
    served = kind_request(provider="gpu")
    still: dict[str, Any] = {"kinds": (replace(served, count=count),), "reserved_task": big, "held": amounts(cpu=3)}
    assert (await keep(worker, kinds=(served,))).reserved is not None
    assert (await keep(worker, **still)).reserved is not None
    await declare_pool(store, a=0, b=1)
    assert (await keep(worker, **still)).reserved is None
    assert (await read(store, big)).reserved_by is None
    assert (await keep(worker, kinds=(served,))).reserved is None


async def test_a_node_says_that_it_keeps_room_no_longer(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    small = await add(store, requirements=SMALL)
    other = await Worker.start(store, "other")
    await keep(worker)
    claims = await keep(worker, reserved_task=big, reserve_microseconds=0)
    assert (ids_of(claims), claims.reserved) == ([small], None)
    assert (await read(store, big)).reserved_by is None
    assert (await keep(other)).reserved is not None
    await keep(worker, reserved_task=big, reserve_microseconds=0)
    assert (await read(store, big)).reserved_by == "other"


async def test_room_is_kept_although_better_ones_have_taken_all_slots(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    small = await add_many(store, 2, requirements=SMALL, priority=1)
    claims = await keep(worker, limit=1)
    assert ids_of(claims) == small[:1]
    assert claims.reserved == ReservedTask(id=big, kind="work", requirements=parse_requirements(BIG))


async def test_room_is_kept_for_the_next_of_the_lane_of_which_the_last_slot_was_taken(
    store: Store, worker: Worker
) -> None:
    first, second, _ = await add_many(store, 3, requirements=demands(cpu=2))
    claims = await keep(worker, limit=1)
    assert ids_of(claims) == [first]
    assert claims.reserved is not None
    assert claims.reserved.id == second


async def test_room_is_kept_for_none_of_a_backlog_of_equals(store: Store, worker: Worker) -> None:
    """Each of them starts when one that runs has ended: nobody can get the room before it."""
    backlog = await add_many(store, 20, requirements=demands(cpu=2))
    claims = await keep(worker, free=8, shares=())
    for number in range(4, 20):
        assert (ids_of(claims)[-1:], claims.reserved) == ([backlog[number - 1]], None)
        claims = await keep(worker, free=2, shares=(amounts(cpu=2),))
    assert {(await read(store, task_id)).reserved_by for task_id in backlog} == {None}


@pytest.mark.parametrize(
    ("shares", "is_kept"),
    [
        ([{"cpu": 4, "ram": 2}], False),
        ([{"cpu": 8, "ram": 4}], False),
        ([{"cpu": 8, "ram": 4}, {"ram": 1}], False),  # that one has nothing of what the task is short of
        ([{"cpu": 8, "ram": 4}, {"license": 1}], False),
        ([{"cpu": 4}], True),  # so it gets its processors from one, and waits for another's memory
        ([{"cpu": 4, "ram": 1}], True),
        ([{"cpu": 8, "ram": 4}, {"cpu": 1}], True),
    ],
)
async def test_room_is_kept_if_what_the_task_waits_for_comes_back_bit_by_bit(
    store: Store, worker: Worker, shares: list[dict[str, float]], is_kept: bool
) -> None:
    task_id = await add(store, requirements=demands(cpu=4, ram=2))
    claims = await worker.claim_kinds(
        kind_request(),
        totals=amounts(cpu=16, ram=8, license=1),
        free=amounts(cpu=2, ram=3),
        patience=0,
        shares=tuple(amounts(**share) for share in shares),
    )
    assert (claims.reserved is not None and claims.reserved.id == task_id) == is_kept


async def test_what_is_taken_in_the_same_claim_may_overtake_the_next(store: Store, worker: Worker) -> None:
    first, second = await add(store, requirements=demands(cpu=1)), await add(store, requirements=demands(cpu=8))
    claims = await keep(worker, free=8, shares=())
    assert (ids_of(claims), claims.reserved and claims.reserved.id) == ([first], second)


async def test_a_task_for_which_no_room_is_kept_is_not_made_to_wait_for_one_behind_it(
    store: Store, worker: Worker
) -> None:
    """All that runs is as big as the first, and smaller than the second: kept for that, it would be kept from both."""
    first, second = await add(store, requirements=demands(cpu=4)), await add(store, requirements=BIG)
    small = await add(store, requirements=SMALL)
    claims = await keep(worker, shares=(amounts(cpu=4),))
    assert (ids_of(claims), claims.reserved) == ([small], None)
    await store.cancel([first])
    claims = await keep(worker, shares=(amounts(cpu=4),))
    assert claims.reserved is not None
    assert claims.reserved.id == second


async def test_one_that_could_not_start_anyway_does_not_stand_in_the_way_of_the_next(
    store: Store, worker: Worker
) -> None:
    await declare_limit(store, "license", 0)
    await add(store, kind="held", requirements=demands(cpu=4))
    big = await add(store, requirements=BIG)
    kind_requests = (kind_request("held", limits=("license",)), kind_request())
    claims = await keep(worker, kinds=kind_requests, shares=(amounts(cpu=4),))
    assert claims.reserved is not None
    assert claims.reserved.id == big


async def test_no_room_is_kept_for_what_fits_and_has_no_slot(store: Store, worker: Worker) -> None:
    first, _ = await add_many(store, 2, requirements=SMALL)
    await add(store, kind="plain")
    claims = await keep(worker, limit=1, kinds=(kind_request(), kind_request("plain")))
    assert (ids_of(claims), claims.reserved) == ([first], None)


async def test_the_one_that_room_is_kept_for_has_the_last_slot(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    await keep(worker)
    better = await add(store, kind="plain", priority=9)
    asked: dict[str, Any] = {
        "kinds": (kind_request("plain"), kind_request()),
        "reserved_task": big,
        "held": amounts(cpu=8),
    }
    assert ids_of(await keep(worker, free=8, limit=1, **asked)) == [big]
    assert ids_of(await keep(worker, free=0, limit=1, **asked)) == [better]


async def test_what_is_urgent_goes_before_the_one_that_room_is_kept_for(store: Store, worker: Worker) -> None:
    big = await add(store, requirements=BIG)
    await keep(worker)
    urgent = await add(store, kind="urgent")
    kind_requests = (kind_request("urgent", is_urgent=True), kind_request())
    claims = await keep(worker, free=8, limit=1, kinds=kind_requests, reserved_task=big, held=amounts(cpu=8))
    assert ids_of(claims) == [urgent]
    assert claims.reserved is not None
