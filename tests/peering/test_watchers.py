"""Watchers: peers that are notified of the ends of tasks that others have enqueued."""

from __future__ import annotations

from synergon.peering import watchers
from synergon.peering.watchers import Watchers
from synergon.peering.wire import EMPTY, TOO_MANY_IDS, merged, message


def test_watchers_are_kept_up_to_the_maximum() -> None:
    known = Watchers()
    known.add("a", (1, 2))
    known.add("b", (2,))
    assert known.by_peer([1, 2, 3]) == {"a": [1, 2], "b": [2]}
    assert known.by_peer([1]) == {"a": [1]}, "the end of an attempt is not the end of the task"
    known.add("c", range(10, 10 + watchers.MAX_TASKS))
    assert known.by_peer([1, 2]) == {}
    assert known.by_peer([10]) == {"c": [10]}


def test_too_many_ids_register_no_watcher() -> None:
    known = Watchers()
    known.add("a", (TOO_MANY_IDS,))
    assert known.by_peer([TOO_MANY_IDS, 1]) == {}


def test_awaited_ids_are_merged() -> None:
    wish = message(awaited=(1,))
    assert merged(wish, message(awaited=(2, 1))).awaited == (1, 2)
    assert merged(wish, EMPTY) is wish
    assert merged(EMPTY, wish) is wish
