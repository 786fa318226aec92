"""Who is to be told of the ends of tasks that others have enqueued."""

from __future__ import annotations

from synergon.peering import watchers
from synergon.peering.watchers import Watchers
from synergon.peering.wire import EMPTY, LOOK, merged, message


def test_everybody_who_waits_is_known_until_there_is_no_room() -> None:
    known = Watchers()
    known.add("a", (1, 2))
    known.add("b", (2,))
    assert known.of([1, 2, 3]) == {"a": [1, 2], "b": [2]}
    assert known.of([1]) == {"a": [1]}, "the end of an attempt is not the end of the task"
    known.add("c", range(10, 10 + watchers.MOST_TASKS))
    assert known.of([1, 2]) == {}
    assert known.of([10]) == {"c": [10]}


def test_more_than_a_message_can_name_are_found_by_looking() -> None:
    known = Watchers()
    known.add("a", (LOOK,))
    assert known.of([LOOK, 1]) == {}


def test_wishes_are_merged_like_everything_else() -> None:
    wish = message(awaited=(1,))
    assert merged(wish, message(awaited=(2, 1))).awaited == (1, 2)
    assert merged(wish, EMPTY) is wish
    assert merged(EMPTY, wish) is wish
