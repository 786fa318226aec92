"""Filters over the visible contents of tasks: what a caller below `admin` may search in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from synergon.model.task_records import TaskRecord
from synergon.model.task_statistics import fingerprint
from synergon.web.redaction import Redactor

CONTENT_FILTERS: Final[tuple[str, ...]] = ("search", "title", "tag", "key", "meta")
"""The filters over values that may be hidden. For callers below `admin` they are compared only with what these callers
see."""


@dataclass(frozen=True, slots=True)
class VisibleError:
    """The last error of a task, as a caller sees it."""

    fingerprint: str
    """Equal for errors of one type whose messages differ only in numbers, ids and quoted texts."""
    type: str
    """The type of the error. The reason of the end, if there was no error."""
    message: str
    """The message, in which numbers, ids and quoted texts are replaced."""


def brief(task: TaskRecord) -> TaskRecord:
    """A task as lists show it: only with its last error, without traceback. Redacting tracebacks would take long."""
    errors = tuple(msgspec.structs.replace(error, traceback="") for error in task.errors[-1:])
    return msgspec.structs.replace(task, errors=errors, ended_attempts=())


def last_error(redactor: Redactor, task: TaskRecord) -> VisibleError:
    """The last error of a task."""
    errors = redactor.task(brief(task))["errors"]
    last = errors[0] if errors else {"type": str(task.reason or task.state), "message": ""}
    digest, message = fingerprint(last["type"], last["message"])
    return VisibleError(digest, last["type"], message)


def matches(task: dict[str, Any], filters: Mapping[str, Any]) -> bool:
    """Whether a task without its secrets matches these filters over contents."""
    return all(_matches(task, name, value) for name, value in filters.items())


def _matches(task: dict[str, Any], name: str, value: Any) -> bool:
    """Whether a task without its secrets matches one filter over contents."""
    match name:
        case "tag":
            return value in task["tags"]
        case "key":
            return bool(task["key"] == value)
        case "title":
            return _contains(task["title"] or "", value)
        case "meta":
            return all(one in task["meta"] and _is_same(task["meta"][one], part) for one, part in value.items())
        case _:
            return _contains({"arguments": task["arguments"], "errors": task["errors"]}, value)


def _is_same(value: Any, wanted: Any) -> bool:
    """Whether JSON values are equal. In Python, true equals 1."""
    return isinstance(value, bool) is isinstance(wanted, bool) and bool(value == wanted)


def _contains(value: Any, text: str) -> bool:
    wanted = text.casefold()
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            todo += [*one, *one.values()]
        elif isinstance(one, list):
            todo += one
        elif wanted in str(one).casefold():
            return True
    return False
