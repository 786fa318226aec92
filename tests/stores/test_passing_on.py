"""What ends a task lets the next one start in the same step; and whoever starts is the one that a claim would take.

The first test is for every store; those that never pass on have nothing else to show.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from msgspec.structs import replace
from tests.stores.actions import (
    ERROR,
    OUTCOMES,
    add,
    demands,
    pool,
    read,
    settlement_of,
    states,
)
from tests.stores.relay import LICENSED, LINED, ROOMS, SERVED, Relay

from synergon.model.claims import Claim, KindRequest
from synergon.model.lifecycle import State
from synergon.model.limits import NewLimit, NewRate
from synergon.model.operator_actions import NewAction
from synergon.model.outcomes import Retrying, Succeeded, Verdict
from synergon.model.tasks import NewTask
from synergon.stores.base import Store

COMMANDS: Final = KindRequest(kind="stop", count=1, provider="gpu", is_command=True)


@pytest.mark.parametrize("sort", ROOMS)
async def test_whoever_is_next_has_the_place_at_once(store: Store, sort: str) -> None:
    relay = await Relay.begin(store, ROOMS[sort])
    urgent = await add(store, kind=relay.room.kind, priority=1, limit_key=relay.claim.limit_key)

    async def next_one() -> Claim | None:
        verdict, claims = await relay.pass_on()
        assert verdict == Verdict(relay.claim.id, State.SUCCEEDED, (), relay.room.kind)
        assert claims is None or store.capabilities.passes_on
        claims = claims if claims is not None else await relay.worker.claim_rooms(relay.room)
        return claims[0] if claims else None

    for expected in (urgent, *relay.ids[1:]):
        before = relay.claim
        claim = await next_one()
        assert claim is not None
        assert (claim.id, claim.claim_no, claim.attempts) == (expected, 1, 1)
        assert (claim.server, claim.slot, claim.limit_key) == (before.server, before.slot, before.limit_key)
        record = await read(store, expected)
        assert (record.state, record.node_id) == (State.RUNNING, relay.worker.node_id)
        assert (await read(store, before.id)).result == 42
        relay.claim = claim
    assert await next_one() is None, "nobody is left"
    assert await states(store, [urgent, *relay.ids]) == [State.SUCCEEDED] * 4


@pytest.mark.parametrize("sort", ROOMS)
async def test_what_a_place_is_counted_for_stays_the_same(passing: Store, sort: str) -> None:
    relay = await Relay.begin(passing, ROOMS[sort])
    assert (await relay.next()).ids == relay.ids[1:2]
    assert await relay.worker.claim_rooms(relay.room) == [], "there is one place, and it is taken"
    used = {limit.name: limit.in_use for limit in await passing.limits()} | {
        server.address: server.in_use for server in await passing.servers()
    }
    places = {"limit": "license", "server": "a", "line": "key:lined"}
    assert used == {place: int(word in sort) for word, place in places.items()}


# ---------------------------------------------------------------- somebody else may be before it


Spoiling = Callable[[Relay], Awaitable[None]]


async def lower_the_limit(relay: Relay) -> None:
    await relay.store.set_limit("license", 0)
    await relay.store.set_limit("key:lined", 0)
    await relay.store.set_servers("gpu", pool(a=0))


async def pause_the_queue(relay: Relay) -> None:
    await relay.store.pause(["default"])


async def cordon_the_node(relay: Relay) -> None:
    await relay.store.act(NewAction(verb="cordon", subject=relay.worker.node_id, who="ada"))


async def cancel_the_others(relay: Relay) -> None:
    await relay.store.cancel(relay.ids[1:])


@pytest.mark.parametrize("sort", ROOMS)
@pytest.mark.parametrize("spoil", [lower_the_limit, pause_the_queue, cordon_the_node, cancel_the_others])
async def test_where_nobody_may_start_nobody_does(passing: Store, sort: str, spoil: Spoiling) -> None:
    relay = await Relay.begin(passing, ROOMS[sort])
    await spoil(relay)
    assert await relay.next() == ([], False)
    assert (await states(passing, relay.ids))[0] is State.SUCCEEDED


@pytest.mark.parametrize("sort", ROOMS)
async def test_queues_that_the_node_does_not_serve_are_left_alone(passing: Store, sort: str) -> None:
    relay = await Relay.begin(passing, ROOMS[sort], number=1)
    elsewhere = await add(passing, kind=relay.room.kind, queue="elsewhere", priority=1, limit_key=relay.claim.limit_key)
    here = await add(passing, kind=relay.room.kind, limit_key=relay.claim.limit_key)
    served = frozenset({"default"})
    # A line goes on with its first, whoever may take it.
    expected = [] if relay.room.kind == "lined" else [here]
    assert await relay.next(queues=served) == (expected, bool(expected))
    assert (await read(passing, elsewhere)).state is State.READY


@pytest.mark.parametrize("sort", ROOMS)
async def test_what_demands_something_of_its_own_is_weighed(passing: Store, sort: str) -> None:
    relay = await Relay.begin(passing, ROOMS[sort])
    heavy = await add(
        passing, kind=relay.room.kind, priority=1, requirements=demands(cpu=1), limit_key=relay.claim.limit_key
    )
    cpu = {"cpu": 10**6}
    assert await relay.next(totals=cpu, free=cpu) == ([heavy], False)


async def test_a_command_goes_before(passing: Store) -> None:
    relay = await Relay.begin(passing, SERVED)
    command = await add(passing, kind="stop", is_command=True, provider="gpu", target="a")
    assert await relay.next(SERVED, COMMANDS) == ([command], False)


async def test_without_a_command_the_next_task_starts_at_once(passing: Store) -> None:
    relay = await Relay.begin(passing, SERVED)
    assert await relay.next(SERVED, COMMANDS) == (relay.ids[1:2], True)


async def test_who_is_for_another_server_is_not_given_this_one(passing: Store) -> None:
    relay = await Relay.begin(passing, SERVED, number=2)
    await passing.set_servers("gpu", pool(a=1, b=0))
    await add(passing, kind="served", priority=1, target="b", provider="gpu")
    assert await relay.next() == (relay.ids[1:], False)


async def test_a_retry_is_not_given_the_server_that_has_failed_it_if_there_is_another(passing: Store) -> None:
    relay = await Relay.begin(passing, SERVED, number=1)
    await passing.set_servers("gpu", pool(a=2))
    retry = await add(passing, kind="served", priority=1)
    (claim,) = await relay.worker.claim_rooms(SERVED)
    await passing.finish([settlement_of(claim, Retrying(delay=0, error=ERROR))])
    await passing.set_servers("gpu", pool(a=1, b=1))
    assert (await relay.next()).ids == [retry]
    assert (await read(passing, retry)).server == "b"


async def test_a_server_that_has_left_the_pool_gets_no_more(passing: Store) -> None:
    relay = await Relay.begin(passing, SERVED)
    await passing.set_servers("gpu", pool(b=1))
    assert await relay.next() == (relay.ids[1:2], False)
    assert (await read(passing, relay.ids[1])).server == "b"


async def test_a_server_that_has_failed_before_is_well_again(passing: Store) -> None:
    relay = await Relay.begin(passing, SERVED)
    await passing.set_servers("gpu", pool(a=2))
    (claim,) = await relay.worker.claim_rooms(SERVED)
    await passing.finish(
        [settlement_of(claim, OUTCOMES["failed"], server=("gpu", "a"), is_server_well=False, slot=claim.slot)]
    )
    assert [server.failures for server in await passing.servers()] == [1]
    assert await relay.next() == (relay.ids[2:], False)
    assert [server.failures for server in await passing.servers()] == [0]


async def test_a_limit_that_is_held_by_way_of_servers_is_counted_with_them(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED)
    await passing.set_servers("gpu", [replace(server, address="http://license/gpu") for server in pool(a=1)])
    await passing.set_limit("license", 2)
    await add(passing, kind="served")
    (served,) = await relay.worker.claim_rooms(SERVED)
    await passing.set_limit("license", 1)
    assert served.server == "http://license/gpu"
    assert await relay.next() == ([], False)


async def test_one_of_another_line_that_is_before_it_is_taken_first(passing: Store) -> None:
    relay = await Relay.begin(passing, LINED)
    other = await add(passing, kind="lined", limit_key="other")
    request = relay.request()
    verdict, claims = await passing.pass_on(relay.settlement, request)
    assert (verdict.state, claims) == (State.SUCCEEDED, None)
    assert [claim.id for claim in await passing.claim(request)] == [relay.ids[1], other]


async def test_a_line_with_a_rate_waits_for_its_turn(passing: Store) -> None:
    relay = await Relay.begin(passing, LINED)
    await passing.declare([NewLimit(name="key:lined", value=1, rate=NewRate(every=3_600_000_000))], [])
    verdict, claims = await relay.pass_on(replace(LINED, is_rated=True))
    assert (verdict.state, claims) == (State.SUCCEEDED, None)
    verdict, claims = await relay.pass_on()
    assert (verdict.state, claims) == (State.SUCCEEDED, None), "the answer had been lost"


@pytest.mark.parametrize("sort", ROOMS)
async def test_a_node_without_room_is_given_nothing(passing: Store, sort: str) -> None:
    relay = await Relay.begin(passing, ROOMS[sort])
    verdict, claims = await relay.pass_on(limit=0)
    assert (verdict.state, claims) == (State.SUCCEEDED, None)


# ---------------------------------------------------------------- the fence


@pytest.mark.parametrize("sort", ROOMS)
async def test_a_place_that_is_not_ones_own_is_not_passed_on(passing: Store, sort: str) -> None:
    relay = await Relay.begin(passing, ROOMS[sort])
    stale = replace(relay.settlement, claim_no=relay.claim.claim_no + 1)
    verdict, claims = await passing.pass_on(stale, relay.request())
    assert (verdict.state, claims) == (None, None)
    assert (await states(passing, relay.ids))[:1] == [State.RUNNING]


@pytest.mark.parametrize("sort", ROOMS)
async def test_the_same_outcome_said_twice_passes_one_place_on(passing: Store, sort: str) -> None:
    relay = await Relay.begin(passing, ROOMS[sort])
    await relay.next()
    verdict, claims = await relay.pass_on()
    assert (verdict.state, claims) == (State.SUCCEEDED, None)
    assert (await states(passing, relay.ids))[:2] == [State.SUCCEEDED, State.RUNNING]


@pytest.mark.parametrize("sort", ROOMS)
async def test_whoever_was_to_be_cancelled_ends_so(passing: Store, sort: str) -> None:
    relay = await Relay.begin(passing, ROOMS[sort])
    await passing.cancel([relay.claim.id])
    verdict, claims = await relay.pass_on()
    assert (verdict.state, claims) == (State.CANCELLED, None)
    assert len(await relay.worker.claim_rooms(relay.room)) == 1


async def test_children_come_as_with_any_outcome(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED)
    outcome = Succeeded(result=b"1", children=(NewTask(kind="child"),))
    verdict, claims = await passing.pass_on(replace(relay.settlement, outcome=outcome), relay.request())
    assert (verdict.state, len(verdict.child_ids), claims) == (State.SUCCEEDED, 1, None)
