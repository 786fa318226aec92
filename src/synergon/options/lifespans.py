"""Lifespans: what an application sets up once per worker, and once per child process, and takes down at their end."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from synergon.errors import OptionError

WorkerLifespan = Callable[[], AsyncIterator[None]] | Callable[[], AbstractAsyncContextManager[Any]]
ProcessLifespan = Callable[[], Iterator[None]] | Callable[[], AbstractContextManager[Any]]


def worker_lifespan(function: Any) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """Check what `@engine.lifespan` decorates, and return a function that makes an async context manager."""
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)
    if not callable(function) or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise OptionError(f"@engine.lifespan decorates an `async def` with one `yield`, got {function!r}")
    return _checked(function, AbstractAsyncContextManager, "@engine.lifespan", "an async context manager")


def process_lifespan(function: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Check what `@engine.process_lifespan` decorates, and return a function that makes a context manager."""
    if inspect.isgeneratorfunction(function):
        return contextmanager(function)
    if not callable(function) or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise OptionError(
            f"@engine.process_lifespan decorates a plain `def` with one `yield`, got {function!r}; a child process has "
            "an event loop only while a coroutine of a task runs"
        )
    return _checked(function, AbstractContextManager, "@engine.process_lifespan", "a context manager")


def _checked(function: Callable[[], Any], wanted: type, where: str, what: str) -> Callable[[], Any]:
    def make() -> Any:
        made = function()
        if not isinstance(made, wanted):
            raise OptionError(f"{where}: {function!r} must have one `yield` or return {what}, got {made!r}")
        return made

    return make
