"""Checks middleware: user functions around task functions, `async def around(ctx, call_next)`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from synergon.context import Context
from synergon.errors import OptionError

CallNext = Callable[[], Awaitable[Any]]
"""Runs the next middleware, or the task function. May be awaited at most once."""

Middleware = Callable[[Context, CallNext], Awaitable[Any]]


def check_middleware(function: Any, where: str) -> Middleware:
    """Return the function if it is a coroutine function of a context and `call_next`. Raises OptionError otherwise."""
    called = getattr(function, "__call__", None)  # noqa: B004  an object whose call is a coroutine
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)):
        raise OptionError(f"{where}: middleware is written `async def around(ctx, call_next)`, got {function!r}")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise OptionError(
            f"{where}: middleware takes two arguments, ctx and call_next, and {function!r} does not"
        ) from None
    checked: Middleware = function
    return checked


def check_middlewares(value: Any, where: str) -> tuple[Middleware, ...]:
    """Check a list of middleware. The first one is the outermost."""
    if callable(value) or not isinstance(value, Iterable):
        raise OptionError(f"{where}: middleware must be a list of functions, got {value!r}")
    return tuple(check_middleware(function, where) for function in value)
