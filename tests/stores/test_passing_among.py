"""A place is passed on among kinds that take the same ones, from line to line, and below limits that cover servers."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest
from msgspec.structs import replace
from tests.stores.actions import (
    Worker,
    add,
    add_many,
    amounts,
    declare_limit,
    demands,
    pass_time,
    pool,
    read,
    states,
)
from tests.stores.relay import LICENSED, LINED_AND_LICENSED, LINED_AND_SERVED, SERVED, Relay

from synergon.model.claims import CandidateQuery, KindRequest
from synergon.model.lifecycle import State
from synergon.model.limits import NewProvider, NewServer
from synergon.model.outcomes import Verdict
from synergon.model.requirements import parse_requirements
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
        replace(OTHER, requirements=parse_requirements(demands(cpu=1))),
    ],
)
async def test_a_kind_that_needs_something_else_as_well_is_weighed(passing: Store, other: KindRequest) -> None:
    relay = await Relay.begin(passing, LICENSED)
    await declare_limit(passing, "more", 1)
    better = await add(passing, kind="other", priority=1)
    passed = await relay.next(LICENSED, other, totals=amounts(cpu=1), free=amounts(cpu=1))
    assert (passed.ids[0], passed.is_at_once) == (better, False)


async def test_one_of_another_kind_that_demands_something_of_its_own_is_weighed(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED)
    heavy = await add(passing, kind="other", priority=1, requirements=demands(cpu=1))
    passed = await relay.next(LICENSED, OTHER, totals=amounts(cpu=1), free=amounts(cpu=1))
    assert passed == ([heavy], False)


async def test_a_limit_that_was_lowered_is_not_used_by_another_kind(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED)
    await add(passing, kind="other", priority=1)
    await passing.set_limit("license", 0)
    assert await relay.next(LICENSED, OTHER) == ([], False)


# ---------------------------------------------------------------- kinds of other nodes


def theirs(room: KindRequest = LICENSED, **more: Any) -> dict[str, Any]:
    """What another node could take of a kind."""
    queues = more.pop("queues", None)
    return {"rivals": (CandidateQuery(room=replace(room, kind="theirs", **more), queues=queues, limit=8),)}


SHARED: Final = pytest.mark.parametrize("room", [LICENSED, SERVED, LINED_AND_SERVED, LINED_AND_LICENSED])


@SHARED
async def test_while_others_have_nothing_better_the_place_is_passed_on(passing: Store, room: KindRequest) -> None:
    relay = await Relay.begin(passing, room)
    await add(passing, kind="theirs")
    await add(passing, kind="theirs", priority=1, queue="paused")
    await add(passing, kind="theirs", priority=1, expires_in=1)
    await passing.pause(["paused"])
    await pass_time(passing, 10)
    assert await relay.next(**theirs(room)) == (relay.ids[1:2], True)


@SHARED
async def test_a_better_task_of_another_node_is_left_the_place_in_the_same_step(
    passing: Store, room: KindRequest
) -> None:
    relay = await Relay.begin(passing, room)
    better = await add(passing, kind="theirs", priority=1)
    verdict, claims = await relay.pass_on(**theirs(room))
    assert verdict.state is State.SUCCEEDED
    assert claims is not None
    assert (list(claims), claims.left) == ([], ((better, "theirs"),))
    other = await Worker.start(passing, "other")
    assert [claim.id for claim in await other.claim_rooms(replace(room, kind="theirs"))] == [better]


async def test_the_older_of_equals_is_before_it_and_then_the_end_of_a_pipeline(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED, number=1)
    older = await add(passing, kind="theirs")
    await add(passing, kind="licensed")
    _, claims = await relay.pass_on(**theirs())
    assert claims is not None
    assert claims.left == ((older, "theirs"),)
    (relay.claim,) = await relay.worker.claim_rooms(LICENSED)
    ours = await add(passing, kind="licensed")
    assert await relay.next(**theirs(rank=1)) == ([ours], True)


@pytest.mark.parametrize(
    "look",
    [
        theirs(limits=("license", "full")),
        theirs(requirements=parse_requirements(demands("gpu"))),
        theirs(queues=frozenset({"another"})),
        theirs(is_urgent=True),
    ],
)
async def test_whether_others_could_take_more_than_the_place_is_weighed(passing: Store, look: dict[str, Any]) -> None:
    """They may need something else that is not free; then nobody is waited for."""
    relay = await Relay.begin(passing, LICENSED)
    await declare_limit(passing, "full", 0)
    await add(passing, kind="theirs", priority=1)
    passed = await relay.next(**look)
    assert not passed.is_at_once
    assert passed.ids == ([] if look["rivals"][0].room.is_urgent else relay.ids[1:2])


@pytest.mark.parametrize("is_here", [True, False])
async def test_what_is_urgent_is_before_it_whatever_its_priority(passing: Store, is_here: bool) -> None:
    relay = await Relay.begin(passing, LICENSED)
    urgent = replace(OTHER, is_urgent=True)
    rooms, rivals = ((LICENSED, urgent), ()) if is_here else ((LICENSED,), (CandidateQuery(room=urgent, limit=8),))
    _, claims = await relay.pass_on(*rooms, rivals=rivals)
    assert claims is not None
    assert [claim.id for claim in claims] == relay.ids[1:2], "at once: nothing of it is there"
    (relay.claim,) = claims
    first = await add(passing, kind="other", priority=-1)
    assert await relay.next(*rooms, rivals=rivals) == ([first] if is_here else [], False)


async def test_a_task_of_others_that_demands_something_of_its_own_is_weighed(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED)
    await add(passing, kind="theirs", priority=1, requirements=demands("gpu"))
    assert await relay.next(**theirs()) == (relay.ids[1:2], False)


async def test_whoever_did_not_come_is_not_left_the_place_again(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED)
    late = await add(passing, kind="theirs", priority=1)
    assert await relay.next(past=frozenset({late}), **theirs()) == (relay.ids[1:2], False)


async def test_a_queue_that_only_others_serve_has_better_ones(passing: Store) -> None:
    relay = await Relay.begin(passing, LICENSED)
    night = await add(passing, kind="licensed", queue="night", priority=1)
    rivals = (CandidateQuery(room=LICENSED, limit=8),)
    _, claims = await relay.pass_on(queues=frozenset({"default"}), rivals=rivals)
    assert claims is not None
    assert claims.left == ((night, "licensed"),)


async def test_a_command_that_only_another_node_knows_goes_before(passing: Store) -> None:
    relay = await Relay.begin(passing, SERVED)
    orders = CandidateQuery(
        room=KindRequest(kind="order", count=1, provider="gpu", is_command=True), queues=frozenset(), limit=8
    )
    command = await add(passing, kind="order", is_command=True, provider="gpu")
    _, claims = await relay.pass_on(rivals=(orders,))
    assert claims is None
    claims = await relay.worker.claim_rooms(SERVED, rivals=(orders,))
    assert (list(claims), claims.left) == ([], ((command, "order"),))
    await passing.cancel([command])
    (relay.claim,) = await relay.worker.claim_rooms(SERVED, rivals=(orders,))
    assert await relay.next(rivals=(orders,)) == (relay.ids[2:], True)


@pytest.mark.parametrize(("room", "more"), [(LICENSED, {"a": 1}), (SERVED, {"a": 2}), (SERVED, {"a": 1, "b": 1})])
async def test_where_there_are_several_places_it_is_weighed_who_has_which(
    passing: Store, room: KindRequest, more: dict[str, int]
) -> None:
    """Whoever ends at the same moment might leave its place to the same task."""
    relay = await Relay.begin(passing, room)
    await passing.set_limit("license", 2)
    await passing.set_servers("gpu", pool(**more))
    better = await add(passing, kind="theirs", priority=1)
    assert await relay.next(**theirs(room)) == (relay.ids[1:2], False)
    assert (await read(passing, better)).state is State.READY


# ---------------------------------------------------------------- lines


@BOTH
async def test_one_of_another_line_that_is_before_it_has_its_place(passing: Store, room: KindRequest) -> None:
    relay = await Relay.begin(passing, room)
    other = await add(passing, kind="lined", limit_key="other", priority=1)
    verdict, claims = await relay.pass_on()
    assert verdict == Verdict(relay.claim.id, State.SUCCEEDED, (), "lined"), "all is full: nobody has to look"
    assert [claim.id for claim in claims or ()] == [other]
    assert await states(passing, relay.ids) == [State.SUCCEEDED, State.READY, State.WAITING]


@BOTH
async def test_where_there_is_room_for_the_next_of_its_own_line_it_is_told(passing: Store, room: KindRequest) -> None:
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
async def test_a_line_that_was_lowered_promotes_nobody(passing: Store, room: KindRequest) -> None:
    relay = await Relay.begin(passing, room)
    await passing.set_limit("key:lined", 0)
    other = await add(passing, kind="licensed")
    assert await relay.next(room, replace(room, kind="licensed")) == ([other], False)
    assert await states(passing, relay.ids) == [State.SUCCEEDED, State.WAITING, State.WAITING]


# ---------------------------------------------------------------- limits that cover servers


def below(*paths: str) -> list[NewServer]:
    """Servers with five places each, below a host."""
    return [NewServer(address=f"http://host/{path}", capacity=5) for path in paths]


async def begin_below(
    store: Store, *paths: str, prefix: str = "http://host", most: int = 1, room: KindRequest = SERVED
) -> Relay:
    """One task runs on one of these servers, and a limit covers them."""
    relay = await Relay.begin(store, SERVED, number=20)
    await store.finish([relay.settlement])
    await store.set_servers("gpu", below(*paths))
    await declare_limit(store, prefix, most)
    relay.claim, *_ = await relay.worker.claim_rooms(room)
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


WEB: Final = KindRequest(kind="web", count=3, provider="web")


async def test_where_nobody_has_looked_at_tasks_of_another_provider_they_are_weighed(passing: Store) -> None:
    relay = await begin_below(passing, "one")
    await passing.declare([], [NewProvider(name="web", servers=tuple(below("web")))])
    assert await relay.next() == (relay.ids[2:3], False)


@pytest.mark.parametrize("is_here", [True, False])
async def test_tasks_of_another_provider_below_the_same_limit_may_be_before_it(passing: Store, is_here: bool) -> None:
    """Here or on another node."""
    relay = await begin_below(passing, "one")
    await passing.declare([], [NewProvider(name="web", servers=tuple(below("web")))])
    asked: dict[str, Any] = {} if is_here else {"rivals": (CandidateQuery(room=WEB, limit=8),)}
    rooms = (SERVED, WEB) if is_here else (SERVED,)
    await add(passing, kind="web", priority=-1, provider="web")
    _, claims = await relay.pass_on(*rooms, **asked)
    assert claims is not None
    assert [claim.id for claim in claims] == relay.ids[2:3], "at once"
    (relay.claim,) = claims
    better = await add(passing, kind="web", priority=1, provider="web")
    _, claims = await relay.pass_on(*rooms, **asked)
    assert claims is None
    claims = await relay.worker.claim_rooms(*rooms, **asked)
    assert [claim.id for claim in claims] == ([better] if is_here else [])
    assert claims.left == (() if is_here else ((better, "web"),))


async def test_tasks_of_a_provider_that_shares_nothing_are_not_before_it(passing: Store) -> None:
    relay = await begin_below(passing, "one")
    await passing.declare([], [NewProvider(name="web", servers=pool(**{"http://elsewhere/web": 1}))])
    await add(passing, kind="web", priority=1, provider="web")
    assert await relay.next(SERVED, WEB) == (relay.ids[2:3], True)


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
    one = replace(SERVED, count=1)
    relay = await begin_below(passing, "one", "two", prefix=prefix, room=one)
    await add_many(passing, 1500, kind="served")
    seen: Counter[str | None] = Counter()
    while len(seen) < 2 and seen.total() < 1500:
        seen[relay.claim.server] += 1
        await relay.step(one)
    assert seen.keys() == {"http://host/one", "http://host/two"}
