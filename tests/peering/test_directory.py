"""Whom to wake."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from synergon.model.nodes import NodeRecord
from synergon.model.process_identity import this_process
from synergon.peering.directory import Directory


def node(node_id: str, **values: Any) -> NodeRecord:
    return NodeRecord(
        **{
            "id": node_id,
            "name": node_id,
            "process": this_process(),
            "kinds": ("a",),
            "queues": None,
            "concurrency": 4,
            "version": "1",
            "address": f"http://{node_id}",
            "registered_at": datetime.now(UTC),
            "lease_left": 10.0,
            **values,
        }
    )


def directory(*nodes: NodeRecord) -> Directory:
    found = Directory(("http://", "https://"))
    found.update(nodes, ("me",))
    return found


def ids(found: Directory, kind: str, queue: str | None, count: int) -> list[str]:
    return [peer.id for peer in found.whom_to_wake(kind, queue, count)]


def test_only_those_who_can_be_called_are_peers() -> None:
    found = directory(
        node("me"),
        node("dead", lease_left=-1.0),
        node("mute", address=None),
        node("file", address="file:///etc/passwd"),
        node("odd", address="gopher://x"),
        node("you"),
    )
    assert [peer.id for peer in found] == ["you"]


def test_as_few_are_woken_as_have_room() -> None:
    found = directory(node("one", concurrency=1), node("ten", concurrency=10), node("two", concurrency=2))
    assert ids(found, "a", "q", 5) == ["ten"]
    assert ids(found, "a", "q", 6) == ["ten", "two"]


def test_all_are_woken_if_nobody_has_room() -> None:
    found = directory(node("one", concurrency=1), node("two", concurrency=2))
    assert set(ids(found, "a", "q", 100)) == {"one", "two"}
    assert set(ids(found, "a", "q", 1)) == {"one", "two"}


def test_whoever_does_not_run_the_kind_or_serve_the_queue_is_left_alone() -> None:
    found = directory(node("other", kinds=("b",)), node("mail", queues=("mail",)), node("all"))
    assert ids(found, "a", "web", 9) == ["all"]
    assert ids(found, "c", "web", 1) == []
    assert set(ids(found, "a", None, 1)) == {"all", "mail"}


def test_whoever_fails_is_asked_last() -> None:
    found = directory(node("big", concurrency=100), node("small", concurrency=1))
    failing = found.get("big")
    assert failing is not None
    failing.is_failing = True
    assert ids(found, "a", "q", 1) == ["small"]
    assert ids(found, "a", "q", 1) == ["small", "big"]


def test_who_came_and_who_went_is_known() -> None:
    found = directory(node("one"), node("two"))
    came, gone = found.update([node("two"), node("three")], ("me",))
    assert [peer.id for peer in came] == ["three"]
    assert [peer.id for peer in gone] == ["one"]


def test_who_has_refused_a_kind_is_woken_for_it_after_all_others() -> None:
    found = directory(node("big", concurrency=9), node("small", concurrency=1))
    big = found.get("big")
    assert big is not None
    big.full = frozenset({"a"})
    assert ids(found, "a", "q", 1) == ["small"]
    assert ids(found, "a", "q", 1) == ["small", "big"]
    assert found.without_hope("a") == {"big"}
