"""Checks of calls that are enqueued together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from synergon.errors import OptionError
from synergon.task import Call


def listed_calls(calls: Iterable[Call[Any]]) -> list[Call[Any]]:
    """The calls as a list. Raises OptionError if one of them is not a call."""
    if isinstance(calls, Call):
        raise OptionError(
            f"engine.enqueue takes a list of calls, got one; write engine.enqueue([{calls.kind}.call(...)])"
        )
    listed = list(calls)
    for call in listed:
        if not isinstance(call, Call):
            raise OptionError(f"engine.enqueue takes calls, like greet.call('Ada'), got {call!r}")
    return listed


def one_connection(calls: Sequence[Call[Any]], conn: Any) -> Any:
    """The connection on which all calls are to be stored; None means a transaction of the store. Raises OptionError if
    they name different connections."""
    found = {id(call.placement.conn): call.placement.conn for call in calls}
    if conn is not None:
        found[id(conn)] = conn
        found.pop(id(None), None)
    if len(found) > 1:
        raise OptionError("these calls name different connections; one enqueue is one transaction")
    return next(iter(found.values()), None)
