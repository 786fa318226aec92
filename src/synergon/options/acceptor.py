"""`@kind.can_accept`: the candidates that its function gets, and the check of its answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from synergon.errors import ConfigurationError, OptionError
from synergon.model.record import Record
from synergon.options.durations import Duration, seconds
from synergon.options.function_names import name_of

DEFAULT_HOLDS_SECONDS: Final = 10.0
DEFAULT_TIMEOUT_SECONDS: Final = 10.0


class Candidate(Record, frozen=True, kw_only=True):
    """A ready task, as it is passed to a `can_accept` function."""

    id: int
    kind: str
    queue: str
    priority: int
    arguments: dict[str, Any]
    """The arguments as the task function would get them."""
    attempts: int
    """How many attempts of the task have started so far."""
    enqueued_at: datetime
    tags: tuple[str, ...]
    meta: dict[str, Any]


Decider = TypeVar("Decider", bound=Callable[[list[Candidate]], Any])


class Acceptor:
    """The `can_accept` function of a kind, how long its answers hold, and its timeout."""

    def __init__(self, function: Callable[..., Any], kind: str, *, holds_for: Duration, timeout: Duration) -> None:
        if not callable(function):
            raise ConfigurationError(f"can_accept of {kind!r} decorates a function, got {function!r}")
        _reject_misfit(function, kind)
        is_coroutine = inspect.iscoroutinefunction(function)
        self.decide: Callable[..., Any] = function if is_coroutine else partial(_consume_generator, function)
        self.name: Final = name_of(function)
        self.holds_seconds: Final = seconds(holds_for, "holds_for", positive=True)
        self.timeout_seconds: Final = seconds(timeout, "timeout", positive=True)


def _reject_misfit(function: Callable[..., Any], kind: str) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise ConfigurationError(
            f"can_accept of {kind!r} takes a function of the candidates, {function!r} is not: {error}"
        ) from None
    except ValueError:  # a built-in function without a signature
        pass


def _consume_generator(function: Callable[..., Any], candidates: list[Candidate]) -> Any:
    """Call the function. If it returns a generator, consume it here, because that is when it does its work."""
    said = function(candidates)
    return list(said) if inspect.isgenerator(said) else said


def accepted_ids(said: Any, candidates: list[Candidate]) -> set[int]:
    """The ids of the accepted candidates. Raises OptionError if the answer is invalid."""
    if isinstance(said, str | bytes) or not isinstance(said, Iterable):
        raise OptionError(f"can_accept must return a list of candidates or of their ids, got {said!r}")
    shown = {candidate.id for candidate in candidates}
    accepted: set[int] = set()
    for entry in said:
        task_id = entry.id if isinstance(entry, Candidate) else entry
        if isinstance(task_id, bool) or not isinstance(task_id, int) or task_id not in shown:
            raise OptionError(f"can_accept returned {entry!r}, which is none of the candidates that it was shown")
        accepted.add(task_id)
    return accepted
