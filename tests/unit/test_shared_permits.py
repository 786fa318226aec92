"""Which permits the kinds of a node share, and which of them other nodes contest."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from msgspec import Raw
from msgspec.structs import replace

from synergon import Engine, Rate
from synergon.model.claims import Claim
from synergon.model.node_status import KindStatus, NodeStatus, encode_status
from synergon.model.nodes import NodeRecord, ProcessIdentity
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.shared_permits import MOST_SKIPPED, SharedPermits

PROCESS: Final = ProcessIdentity(host="host", boot_id="boot", pid_namespace="pid:[1]", pid=4711, started=1.5)
LICENSE: Final = KindStatus(limits=("license",))
POOL: Final = KindStatus(provider="pool")
COMMAND: Final = KindStatus(provider="pool", is_command=True)


def make(queues: frozenset[str] | None = None) -> SharedPermits:
    engine = Engine("memory://")
    engine.limit("license", 1)
    engine.limit("seat", 1)
    pool = engine.provider("pool", servers=["a"])

    async def body() -> None: ...

    kinds: dict[str, Any] = {
        "licensed": engine.task(name="licensed", limits=["license"])(body),
        "also_licensed": engine.task(name="also_licensed", limits=["license", "seat"])(body),
        "seated": engine.task(name="seated", limits=["seat"])(body),
        "keyed": engine.task(name="keyed", limit_by=lambda: "one", limit=1)(body),
        "rated": engine.task(name="rated", limit_by=lambda: "one", rate=Rate(1, per=1))(body),
        "served": pool.task(name="served")(body),
        "elsewhere": engine.provider("another", servers=["b"]).task(name="elsewhere")(body),
        "free": engine.task(name="free")(body),
    }
    return SharedPermits(kinds, queues, frozenset({"spot"}), Ledger(9, 9, {"cpu": 4}))


def node(queues: tuple[str, ...] | None = None, said: dict[str, Any] | None = None, **kinds: KindStatus) -> NodeRecord:
    state = NodeStatus(is_published=True, kinds=kinds, **{"labels": ("spot",), **(said or {})})
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
        lease_remaining=30.0,
        published=Raw(encode_status(state)),
    )


def a_claim(kind: str) -> Claim:
    return Claim(1, 1, kind, "default", b"{}", 1, None, 0, None, (), None)


# ---------------------------------------------------------------- who takes what is freed


def test_a_freed_permit_is_for_the_kinds_that_need_one_of_the_same_name() -> None:
    permits = make()
    assert permits.kinds == {
        "licensed", "also_licensed", "seated", "keyed", "rated", "served", "elsewhere"
    }  # fmt: skip
    assert {kind: permits.takers_after([kind]) for kind in (*permits.kinds, "free", "unknown", None)} == {
        "licensed": {"licensed", "also_licensed"},
        "also_licensed": {"licensed", "also_licensed", "seated"},
        "seated": {"also_licensed", "seated"},
        "keyed": {"keyed"},
        "rated": {"rated"},
        "served": {"served", "elsewhere"},
        "elsewhere": {"served", "elsewhere"},
        "free": set(),
        "unknown": set(),
        None: set(),
    }, "a limit may cover servers of both providers"


def test_a_hint_wakes_the_kinds_that_need_what_it_names() -> None:
    permits = make()
    assert permits.takers(["license"]) == {"licensed", "also_licensed"}
    assert permits.takers(["provider:pool"]) == {"served"}
    assert permits.takers(["servers"]) == {"served", "elsewhere"}
    assert permits.takers(["key:keyed", "unknown"]) == {"keyed"}


def test_rated_and_pooled_kinds_are_known() -> None:
    permits = make()
    assert permits.rated == {"rated"}
    assert permits.pooled == {"served", "elsewhere"}


def test_others_are_told_of_what_was_freed_and_not_taken_again() -> None:
    permits = make()
    assert permits.leftover_limits([]) == []
    permits.note_freed(["licensed", "licensed", "keyed", "free", None])
    assert sorted(permits.leftover_limits([a_claim("licensed"), a_claim("keyed")])) == ["license"]
    assert permits.leftover_limits([]) == [], "once"
    permits.note_freed(["licensed"])
    assert permits.leftover_limits([a_claim("also_licensed"), a_claim("also_licensed")]) == []


def test_what_is_freed_by_two_ends_before_a_claim_adds_up() -> None:
    permits = make()
    permits.note_freed(["served"])
    permits.note_freed(["served"])
    assert sorted(permits.leftover_limits([a_claim("served")])) == ["provider:pool", "servers"]


# ---------------------------------------------------------------- contested limits


@pytest.mark.parametrize(
    ("other", "ours", "contested"),
    [
        (node(licensed=LICENSE, served=POOL), None, set()),
        (node(stranger=LICENSE), None, {"licensed", "also_licensed"}),
        (node(stranger=KindStatus(limits=("seat",))), None, {"also_licensed", "seated"}),
        (node(stranger=POOL), None, {"served", "elsewhere"}),
        (node(stranger=KindStatus(limits=("another",))), None, set()),
        (node(stranger=KindStatus()), None, set()),
        (node(stranger=KindStatus(provider="third")), None, {"served", "elsewhere"}),
        (node(stranger=COMMAND), None, {"served", "elsewhere"}),
        (node(("mail",), stranger=COMMAND), frozenset({"more"}), {"served", "elsewhere"}),
        (node(("mail",), licensed=LICENSE), None, set()),
        (node(("mail",), licensed=LICENSE), frozenset({"mail", "more"}), set()),
        (node(("mail",), licensed=LICENSE), frozenset({"more"}), {"licensed", "also_licensed"}),
        (node(licensed=LICENSE), frozenset({"mail"}), {"licensed", "also_licensed"}),
        (node(said={"labels": ("spot", "gpu")}, licensed=LICENSE), None, {"licensed", "also_licensed"}),
        (node(said={"labels": ()}, licensed=LICENSE), None, {"licensed", "also_licensed"}),
        (node(said={"totals": {"cpu": 8}}, licensed=LICENSE), None, {"licensed", "also_licensed"}),
        (node(said={"totals": {"gpu": 1}}, licensed=LICENSE), None, {"licensed", "also_licensed"}),
        (node(said={"totals": {"cpu": 2}}, licensed=LICENSE), None, set()),
        (node(seated=KindStatus(limits=("seat",), max_running=1)), None, {"also_licensed", "seated"}),
        (node(seated=KindStatus(limits=("seat",), has_can_accept=True)), None, {"also_licensed", "seated"}),
        (node(keyed=KindStatus(max_running=1)), None, set()),
        (node(said={"is_cordoned": True}, stranger=LICENSE), None, set()),
        (node(said={"is_stopping": True}, stranger=LICENSE), None, set()),
        (node(said={"departure": "drain"}, stranger=LICENSE), None, set()),
        (replace(node(stranger=LICENSE), cordoned_at=datetime.now(UTC)), None, set()),
        (replace(node(stranger=LICENSE), lease_remaining=-1.0), None, set()),
        (replace(node(stranger=LICENSE), concurrency=0), None, set()),
    ],
)
def test_a_limit_is_contested_by_tasks_that_only_another_live_node_may_be_able_to_run(
    other: NodeRecord, ours: frozenset[str] | None, contested: set[str]
) -> None:
    permits = make(ours)
    permits.update_contested([other])
    assert permits.contested(permits.kinds) == contested


def test_what_was_learnt_last_counts() -> None:
    permits = make()
    permits.update_contested([node(stranger=LICENSE)])
    permits.update_contested([node(stranger=POOL)])
    assert permits.contested(permits.kinds) == {"served", "elsewhere"}
    permits.update_contested([])
    assert permits.contested(permits.kinds) == set()


def test_key_queues_belong_to_their_kind_and_are_contested_by_none() -> None:
    """Their tasks get permits in order when one ends, whichever node can run the next."""
    permits = make(frozenset({"day"}))
    permits.update_contested([node(("night",), keyed=KindStatus())])
    assert permits.contested(permits.kinds) == set()


def test_a_hint_names_what_kinds_need() -> None:
    assert make().names_of(["also_licensed", "served", "free"]) == ["license", "provider:pool", "seat", "servers"]


def test_who_steps_back_for_nothing_does_so_ever_more_rarely_and_who_does_not_each_time() -> None:
    permits = make()

    def skipped() -> int:
        count = 0
        while not permits.should_defer():
            count += 1
        return count

    found = []
    for _ in range(6):
        found.append(skipped())
        permits.note_deferral(was_unused=True)
    assert found == [0, 1, 3, 7, MOST_SKIPPED, MOST_SKIPPED]
    skipped()
    permits.note_deferral(was_unused=False)
    assert skipped() == 0


def test_a_kind_alone_on_its_limit_contests_nothing_with_itself() -> None:
    async def body() -> None: ...

    engine = Engine("memory://")
    engine.limit("license", 1)
    kinds: dict[str, Any] = {"alone": engine.task(name="alone", limits=["license"], max_running=1)(body)}
    permits = SharedPermits(kinds, labels=frozenset({"spot"}))
    permits.update_contested([node(alone=KindStatus(limits=("license",), max_running=1))])
    assert permits.contested(permits.kinds) == set()
