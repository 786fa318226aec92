"""To whom places are left, and for how long."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw

from synergon.model.claims import Claim, ClaimRequest, Claims, KindRequest
from synergon.model.node_status import KindStatus, NodeStatus, encode_status
from synergon.model.nodes import NodeRecord, ProcessIdentity
from synergon.node.claims.courtesy import KIND_REST_PARTS, MOMENT_SECONDS, REST_PARTS, SWEEP_SECONDS, Courtesy
from synergon.node.claims.rivals import heeded, looks_of
from synergon.stores.leaving import strangers

PROCESS = ProcessIdentity(host="host", boot_id="boot", pid_namespace="pid:[1]", pid=4711, started=1.5)
LICENSE = KindStatus(limits=("license",))
POOL = KindStatus(provider="pool")
OWN = {"licensed": LICENSE, "served": POOL, "free": KindStatus()}


def node(queues: tuple[str, ...] | None = None, said: dict[str, Any] | None = None, **kinds: KindStatus) -> NodeRecord:
    state = NodeStatus(is_said=True, kinds=kinds, **(said or {}))
    return NodeRecord(
        id="other",
        name="other",
        process=PROCESS,
        kinds=tuple(kinds),
        queues=queues,
        concurrency=1,
        version="1",
        address=None,
        registered_at=datetime.now(UTC),
        lease_left=30.0,
        published=Raw(encode_status(state)),
    )


def request(*kinds: str, queues: frozenset[str] | None = None) -> ClaimRequest:
    rooms = tuple(
        KindRequest(kind=kind, count=5, limits=OWN[kind].limits, provider=OWN[kind].provider) for kind in kinds
    )
    return ClaimRequest(node_id="here", kinds=rooms, limit=5, queues=queues)


@pytest.mark.parametrize(
    ("other", "ours", "wanted"),
    [
        (node(licensed=LICENSE, served=POOL), None, set()),
        (node(stranger=LICENSE), None, {"licensed"}),
        (node(stranger=POOL), None, {"served"}),
        (node(stranger=KindStatus(limits=("another",))), None, set()),
        (node(stranger=KindStatus(limits=("another",), provider="third")), None, {"served"}),
        (node(stranger=KindStatus(provider="pool", is_command=True)), None, {"served"}),
        (node(("mail",), served=POOL, stranger=KindStatus(provider="pool", is_command=True)), None, {"served"}),
        (node(("mail",), stranger=KindStatus(provider="pool", is_command=True)), frozenset({"more"}), {"served"}),
        (node(("mail",), licensed=LICENSE), None, set()),
        (node(("mail",), licensed=LICENSE), frozenset({"mail", "more"}), set()),
        (node(("mail",), licensed=LICENSE), frozenset({"more"}), {"licensed"}),
        (node(licensed=LICENSE, served=POOL), frozenset({"mail"}), {"licensed", "served"}),
        (node(said={"is_cordoned": True}, stranger=LICENSE), None, set()),
        (node(said={"is_stopping": True}, stranger=LICENSE), None, set()),
        (node(said={"leaving": "drain"}, stranger=LICENSE), None, set()),
        (node(said={"running": {"few": 1}}, few=KindStatus(limits=("license",), max_running=1)), None, set()),
        (node(said={"running": {"few": 1}}, few=KindStatus(limits=("license",), max_running=2)), None, {"licensed"}),
    ],
)
def test_others_want_places_for_kinds_and_queues_that_are_not_ours(
    other: NodeRecord, ours: frozenset[str] | None, wanted: set[str]
) -> None:
    looks = looks_of([other], OWN)
    found = set()
    for kind in OWN:
        asked = request(kind, queues=ours)
        rivals = heeded(looks, asked, OWN, has_room=lambda _: True, unheeded=())
        asked = ClaimRequest(node_id="here", kinds=asked.kinds, limit=5, queues=ours, rivals=rivals)
        if strangers(asked, asked.kinds):
            found.add(kind)
    assert found == wanted


def test_a_command_that_is_known_here_too_is_nobody_elses_whatever_queues_are_served() -> None:
    order = KindStatus(provider="pool", is_command=True)
    own = OWN | {"order": order}
    (look,) = looks_of([node(("mail",), order=order)], own)
    asked = request("served", queues=frozenset({"more"}))
    assert heeded([look], asked, own, has_room=lambda _: True, unheeded=()) == ()
    assert heeded([look], asked, own, has_room=lambda _: False, unheeded=()) == (look,)


def test_a_kind_of_ours_concerns_a_request_if_it_asks_for_it_or_there_is_no_room_for_it() -> None:
    looks = looks_of([node(licensed=LICENSE, stranger=LICENSE)], OWN | {"other": LICENSE})

    def kinds(asked: ClaimRequest, has_room: bool, **more: Any) -> list[str]:
        rivals = heeded(looks, asked, OWN | more, has_room=lambda _: has_room, unheeded=())
        return [look.room.kind for look in rivals]

    assert kinds(request("licensed"), True) == ["licensed", "stranger"]
    assert kinds(request("served"), True) == ["stranger"]
    assert kinds(request("served"), False) == ["licensed", "stranger"]
    assert kinds(request("served"), False, licensed=KindStatus(limits=("license",), is_asking=True)) == ["stranger"]
    assert kinds(request("free"), False) == []


def test_nodes_that_differ_in_what_they_have_are_looked_at_as_one() -> None:
    small = node(said={"totals": {"cpu": 1, "gpu": 2}}, stranger=LICENSE)
    big = node(said={"totals": {"cpu": 4}}, stranger=LICENSE)
    labelled = node(said={"labels": ("spot",)}, stranger=LICENSE)
    first, second = looks_of([small, big, labelled], OWN)
    assert (first.totals, first.labels, second.labels) == ({"cpu": 4, "gpu": 2}, frozenset(), frozenset({"spot"}))


class Manners:
    """A courtesy, and its clock."""

    def __init__(self, is_heard: bool = True) -> None:
        self.now = 1000.0
        self.told: list[list[str]] = []
        self.courtesy = Courtesy(lambda: self.now, is_heard=lambda: is_heard, on_left=self.told.append)
        self.courtesy.meet([node(stranger=LICENSE, served_there=POOL, third=LICENSE)], OWN)

    def take(self, kind: str) -> None:
        """A claim that takes a task of this kind."""
        self.courtesy.heeding(request(kind), OWN, lambda _: True)
        self.courtesy.note(Claims([Claim(1, 1, kind, "default", b"{}", 1, None, 0, None, (), None)]))

    def claim(self, left: dict[int, str], ready: set[int]) -> ClaimRequest:
        """A claim, which leaves places to these unless nobody came for one of those that are still ready."""
        asked = self.courtesy.heeding(request("licensed"), OWN, lambda _: True)
        claims = Claims()
        claims.unserved = asked.past & ready
        claims.left = tuple(left.items()) if asked.rivals and not claims.unserved else ()
        self.courtesy.note(claims)
        return asked


def test_a_place_is_left_for_a_moment_and_then_for_none_until_the_rest_is_over() -> None:
    here = Manners()
    assert not here.claim({7: "stranger"}, {7}).past
    assert here.told == [["license"]]
    here.now += MOMENT_SECONDS * 0.9
    assert not here.claim({7: "stranger"}, {7}).past
    here.now += MOMENT_SECONDS * 0.11
    assert here.claim({7: "stranger"}, {7}).past == {7}
    assert here.told == [["license"]], "said once"
    assert here.claim({8: "third"}, {7, 8}).rivals == (), "nobody is waited for"
    here.now += MOMENT_SECONDS * REST_PARTS
    assert {look.room.kind for look in here.claim({}, {7}).rivals} == {"third", "served_there"}
    here.now += MOMENT_SECONDS * (KIND_REST_PARTS - REST_PARTS)
    assert {look.room.kind for look in here.claim({}, {7}).rivals} == {"stranger", "third", "served_there"}


def test_while_nobody_is_waited_for_no_moment_comes() -> None:
    """Else a node that has left places to two would look for the second one again and again, and do nothing else."""
    here = Manners()
    here.claim({7: "stranger"}, {7})
    here.now += MOMENT_SECONDS / 2
    here.claim({7: "stranger", 8: "third"}, {7, 8})
    here.now += MOMENT_SECONDS / 2
    assert here.claim({}, {7, 8}).past == {7}
    assert here.claim({}, {7, 8}).rivals == ()
    here.now += MOMENT_SECONDS
    assert here.courtesy.past == frozenset()


def test_who_asks_for_something_else_meanwhile_prolongs_nothing() -> None:
    """Else a node that has other things to do would leave the place to a task that nobody takes, for ever."""
    here = Manners()
    for _ in range(2):
        here.claim({7: "stranger"}, {7})
        here.take("free")
        here.now += MOMENT_SECONDS / 2
        here.take("served")
    assert here.claim({7: "stranger"}, {7}).past == {7}
    assert here.courtesy.unheeded["stranger"] == pytest.approx(KIND_REST_PARTS * MOMENT_SECONDS)


async def test_one_that_has_had_its_time_wakes_nobody_again() -> None:
    """Else a node that has no room for what it is about would claim without end."""
    here = Manners()

    async def sleep(_: float) -> None: ...

    here.claim({7: "stranger"}, {7})
    here.now += MOMENT_SECONDS
    await here.courtesy.moment(sleep)
    here.take("free")
    again = asyncio.ensure_future(here.courtesy.moment(sleep))
    await asyncio.wait([again], timeout=0.01)
    assert not again.done()
    assert here.claim({}, set()).past == {7}, "who asks for the same place learns of it"
    again.cancel()


def test_whoever_was_served_in_time_costs_no_rest() -> None:
    here = Manners()
    here.claim({7: "stranger"}, {7})
    here.now += MOMENT_SECONDS
    assert here.claim({8: "stranger"}, {8}).past == {7}
    assert (here.courtesy.unheeded, here.courtesy.past) == ({}, frozenset())
    here.now += MOMENT_SECONDS
    assert here.courtesy.past == {8}


def test_where_no_news_arrives_a_place_is_left_for_longer_and_more_seldom() -> None:
    """Others come when they look by themselves; if they did so for every task, nothing else would get done."""
    here = Manners(is_heard=False)
    here.claim({7: "stranger"}, {7})
    here.now += SWEEP_SECONDS * 0.9
    assert not here.claim({7: "stranger"}, {7}).past
    here.now += SWEEP_SECONDS * 0.2
    assert here.claim({}, set()).past == {7}
    assert here.courtesy.unheeded["stranger"] == pytest.approx(KIND_REST_PARTS * SWEEP_SECONDS)
    assert here.courtesy.unheeded["third"] == pytest.approx(REST_PARTS * SWEEP_SECONDS)
