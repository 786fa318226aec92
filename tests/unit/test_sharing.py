"""What kinds share, and who else waits for it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw

from synergon import Engine
from synergon.node.sharing import Sharing
from synergon.node_state import KindState, NodeState, encode_state
from synergon.records import NodeRecord, ProcessIdentity

PROCESS = ProcessIdentity(host="host", boot_id="boot", pid_namespace="pid:[1]", pid=4711, started=1.5)


def sharing() -> Sharing:
    engine = Engine("memory://")
    engine.limit("license", 1)
    pool = engine.provider("pool", servers=["a"])

    async def body() -> None: ...

    kinds: dict[str, Any] = {
        "licensed": engine.task(name="licensed", limits=["license"])(body),
        "lined": engine.task(name="lined", limit_by=lambda: "one", limit=1)(body),
        "served": pool.task(name="served")(body),
        "elsewhere": engine.provider("another", servers=["b"]).task(name="elsewhere")(body),
        "free": engine.task(name="free")(body),
    }
    return Sharing(kinds)


def node(queues: tuple[str, ...] | None = None, **kinds: KindState) -> NodeRecord:
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
        published=Raw(encode_state(NodeState(is_said=True, kinds=kinds))),
    )


LICENSE = KindState(limits=("license",))
POOL = KindState(provider="pool")


@pytest.mark.parametrize(
    ("other", "ours", "wanted"),
    [
        (node(licensed=LICENSE, served=POOL), None, set()),
        (node(stranger=LICENSE), None, {"licensed"}),
        (node(stranger=POOL), None, {"served"}),
        (node(stranger=KindState(limits=("another",), provider="third")), None, set()),
        (node(("mail",), licensed=LICENSE), None, set()),
        (node(("mail",), licensed=LICENSE), frozenset({"mail", "more"}), set()),
        (node(("mail",), licensed=LICENSE), frozenset({"more"}), {"licensed"}),
        (node(licensed=LICENSE, served=POOL), frozenset({"mail"}), {"licensed", "served"}),
    ],
)
def test_others_want_places_for_kinds_and_queues_that_are_not_ours(
    other: NodeRecord, ours: frozenset[str] | None, wanted: set[str]
) -> None:
    shared = sharing()
    shared.meet([other], ours)
    kept = {"licensed", "lined", "served"} - wanted
    assert {kind for kind in ("licensed", "lined", "served", "free") if shared.heirs(kind) == {kind}} == kept
    assert all(shared.heirs(kind) == set() for kind in wanted)
    shared.meet([], ours)
    assert shared.heirs("licensed") == {"licensed"}, "it has left"
