"""What kinds share on a node."""

from __future__ import annotations

from typing import Any

from synergon import Engine
from synergon.node.claims.shared_kinds import SharedKinds


def test_a_place_is_for_the_kinds_that_take_it() -> None:
    engine = Engine("memory://")
    engine.limit("license", 1)
    pool = engine.provider("pool", servers=["a"])

    async def body() -> None: ...

    kinds: dict[str, Any] = {
        "licensed": engine.task(name="licensed", limits=["license"])(body),
        "also_licensed": engine.task(name="also_licensed", limits=["license"])(body),
        "lined": engine.task(name="lined", limit_by=lambda: "one", limit=1)(body),
        "served": pool.task(name="served")(body),
        "elsewhere": engine.provider("another", servers=["b"]).task(name="elsewhere")(body),
        "free": engine.task(name="free")(body),
    }
    sharing = SharedKinds(kinds)
    assert sharing.all == kinds.keys() - {"free"}
    assert {kind: sharing.heirs(kind) for kind in kinds} == {
        "licensed": {"licensed", "also_licensed"},
        "also_licensed": {"licensed", "also_licensed"},
        "lined": {"lined"},
        "served": {"served"},
        "elsewhere": {"elsewhere"},
        "free": set(),
    }
    assert sharing.about_to_end(["served"]) == {"served", "elsewhere"}, "a limit may cover both"
