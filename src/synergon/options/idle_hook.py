"""Idle hooks: functions that a node calls when it has free capacity and no ready task."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, overload

from synergon.errors import OptionError
from synergon.options.durations import Duration, seconds
from synergon.options.function_names import name_of
from synergon.policies import DEFAULT_TIMEOUT_SECONDS

EVERY_SECONDS: Final = 5.0

Hook = TypeVar("Hook", bound=Callable[[], Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleHook:
    """An idle hook, and when it is called."""

    function: Callable[[], Any]
    every: float
    """The minimum time in seconds between the end of one call and the next call."""
    timeout: float | None
    kind: str | None = None
    """The hook is called when a task of this kind could start and none is ready. None means all kinds."""

    @property
    def name(self) -> str:
        """The name of the function, for messages."""
        return name_of(self.function)


class WhenIdle(Protocol):
    """The decorator `when_idle`, with and without options. Returns the function unchanged."""

    @overload
    def __call__(self, function: Hook, /) -> Hook: ...
    @overload
    def __call__(
        self, /, *, every: Duration = EVERY_SECONDS, timeout: Duration | None = DEFAULT_TIMEOUT_SECONDS
    ) -> Callable[[Hook], Hook]: ...
    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        """Register the function as an idle hook. It is called when the node is idle, with pauses of at least `every`
        seconds."""


class HookOwner(Protocol):
    """An object that has idle hooks: an engine or a task type."""

    idle_hooks: list[IdleHook]

    @property
    def _node(self) -> object:
        """The node that calls the hooks. None while there is none."""


def registrar(owner: HookOwner, kind: str | None = None) -> WhenIdle:
    """The decorator `when_idle` of this owner."""

    def when_idle(function: Any = None, /, **options: Any) -> Any:
        every, timeout = _checked(**options)

        def register(function: Hook) -> Hook:
            if owner._node is not None:
                raise OptionError(f"the idle hook {function!r} must be there before a worker starts")
            owner.idle_hooks.append(IdleHook(function=_callable(function), every=every, timeout=timeout, kind=kind))
            return function

        return register if function is None else register(function)

    return when_idle


def _checked(every: Any = EVERY_SECONDS, timeout: Any = DEFAULT_TIMEOUT_SECONDS, **unknown: Any) -> tuple[Any, Any]:
    if unknown:
        raise OptionError(f"when_idle has no option {', '.join(map(repr, sorted(unknown)))}; it has every and timeout")
    limit = None if timeout is None else seconds(timeout, "timeout of when_idle", positive=True)
    return seconds(every, "every of when_idle", positive=True), limit


def _callable(function: Any) -> Callable[[], Any]:
    if not callable(function) or inspect.isclass(function):
        raise OptionError(f"when_idle decorates functions, got {function!r}; options are named: when_idle(every=5)")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise OptionError(f"the idle hook {function!r} is a generator, which would never be run; enqueue inside it")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise OptionError(f"the idle hook {function!r} is called without arguments: {error}") from None
    except ValueError:  # a built-in function without a signature
        pass
    return function  # type: ignore[no-any-return]  # it is, as just seen
