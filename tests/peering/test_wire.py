"""Messages: merged without loss, never too large, and decoded or rejected."""

from __future__ import annotations

import msgspec
import pytest

from synergon.peering.wire import (
    EMPTY,
    MAX_IDS,
    PROTOCOL,
    SIZE_LIMIT,
    TOO_MANY_IDS,
    WireError,
    decode,
    encode,
    merged,
    message,
)


def test_a_message_arrives_as_it_was_sent() -> None:
    sent = message(new={"a": 3}, due=True, done=(1, 2), cancel=(3,), control=True, free=7)
    assert decode(encode(sent)) == sent


def test_default_fields_are_not_encoded() -> None:
    assert encode(message(new={"a": 1})) == b'{"v":1,"new":{"a":1}}'


def test_merging_drops_nothing() -> None:
    earlier = message(new={"a": 1, "b": 1}, done=(1, 2), cancel=(9,), due=True, free=3)
    later = message(new={"b": 2, "c": 1}, done=(2, 3), control=True, free=0)
    both = merged(earlier, later)
    assert both.new == {"a": 1, "b": 3, "c": 1}
    assert both.done == (1, 2, 3)
    assert both.cancel == (9,)
    assert both.due
    assert both.control
    assert both.free == 0


def test_merging_with_nothing_changes_nothing() -> None:
    only = message(new={"a": 1}, free=5)
    assert merged(EMPTY, only) == only
    assert merged(only, EMPTY) == only


def test_too_long_lists_of_ids_become_too_many_ids() -> None:
    both = merged(message(done=tuple(range(1, MAX_IDS))), message(done=(MAX_IDS + 5, MAX_IDS + 6)))
    assert both.done == (TOO_MANY_IDS,)
    assert merged(both, message(done=(1,))).done == (TOO_MANY_IDS,)


def test_a_message_never_exceeds_the_limit() -> None:
    kinds = {f"kind-{number:05d}-{'x' * 80}": 1 for number in range(2000)}
    body = encode(message(new=kinds, done=(1,), cancel=(2,), free=4))
    assert len(body) <= SIZE_LIMIT
    assert decode(body) == message(done=(TOO_MANY_IDS,), cancel=(TOO_MANY_IDS,), control=True, free=4)


def test_another_version_is_rejected_with_its_number() -> None:
    body = msgspec.json.encode({"v": PROTOCOL + 1, "new": ["of another shape"]})
    with pytest.raises(WireError, match=r"speaks version 2 .* this node speaks 1"):
        decode(body)


GARBAGE = [b"", b"garbage", b"[]", b"{}", b'{"v":1,"new":{"a":"many"}}', b"\xff\xfe", b'{"v":1,"new":{"\xff":1}}']


@pytest.mark.parametrize("body", [*GARBAGE, pytest.param(b"[" * 60_000, id="nested")])
def test_garbage_is_rejected(body: bytes) -> None:
    with pytest.raises(WireError, match="not a peer message"):
        decode(body)


def test_unknown_fields_of_a_later_release_are_ignored() -> None:
    assert decode(b'{"v":1,"free":2,"whatever":{"a":1}}') == message(free=2)
