"""Wrappers of public coroutine methods: `must_await` and `sync`.

`must_await` marks methods that store tasks, so that no task is lost because a call was not awaited. Without a running
event loop, the call raises an error that names the synchronous method. With one, it returns a coroutine, which logs an
error if it is dropped before it has started. `inspect`, `asyncio` and frameworks still recognise a coroutine function.

`sync` makes the synchronous version of a coroutine method, for code without an event loop.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from asyncio import _get_running_loop  # None without a loop: an exception would cost more, on a hot path
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from synergon.errors import ConfigurationError

Function = TypeVar("Function", bound=Callable[..., Coroutine[Any, Any, Any]])
Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


class Caller(Protocol):
    """The attributes of a called object that error messages use."""

    @property
    def _name_in_code(self) -> str:
        """The expression before the method's name, as a program would write it."""

    @property
    def logger(self) -> logging.Logger:
        """The engine's logger."""


def must_await(*, sync: str) -> Callable[[Function], Function]:
    """Mark a coroutine method that stores tasks. `sync` is the name of the method for code without an event loop."""

    def mark(method: Function) -> Function:
        name = method.__name__

        @functools.wraps(method)
        def call(caller: Caller, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
            if _get_running_loop() is None:
                raise no_loop(caller, name, sync)
            return AwaitedCall(method(caller, *args, **kwargs), caller, name)

        return cast("Function", coroutine_function(call))

    return mark


def coroutine_function(function: Function) -> Function:
    """Make `inspect` and `asyncio` treat a function that returns a coroutine as a coroutine function."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    # Before 3.12 they check only the flag of the code. A call ignores it: a bytecode instruction creates the coroutine.
    code = function.__code__
    function.__code__ = code.replace(co_flags=code.co_flags | inspect.CO_COROUTINE)
    return function


def no_loop(caller: Caller, name: str, sync: str) -> ConfigurationError:
    """The error for a call without a running event loop."""
    of = caller._name_in_code
    return ConfigurationError(
        f"{of}.{name}(...) was called where no event loop runs, so nothing would be stored; in synchronous code call "
        f"{of}.{sync}(...), and for asyncio.run() await it inside an `async def`"
    )


class AwaitedCall(Coroutine[Any, Any, Any]):
    """The coroutine of one call. It runs the method, and logs an error if it is dropped before it has started."""

    __slots__ = ("_caller", "_coroutine", "_name")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], caller: Caller, name: str) -> None:
        self._coroutine = coroutine
        self._caller: Caller | None = caller
        """None as soon as the coroutine has started."""
        self._name = name

    def __await__(self) -> Generator[Any, Any, Any]:
        self._caller = None
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        """Continue the coroutine with this value."""
        self._caller = None
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Continue the coroutine with this error."""
        self._caller = None
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End the coroutine. A call that is closed on purpose is not logged."""
        self._caller = None
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        """Forward attributes of the coroutine that debuggers and asyncio read: its name, code and frame."""
        return getattr(self._coroutine, name)

    def __del__(self) -> None:
        caller = self._caller
        if caller is None:
            return
        self._coroutine.close()  # otherwise Python would warn, too, without the names
        call = f"{caller._name_in_code}.{self._name}(...)"
        caller.logger.error("%s was never awaited: the task is not stored; write `await %s`", call, call, stacklevel=2)


class Bridge(Protocol):
    """Runs coroutines for code without an event loop."""

    def call(self, function: Callable[[], Awaitable[Value]]) -> Value:
        """Run the coroutine that `function` creates, and return its result."""


class Bridged(Protocol):
    """An object whose methods `sync` can wrap: it has the bridge of its engine."""

    @property
    def sync_bridge(self) -> Bridge:
        """The bridge of the engine."""


Owner = TypeVar("Owner", bound=Bridged)


def sync(
    method: Callable[Concatenate[Owner, Parameters], Awaitable[Value]],
) -> Callable[Concatenate[Owner, Parameters], Value]:
    """Make the synchronous version of a coroutine method, for code without an event loop: `get_sync = sync(get)`."""

    @functools.wraps(method, updated=())  # without the mark of a coroutine function
    def call(owner: Owner, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        return owner.sync_bridge.call(lambda: method(owner, *args, **kwargs))

    name = method.__name__
    call.__name__ = f"{name}_sync"
    call.__qualname__ = f"{method.__qualname__}_sync"
    call.__doc__ = f"`{name}` for code without an event loop."
    return call
