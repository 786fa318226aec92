"""Directory: which nodes are peers, and which peers are woken."""

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
            "lease_remaining": 10.0,
            **values,
        }
    )


def directory(*nodes: NodeRecord) -> Directory:
    found = Directory(("http://", "https://"))
    found.update(nodes, ("me",))
    return found


def ids(found: Directory, kind: str, queue: str | None, count: int) -> list[str]:
    return [peer.id for peer in found.choose_to_wake(kind, queue, count)]


def test_only_live_nodes_with_a_usable_address_are_peers() -> None:
    found = directory(
        node("me"),
        node("dead", lease_remaining=-1.0),
        node("mute", address=None),
        node("file", address="file:///etc/passwd"),
        node("odd", address="gopher://x"),
        node("you"),
    )
    assert [peer.id for peer in found] == ["you"]


def test_as_few_peers_are_woken_as_have_capacity() -> None:
    found = directory(node("one", concurrency=1), node("ten", concurrency=10), node("two", concurrency=2))
    assert ids(found, "a", "q", 5) == ["ten"]
    assert ids(found, "a", "q", 6) == ["ten", "two"]


def test_all_peers_are_woken_if_none_has_capacity() -> None:
    found = directory(node("one", concurrency=1), node("two", concurrency=2))
    assert set(ids(found, "a", "q", 100)) == {"one", "two"}
    assert set(ids(found, "a", "q", 1)) == {"one", "two"}


def test_peers_without_the_kind_or_queue_are_not_woken() -> None:
    found = directory(node("other", kinds=("b",)), node("mail", queues=("mail",)), node("all"))
    assert ids(found, "a", "web", 9) == ["all"]
    assert ids(found, "c", "web", 1) == []
    assert set(ids(found, "a", None, 1)) == {"all", "mail"}


def test_failing_peers_are_woken_last() -> None:
    found = directory(node("big", concurrency=100), node("small", concurrency=1))
    failing = found.get("big")
    assert failing is not None
    failing.is_failing = True
    assert ids(found, "a", "q", 1) == ["small"]
    assert ids(found, "a", "q", 1) == ["small", "big"]


def test_update_returns_added_and_removed_peers() -> None:
    found = directory(node("one"), node("two"))
    came, gone = found.update([node("two"), node("three")], ("me",))
    assert [peer.id for peer in came] == ["three"]
    assert [peer.id for peer in gone] == ["one"]


def test_a_peer_that_reported_a_kind_as_full_is_woken_last_for_it() -> None:
    found = directory(node("big", concurrency=9), node("small", concurrency=1))
    big = found.get("big")
    assert big is not None
    big.full = frozenset({"a"})
    assert ids(found, "a", "q", 1) == ["small"]
    assert ids(found, "a", "q", 1) == ["small", "big"]
    assert found.reported_full("a") == {"big"}
