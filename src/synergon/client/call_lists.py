"""Checks of calls that are enqueued together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from synergon.call import Call
from synergon.errors import OptionError

Value = TypeVar("Value")


def listed_calls(calls: Iterable[Call[Value]]) -> list[Call[Value]]:
    """The calls as a list. Raises OptionError if one of them is not a call."""
    if isinstance(calls, Call):
        raise OptionError(
            f"engine.enqueue takes a list of calls, got one; write engine.enqueue([{calls.kind}.call(...)])"
        )
    if not isinstance(calls, Iterable):
        raise OptionError(f"engine.enqueue takes a list of calls, like [greet.call('Ada')], got {calls!r}")
    listed = list(calls)
    for call in listed:
        if not isinstance(call, Call):
            raise OptionError(f"engine.enqueue takes calls, like greet.call('Ada'), got {call!r}")
    return listed
