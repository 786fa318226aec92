"""Servers: places on machines, who gets which one, and what happens to those that fail."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.stores.actions import (
    ERROR,
    HOUR,
    MILLISECOND,
    Worker,
    add,
    add_many,
    declare_limit,
    declare_pool,
    pass_time,
    pool,
    read,
    settlement_of,
)

from synergon.model.claims import Claim, KindRequest
from synergon.model.lifecycle import Reason
from synergon.model.limits import NewLimit, NewProvider, NewServer, ServerRecord
from synergon.model.outcomes import Failed, HandedBack, Outcome, Retrying, Succeeded
from synergon.model.record import from_datetime
from synergon.model.requirements import PROCESS, UNIT
from synergon.stores.base import Store

ROOM = KindRequest(kind="work", count=1000, provider="gpu")
FAILED = Failed(reason=Reason.ERROR, error=ERROR)


async def settle(store: Store, claim: Claim, outcome: Outcome, *, well: bool) -> None:
    """End an attempt that says something about its server."""
    assert claim.server is not None
    fenced = settlement_of(claim, outcome, server=("gpu", claim.server), is_server_well=well)
    (verdict,) = await store.finish([fenced])
    assert verdict.state is not None


async def fail(store: Store, worker: Worker, number: int) -> None:
    """So many attempts in a row that end badly because of their server."""
    for _ in range(number):
        (claim,) = await worker.claim_kinds(ROOM, limit=1)
        await settle(store, claim, FAILED, well=False)


async def server(store: Store, address: str) -> ServerRecord:
    (found,) = [one for one in await store.servers() if one.address == address]
    return found


async def rest_of(store: Store, address: str, since: int) -> int:
    """Microseconds that the server rests, from a moment on."""
    until = (await server(store, address)).backs_off_until
    assert until is not None
    return from_datetime(until) - since


async def declare_fragile(
    store: Store,
    backoff_after: int | None = 2,
    backoff_first: int = HOUR,
    backoff_cap: int = 24 * HOUR,
    **more: int | None,
) -> None:
    provider = NewProvider(
        name="gpu",
        servers=pool(**(more or {"a": 4})),
        backoff_after=backoff_after,
        backoff_first=backoff_first,
        backoff_cap=backoff_cap,
    )
    await store.declare([], [provider])


# ---------------------------------------------------------------- places


async def test_each_server_gets_what_it_can_take_and_no_two_tasks_the_same_slot(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=4, b=2)
    await add_many(store, 20)
    claims = await worker.claim_kinds(ROOM)
    assert Counter(claim.server for claim in claims) == {"a": 4, "b": 2}
    assert sorted((claim.server, claim.slot) for claim in claims) == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("b", 0),
        ("b", 1),
    ]
    assert await worker.claim_kinds(ROOM) == []
    assert [(one.address, one.capacity, one.in_use) for one in await store.servers()] == [("a", 4, 4), ("b", 2, 2)]


async def test_a_slot_that_is_free_again_is_given_again(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=3)
    await add_many(store, 5)
    claims = await worker.claim_kinds(ROOM)
    middle = next(claim for claim in claims if claim.slot == 1)
    await worker.finish(middle, Succeeded())
    (again,) = await worker.claim_kinds(ROOM)
    assert (again.server, again.slot) == ("a", 1)


async def test_the_least_loaded_server_is_chosen(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=4, b=2)
    await add_many(store, 3)
    claims = [claim for _ in range(3) for claim in await worker.claim_kinds(ROOM, limit=1)]
    assert Counter(claim.server for claim in claims) == {"a": 2, "b": 1}


async def test_a_task_that_has_no_provider_is_given_no_server(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=1)
    await add(store)
    (claim,) = await worker.claim()
    assert (claim.server, claim.slot) == (None, None)


async def test_kinds_share_the_servers_of_a_provider(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=2, b=1)
    await add_many(store, 5, kind="one")
    await add_many(store, 5, kind="two", priority=1)
    kind_requests = [KindRequest(kind=kind, count=10, provider="gpu") for kind in ("one", "two")]
    assert [claim.kind for claim in await worker.claim_kinds(*kind_requests)] == ["two"] * 3


async def test_unlimited_and_closed_servers(store: Store, worker: Worker) -> None:
    await declare_pool(store, closed=0, open=None)
    await add_many(store, 50)
    claims = await worker.claim_kinds(ROOM)
    assert Counter(claim.server for claim in claims) == {"open": 50}
    assert len({claim.slot for claim in claims}) == 50


async def test_an_empty_pool_and_an_unknown_provider_give_nothing_and_hold_nobody_up(
    store: Store, worker: Worker
) -> None:
    await declare_pool(store)
    await add_many(store, 3)
    free = await add(store, kind="free")
    claims = await worker.claim_kinds(
        ROOM, KindRequest(kind="free", count=9), KindRequest(kind="work", count=9, provider="gpu")
    )
    assert [claim.id for claim in claims] == [free]
    assert await worker.claim_kinds(KindRequest(kind="work", count=9, provider="nobody")) == []


@pytest.mark.parametrize(
    ("prefix", "covered"),
    [
        ("https://api.example.com", ["https://api.example.com", "https://api.example.com/v1"]),
        ("https://api.example.com/v1", ["https://api.example.com/v1"]),
        ("api.example.com", ["http://api.example.com:81", "https://api.example.com", "https://api.example.com/v1"]),
        ("https://api.example.co", []),
        ("https://api.example.com/v", []),
    ],
)
async def test_a_prefix_limits_all_servers_below_it_and_no_others(
    store: Store, worker: Worker, prefix: str, covered: list[str]
) -> None:
    addresses = [
        "http://api.example.com:81",
        "https://api.example.com",
        "https://api.example.com/v1",
        "https://api.example.community",
    ]
    servers = tuple(NewServer(address=address, capacity=3) for address in addresses)
    await store.declare([NewLimit(name=prefix, value=1)], [NewProvider(name="gpu", servers=servers)])
    await add_many(store, 20)
    counts = Counter(claim.server for claim in await worker.claim_kinds(ROOM))
    assert sum(counts[address] for address in covered) == min(1, len(covered))
    assert all(counts[address] == 3 for address in addresses if address not in covered)
    (limit,) = await store.limits()
    assert limit.in_use == min(1, len(covered))


async def test_a_name_that_is_held_and_covers_the_server_too_counts_once(store: Store, worker: Worker) -> None:
    await declare_limit(store, "a", 2)
    await declare_pool(store, a=9)
    await add_many(store, 5)
    kind_request = KindRequest(kind="work", count=9, limits=("a",), provider="gpu")
    assert len(await worker.claim_kinds(kind_request)) == 2
    assert await worker.claim_kinds(kind_request) == []
    (limit,) = await store.limits()
    assert limit.in_use == 2


async def test_a_limit_of_the_kind_and_the_servers_hold_together(store: Store, worker: Worker) -> None:
    await declare_limit(store, "kind:work", 3)
    await declare_pool(store, a=2, b=2)
    await add_many(store, 9)
    kind_request = KindRequest(kind="work", count=9, limits=("kind:work",), provider="gpu")
    claims = await worker.claim_kinds(kind_request)
    assert len(claims) == 3
    await worker.finish(claims[0], HandedBack())
    assert len(await worker.claim_kinds(kind_request)) == 1


async def test_a_retry_goes_to_another_server_if_there_is_one(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=1, b=1)
    task_id = await add(store)
    servers = []
    for _ in range(4):
        (claim,) = await worker.claim_kinds(ROOM)
        servers.append(claim.server)
        await worker.finish(claim, Retrying(delay=0, error=ERROR))
    assert servers in (["a", "b"] * 2, ["b", "a"] * 2)
    assert (await read(store, task_id)).server == servers[-1]
    await store.set_servers("gpu", pool(**{str(servers[-1]): 1}))
    (claim,) = await worker.claim_kinds(ROOM)
    assert claim.server == servers[-1]


async def test_a_target_is_the_only_server_that_will_do(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=1, b=1)
    await add_many(store, 3, target="a")
    other = await add(store)
    claims = await worker.claim_kinds(ROOM)
    assert [(claim.id, claim.server) for claim in claims[1:]] == [(other, "b")]
    assert claims[0].server == "a"
    assert await worker.claim_kinds(ROOM) == []
    await worker.finish(claims[1], Succeeded())
    assert await worker.claim_kinds(ROOM) == []
    await worker.finish(claims[0], Succeeded())
    (claim,) = await worker.claim_kinds(ROOM)
    assert claim.server == "a"


# ---------------------------------------------------------------- the pool changes


async def test_a_new_server_is_used_at_once_and_one_that_is_gone_finishes_what_it_has(
    store: Store, worker: Worker
) -> None:
    await declare_pool(store, a=2)
    await add_many(store, 10)
    old = await worker.claim_kinds(ROOM)
    assert await store.set_servers("gpu", pool(b=1))
    assert [claim.server for claim in await worker.claim_kinds(ROOM)] == ["b"]
    assert [(one.address, one.in_use, one.is_removed) for one in await store.servers()] == [
        ("a", 2, True),
        ("b", 1, False),
    ]
    for claim in old:
        assert (await worker.finish(claim, Succeeded())).state is not None
    assert await worker.claim_kinds(ROOM) == []
    assert [one.address for one in await store.servers()] == ["b"]


async def test_a_server_that_comes_back_while_its_old_work_runs_is_not_filled_twice(
    store: Store, worker: Worker
) -> None:
    await declare_pool(store, a=2)
    await add_many(store, 10)
    old = await worker.claim_kinds(ROOM)
    await store.set_servers("gpu", [])
    assert await worker.claim_kinds(ROOM) == []
    await store.set_servers("gpu", pool(a=3))
    (new,) = await worker.claim_kinds(ROOM)
    assert len({claim.slot for claim in [*old, new]}) == 3


async def test_a_capacity_can_be_lowered_and_raised_while_work_runs(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=3)
    await add_many(store, 10)
    claims = await worker.claim_kinds(ROOM)
    await store.set_servers("gpu", pool(a=1))
    for claim in claims[:2]:
        await worker.finish(claim, Succeeded())
        assert await worker.claim_kinds(ROOM) == []
    await store.set_servers("gpu", pool(a=None))
    assert len(await worker.claim_kinds(ROOM)) == 7


async def test_the_operator_s_pool_survives_a_restart_and_a_new_declaration_wins(store: Store) -> None:
    await declare_pool(store, a=1)
    await store.set_servers("gpu", pool(b=2))
    await declare_pool(store, a=1)
    assert [(one.address, one.capacity) for one in await store.servers()] == [("b", 2)]
    await declare_pool(store, a=1, c=3)
    assert [(one.address, one.capacity) for one in await store.servers()] == [("a", 1), ("c", 3)]


async def test_two_providers_may_name_the_same_address_without_sharing_it(store: Store, worker: Worker) -> None:
    await store.declare([], [NewProvider(name=name, servers=pool(a=1)) for name in ("gpu", "other")])
    await add_many(store, 3)
    await add_many(store, 3, kind="other")
    kind_requests = [ROOM, KindRequest(kind="other", count=9, provider="other")]
    assert Counter(claim.kind for claim in await worker.claim_kinds(*kind_requests)) == {"work": 1, "other": 1}
    assert [(one.provider, one.in_use) for one in await store.servers()] == [("gpu", 1), ("other", 1)]


async def test_a_dead_node_s_places_on_servers_come_back_when_it_is_reaped(store: Store, worker: Worker) -> None:
    await declare_pool(store, a=2)
    await add_many(store, 3)
    lost = await Worker.start(store, "lost")
    assert len(await lost.claim_kinds(ROOM)) == 2
    await store.unregister("lost")
    assert await worker.claim_kinds(ROOM) == []
    await store.reap([], 10)
    processes = {PROCESS: 9 * UNIT}  # which suspects need
    assert len(await worker.claim_kinds(ROOM, totals=processes, free=processes)) == 2


# ---------------------------------------------------------------- health


async def test_a_server_that_fails_too_often_in_a_row_rests(store: Store, worker: Worker) -> None:
    await declare_fragile(store)
    await add_many(store, 9)
    await fail(store, worker, 1)
    assert (await server(store, "a")).backs_off_until is None
    before = await store.now()
    await fail(store, worker, 1)
    assert await rest_of(store, "a", before) >= HOUR
    assert (await server(store, "a")).failures == 2
    assert await worker.claim_kinds(ROOM) == []
    next_in = (await store.wake(10)).next_in
    assert next_in is not None
    assert 0 < next_in <= HOUR


async def test_a_success_between_makes_it_start_from_zero(store: Store, worker: Worker) -> None:
    await declare_fragile(store)
    await add_many(store, 9)
    await fail(store, worker, 1)
    (claim,) = await worker.claim_kinds(ROOM, limit=1)
    await settle(store, claim, Succeeded(), well=True)
    await fail(store, worker, 1)
    assert (await server(store, "a")).backs_off_until is None
    assert (await server(store, "a")).failures == 1


async def test_an_outcome_that_says_nothing_of_its_server_counts_for_nothing(store: Store, worker: Worker) -> None:
    await declare_fragile(store)
    await add_many(store, 9)
    for _ in range(5):
        (claim,) = await worker.claim_kinds(ROOM, limit=1)
        await worker.finish(claim, FAILED)
    assert (await server(store, "a")).failures == 0


async def test_a_stale_or_repeated_settlement_does_not_count(store: Store, worker: Worker) -> None:
    await declare_fragile(store, backoff_after=3)
    await add_many(store, 9)
    (claim,) = await worker.claim_kinds(ROOM, limit=1)
    fenced = settlement_of(claim, FAILED, server=("gpu", "a"), is_server_well=False)
    for _ in range(5):
        await store.finish([fenced])
    assert (await server(store, "a")).failures == 1


async def test_other_servers_work_on_while_one_rests(store: Store, worker: Worker) -> None:
    await declare_fragile(store, a=1, b=1)
    await add_many(store, 9, target="a", priority=1)
    await add_many(store, 2)
    await fail(store, worker, 2)
    assert [claim.server for claim in await worker.claim_kinds(ROOM)] == ["b"]


async def test_what_ran_when_the_rest_began_does_not_lengthen_it(store: Store, worker: Worker) -> None:
    await declare_fragile(store)
    await add_many(store, 9)
    claims = await worker.claim_kinds(ROOM)
    assert len(claims) == 4
    for claim in claims[:2]:
        await settle(store, claim, FAILED, well=False)
    until = (await server(store, "a")).backs_off_until
    for claim in claims[2:]:
        await settle(store, claim, FAILED, well=False)
    assert (await server(store, "a")).backs_off_until == until


async def test_after_its_rest_it_is_tried_with_one_task_and_rests_twice_as_long_if_that_fails(
    store: Store, worker: Worker
) -> None:
    first = 20 * MILLISECOND
    await declare_fragile(store, backoff_first=first, backoff_cap=HOUR)
    await add_many(store, 20)
    before = await store.now()
    await fail(store, worker, 2)
    assert first <= await rest_of(store, "a", before)
    for doubling in (2, 4):
        await pass_time(store, first * doubling // 2 + MILLISECOND)
        (claim,) = await worker.claim_kinds(ROOM)  # one, although it could take four
        assert await worker.claim_kinds(ROOM) == []
        before = await store.now()
        await settle(store, claim, FAILED, well=False)
        after = await store.now()
        rest = await rest_of(store, "a", before)
        assert first * doubling <= rest <= first * doubling + after - before


async def test_a_trial_that_succeeds_makes_it_whole_again(store: Store, worker: Worker) -> None:
    await declare_fragile(store, backoff_first=10 * MILLISECOND)
    await add_many(store, 20)
    await fail(store, worker, 2)
    await pass_time(store, 11 * MILLISECOND)
    (claim,) = await worker.claim_kinds(ROOM)
    await settle(store, claim, Succeeded(), well=True)
    well = await server(store, "a")
    assert (well.failures, well.backs_off_until) == (0, None)
    assert len(await worker.claim_kinds(ROOM)) == 4


async def test_no_rest_is_longer_than_the_cap_however_many_came_before(store: Store, worker: Worker) -> None:
    await declare_fragile(store, backoff_after=1, backoff_first=MILLISECOND, backoff_cap=2 * MILLISECOND)
    await add_many(store, 80)
    for _ in range(70):
        before = await store.now()
        await fail(store, worker, 1)
        after = await store.now()
        assert await rest_of(store, "a", before) <= 2 * MILLISECOND + after - before
        await pass_time(store, 3 * MILLISECOND)


async def test_a_success_of_older_work_does_not_end_the_rest(store: Store, worker: Worker) -> None:
    await declare_fragile(store)
    await add_many(store, 9)
    claims = await worker.claim_kinds(ROOM)
    for claim in claims[:2]:
        await settle(store, claim, FAILED, well=False)
    until = (await server(store, "a")).backs_off_until
    await settle(store, claims[2], Succeeded(), well=True)
    assert (await server(store, "a")).backs_off_until == until
    assert await worker.claim_kinds(ROOM) == []


async def test_a_provider_may_never_let_its_servers_rest(store: Store, worker: Worker) -> None:
    await declare_fragile(store, backoff_after=None)
    await add_many(store, 9)
    await fail(store, worker, 8)
    assert (await server(store, "a")).backs_off_until is None


async def test_a_server_that_stays_keeps_its_health_and_one_that_comes_back_is_new(
    store: Store, worker: Worker
) -> None:
    await declare_fragile(store)
    await add_many(store, 9)
    await fail(store, worker, 2)
    await store.set_servers("gpu", pool(a=9, b=1))
    assert (await server(store, "a")).backs_off_until is not None
    await store.set_servers("gpu", pool(b=1))
    await store.set_servers("gpu", pool(a=1))
    assert (await server(store, "a")).backs_off_until is None


async def test_the_health_of_a_server_that_is_gone_is_nobody_s_concern(store: Store, worker: Worker) -> None:
    await declare_fragile(store)
    await add_many(store, 3)
    (claim, *_) = await worker.claim_kinds(ROOM)
    await store.set_servers("gpu", [])
    await settle(store, claim, FAILED, well=False)
    assert (await server(store, "a")).is_removed
