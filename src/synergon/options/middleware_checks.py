"""Middleware: functions of users around bodies, `async def around(ctx, call_next)`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from synergon.context import Context
from synergon.errors import OptionError

CallNext = Callable[[], Awaitable[Any]]
"""Runs what is inside: the next middleware, or the body. To be awaited once at the most."""

Middleware = Callable[[Context, CallNext], Awaitable[Any]]


def check_middleware(function: Any, where: str) -> Middleware:
    """A coroutine function of a context and of what is inside, or the error that says so."""
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
    """A list of them, the outermost first."""
    if callable(value) or not isinstance(value, Iterable):
        raise OptionError(f"{where}: middleware must be a list of functions, got {value!r}")
    return tuple(check_middleware(function, where) for function in value)
