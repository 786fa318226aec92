"""A place is passed on among kinds that take the same ones, from line to line, and below limits that cover servers."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest
from msgspec.structs import replace
from tests.stores.actions import add, add_many, amounts, declare_limit, demands, pool, read, states
from tests.stores.relay import LICENSED, LINED_AND_LICENSED, LINED_AND_SERVED, SERVED, Relay

from synergon.demands import parse_demand
from synergon.lifecycle import State
from synergon.limit_records import NewProvider, NewServer
from synergon.records import Room, Verdict
from synergon.stores.base import Store

OTHER: Final = replace(LICENSED, kind="other")
BOTH: Final = pytest.mark.parametrize("room", [LINED_AND_SERVED, LINED_AND_LICENSED], ids=["a server", "a limit"])


# ---------------------------------------------------------------- kinds


async def test_of_kinds_that_take_the_same_places_the_first_task_has_it(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED)
    last, former = replace(OTHER, kind="last", rank=1), replace(OTHER, kind="former", rank=-1)
    of_last, of_former, of_other = [await add(passing, kind=kind) for kind in ("last", "former", "other")]
    better = await add(passing, kind="last", priority=1)
    for expected in (better, of_former, *relay.ids[1:], of_other, of_last):
        assert await relay.step(LICENSED, OTHER, last, former), "at once"
        assert relay.claim.id == expected


@pytest.mark.parametrize(
    "other",
    [
        replace(OTHER, limits=("license", "more")),
        replace(OTHER, limits=()),
        replace(OTHER, provider="gpu"),
        replace(OTHER, is_urgent=True),
        replace(OTHER, is_rated=True),
        replace(OTHER, demand=parse_demand(demands(cpu=1))),
    ],
)
async def test_a_kind_that_needs_something_else_as_well_is_weighed(passing: Store, other: Room) -> None:
    relay = await Relay.begin(passing, LICENSED)
    await declare_limit(passing, "more", 1)
    better = await add(passing, kind="other", priority=1)
    passed = await relay.next(LICENSED, other, totals=amounts(cpu=1), free=amounts(cpu=1))
    assert (passed.ids[0], passed.is_at_once) == (better, False)


async def test_one_of_another_kind_that_demands_something_of_its_own_is_weighed(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED)
    heavy = await add(passing, kind="other", priority=1, demand=demands(cpu=1))
    passed = await relay.next(LICENSED, OTHER, totals=amounts(cpu=1), free=amounts(cpu=1))
    assert passed == ([heavy], False)


async def test_a_limit_that_was_lowered_is_not_used_by_another_kind(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED)
    await add(passing, kind="other", priority=1)
    await passing.set_limit("license", 0)
    assert await relay.next(LICENSED, OTHER) == ([], False)


# ---------------------------------------------------------------- lines


@BOTH
async def test_one_of_another_line_that_is_before_it_has_its_place(passing: Store, room: Room) -> None:
    relay = await Relay.begin(passing, room)
    other = await add(passing, kind="lined", limit_key="other", priority=1)
    verdict, claims = await relay.pass_on()
    assert verdict == Verdict(relay.claim.id, State.SUCCEEDED, (), "lined"), "all is full: nobody has to look"
    assert [claim.id for claim in claims or ()] == [other]
    assert await states(passing, relay.ids) == [State.SUCCEEDED, State.READY, State.WAITING]


@BOTH
async def test_where_there_is_room_for_the_next_of_its_own_line_it_is_told(passing: Store, room: Room) -> None:
    relay = await Relay.begin(passing, room)
    await passing.set_servers("gpu", pool(a=2))
    await passing.set_limit("license", 2)
    other = await add(passing, kind="lined", limit_key="other", priority=1)
    verdict, claims = await relay.pass_on()
    assert verdict.released == ("lined",)
    assert [claim.id for claim in claims or ()] == [other]
    assert [claim.id for claim in await relay.worker.claim_rooms(room)] == relay.ids[1:2]


async def test_the_next_of_the_line_that_is_for_another_server_is_ready(passing: Store) -> None:
    relay = await Relay.begin(passing, LINED_AND_SERVED, number=1)
    await passing.set_servers("gpu", pool(a=1, b=0))
    elsewhere = await add(passing, kind="lined", limit_key="one", provider="gpu", target="b")
    assert await relay.next() == ([], False)
    assert (await read(passing, elsewhere)).state is State.READY


@BOTH
async def test_a_line_that_was_lowered_promotes_nobody(passing: Store, room: Room) -> None:
    relay = await Relay.begin(passing, room)
    await passing.set_limit("key:lined", 0)
    other = await add(passing, kind="licensed")
    assert await relay.next(room, replace(room, kind="licensed")) == ([other], False)
    assert await states(passing, relay.ids) == [State.SUCCEEDED, State.WAITING, State.WAITING]


# ---------------------------------------------------------------- limits that cover servers


def below(*paths: str) -> list[NewServer]:
    """Servers with five places each, below a host."""
    return [NewServer(address=f"http://host/{path}", capacity=5) for path in paths]


async def begin_below(store: Store, *paths: str, prefix: str = "http://host", most: int = 1) -> Relay:
    """One task runs on one of these servers, and a limit covers them."""
    relay = await Relay.begin(store, SERVED, number=20)
    await store.finish([relay.settlement])
    await store.set_servers("gpu", below(*paths))
    await declare_limit(store, prefix, most)
    relay.claim, *_ = await relay.worker.claim_rooms(SERVED)
    return relay


@pytest.mark.parametrize("prefix", ["host", "http://host", "host:80", "http://host:80/one", "http://host/one"])
async def test_a_limit_that_covers_the_server_has_a_say(passing: Store, prefix: str) -> None:
    relay = await begin_below(passing, "one", prefix=prefix)
    assert await relay.step(), "at once"
    assert (relay.claim.id, relay.claim.server) == (relay.ids[2], "http://host/one")
    assert await relay.worker.claim_rooms(SERVED) == [], "there is one place, and it is taken"
    await passing.set_limit(prefix, 0)
    assert await relay.next() == ([], False)
    await passing.set_limit(prefix, 1)
    assert len(await relay.worker.claim_rooms(SERVED)) == 1


async def test_where_tasks_of_another_provider_may_be_before_it_they_are_weighed(passing: Store) -> None:
    relay = await begin_below(passing, "one")
    await passing.declare([], [NewProvider(name="web", servers=tuple(below("web")))])
    assert await relay.next() == (relay.ids[2:3], False)


@pytest.mark.parametrize("prefix", ["http://host", "http://elsewhere"])
async def test_a_server_with_more_room_is_preferred_whether_a_limit_covers_it_or_not(
    passing: Store, prefix: str
) -> None:
    relay = await begin_below(passing, "one", most=2, prefix=prefix)
    await passing.set_servers("gpu", below("one", "two"))
    assert not await relay.step()
    assert relay.claim.server == "http://host/two"


@pytest.mark.parametrize("prefix", ["http://host", "http://elsewhere"])
async def test_servers_with_as_much_room_have_their_turns(passing: Store, prefix: str) -> None:
    """Not from task to task, but in the long run."""
    relay = await begin_below(passing, "one", "two", prefix=prefix)
    await add_many(passing, 1500, kind="served")
    seen: Counter[str | None] = Counter()
    while len(seen) < 2 and seen.total() < 1500:
        seen[relay.claim.server] += 1
        await relay.step()
    assert seen.keys() == {"http://host/one", "http://host/two"}
