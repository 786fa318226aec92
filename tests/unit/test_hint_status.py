"""How peers answer hints, as a node publishes it."""

from __future__ import annotations

from synergon.model.node_status import NO_HINTS, HintStatus, NodeStatus, encode_status, read_status


def test_the_latency_of_hints_is_that_of_the_latest_answers() -> None:
    latest = [number / 1000 for number in range(1, 101)]
    found = HintStatus.of(5000, 3, reversed(latest))
    assert (found.answered, found.unanswered, found.p50_seconds, found.p95_seconds) == (5000, 3, 0.051, 0.096)
    assert read_status(encode_status(NodeStatus(hints=found))).hints == found


def test_without_answers_there_is_no_latency() -> None:
    assert HintStatus.of(0, 2, []) == HintStatus(unanswered=2)
    assert read_status(b"{}").hints == NO_HINTS
