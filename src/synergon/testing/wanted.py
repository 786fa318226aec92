"""Compares enqueued tasks with the arguments of an assertion, and makes the message of an assertion that fails."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from synergon.engine import Engine
from synergon.errors import KindError, OptionError, PayloadError
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskRecord
from synergon.options.payload import encode
from synergon.task import AnyTask, TaskType

LISTED: Final = 20
"""How many tasks a message lists at most."""
LONGEST_CALL: Final = 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kind and some of its arguments. Arguments that are not named may have any value."""

    kind: str
    arguments: Mapping[str, Any]
    queue: str | None
    defaults: Mapping[str, Any]

    def __str__(self) -> str:
        return _call(self.kind, self.arguments) + (f" in queue {self.queue!r}" if self.queue is not None else "")

    def fits(self, record: TaskRecord) -> bool:
        """Whether the task has this kind, these arguments and this queue."""
        if record.kind != self.kind or self.queue not in (None, record.queue):
            return False
        given = {**self.defaults, **record.arguments}
        return all(name in given and _is_same(value, given[name]) for name, value in self.arguments.items())


def wanted(
    engine: Engine, task: AnyTask | str, args: tuple[Any, ...], kwargs: dict[str, Any], queue: str | None
) -> Wanted:
    """Parse the arguments of an assertion. Raises PayloadError if the task does not take them."""
    kind = kind_of(engine, task)
    known = engine.kinds.get(kind)
    if known is None:
        if args:
            raise PayloadError(f"the function of kind {kind!r} is not known here, so name its arguments")
        return Wanted(kind, kwargs, queue, {})
    parameters = _parameters(known)
    if len(args) > len(parameters):
        raise PayloadError(f"task {kind!r} takes {len(parameters)} arguments, got {len(args)}")
    for name in kwargs:
        if name not in parameters:
            raise PayloadError(f"task {kind!r} has no argument {name!r}; it takes ({', '.join(parameters)})")
    named = dict(zip(parameters, args, strict=False))
    twice = named.keys() & kwargs.keys()
    if twice:
        raise PayloadError(f"task {kind!r} got two values for {', '.join(sorted(twice))}")
    return Wanted(kind, {**named, **kwargs}, queue, _defaults(parameters))


def kind_of(engine: Engine, task: AnyTask | str) -> str:
    """The kind that an assertion is about. A name need not be registered here, but one that looks like a misspelt kind
    raises KindError."""
    if isinstance(task, TaskType):
        if task.engine is not engine:
            raise OptionError(f"task {task.kind!r} belongs to {task.engine!r}, but the test is of {engine!r}")
        return task.kind
    if not isinstance(task, str):
        raise OptionError(f"a task or the name of a kind was expected, got {task!r}")
    close = difflib.get_close_matches(task, engine.kinds, n=1)
    if task not in engine.kinds and close:
        raise KindError(f"there is no kind {task!r}; did you mean {close[0]!r}?")
    return task


def listing(records: Sequence[TaskRecord], kind: str, now: datetime) -> str:
    """The list of enqueued tasks for the message of an assertion. Those of the wanted kind come first."""
    if not records:
        return "nothing was enqueued"
    ordered = sorted(records, key=lambda record: record.kind != kind)
    lines = [
        f"  {record.id:>4}  {_call(record.kind, record.arguments)}  {_state_text(record, now)}" for record in ordered
    ]
    more = [f"  ... and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return "\n".join([f"enqueued {'was' if len(lines) == 1 else 'were'}:", *lines[:LISTED], *more])


def _state_text(record: TaskRecord, now: datetime) -> str:
    due = f", due in {(record.run_at - now).total_seconds():g} s" if record.state is State.SCHEDULED else ""
    return f"[queue {record.queue}, {record.state}{due}]"


def _call(kind: str, arguments: Mapping[str, Any]) -> str:
    text = f"{kind}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    return text if len(text) <= LONGEST_CALL else f"{text[:LONGEST_CALL]}..."


def _parameters(task: AnyTask) -> dict[str, inspect.Parameter]:
    """The parameters of the task function, without those that synergon fills in."""
    parameters = inspect.signature(task.function).parameters
    return {name: parameter for name, parameter in parameters.items() if name not in task.signature.injected}


def _defaults(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The default values of the arguments, as plain JSON values. A default that cannot be JSON is left out, so it
    matches nothing."""
    given = {name: parameter.default for name, parameter in parameters.items()}
    return {name: found for name, value in given.items() for found in _as_json(value)}


def _is_same(expected: Any, stored: Any) -> bool:
    """Whether the stored value equals the expected one: by `==`, so that `mock.ANY` works, or after the expected value
    was encoded as JSON."""
    return bool(expected == stored) or stored in _as_json(expected)


def _as_json(value: Any) -> Iterable[Any]:
    try:
        return [msgspec.json.decode(encode(value, "the value"))]
    except PayloadError:
        return []
