"""`@engine.task` and `@provider.task`, with and without options. Type checkers see the function's own signature.

Callers leave out what synergon fills in: a Context, a Server, or both. Type checkers see that if these come first, or
have the default `injected`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from synergon.context import Context
from synergon.options.options import TaskOptions
from synergon.policies import Batch
from synergon.providers.server import Server
from synergon.task import AnyTask, TaskType

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Value = TypeVar("Value")
Item = TypeVar("Item")
Results = list[Value] | None
"""The return type of a function that runs batches."""


class Registrar(Protocol):
    """The engine or the provider with which a task function is registered."""

    def _register(self, function: Callable[..., Any], options: Mapping[str, Any], registered_in: str) -> AnyTask:
        """Register the function as a kind."""


class TaskDecorator:
    """Registers a function as a kind, or first takes options."""

    def __init__(self, registrar: Registrar, options: Mapping[str, Any]) -> None:
        self._registrar = registrar
        self._options = options

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Server, Parameters], Coroutine[Any, Any, Value]], /
    ) -> TaskType[Concatenate[Context, Server, Parameters], Parameters, Coroutine[Any, Any, Value], Value]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Server, Parameters], Returned], /
    ) -> TaskType[Concatenate[Context, Server, Parameters], Parameters, Returned, Returned]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Server, Context, Parameters], Coroutine[Any, Any, Value]], /
    ) -> TaskType[Concatenate[Server, Context, Parameters], Parameters, Coroutine[Any, Any, Value], Value]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Server, Context, Parameters], Returned], /
    ) -> TaskType[Concatenate[Server, Context, Parameters], Parameters, Returned, Returned]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Parameters], Coroutine[Any, Any, Value]], /
    ) -> TaskType[Concatenate[Context, Parameters], Parameters, Coroutine[Any, Any, Value], Value]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Parameters], Returned], /
    ) -> TaskType[Concatenate[Context, Parameters], Parameters, Returned, Returned]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Server, Parameters], Coroutine[Any, Any, Value]], /
    ) -> TaskType[Concatenate[Server, Parameters], Parameters, Coroutine[Any, Any, Value], Value]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Server, Parameters], Returned], /
    ) -> TaskType[Concatenate[Server, Parameters], Parameters, Returned, Returned]: ...
    @overload
    def __call__(
        self, function: Callable[Parameters, Coroutine[Any, Any, Value]], /
    ) -> TaskType[Parameters, Parameters, Coroutine[Any, Any, Value], Value]: ...
    @overload
    def __call__(
        self, function: Callable[Parameters, Returned], /
    ) -> TaskType[Parameters, Parameters, Returned, Returned]: ...
    @overload
    def __call__(self, /, *, batch: Batch, **options: Unpack[TaskOptions]) -> BatchDecorator: ...
    @overload
    def __call__(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...

    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        """Register a function as a kind. Called with options only, return a decorator that does so. The function
        remains callable."""
        if function is None:
            return TaskDecorator(self._registrar, {**self._options, **options})
        return self._registrar._register(function, self._options, calling_module())


class BatchDecorator(Protocol):
    """The decorator with `batch`, for type checkers: the function takes a list, its callers enqueue one item. Before
    and after the list, the function may have parameters that synergon fills in."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, list[Item], Parameters], Coroutine[Any, Any, Results[Value]]], /
    ) -> TaskType[
        Concatenate[Context, list[Item], Parameters], [Item], Coroutine[Any, Any, Results[Value]], Value | None
    ]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, list[Item], Parameters], Results[Value]], /
    ) -> TaskType[Concatenate[Context, list[Item], Parameters], [Item], Results[Value], Value | None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Item], Parameters], Coroutine[Any, Any, Results[Value]]], /
    ) -> TaskType[Concatenate[list[Item], Parameters], [Item], Coroutine[Any, Any, Results[Value]], Value | None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Item], Parameters], Results[Value]], /
    ) -> TaskType[Concatenate[list[Item], Parameters], [Item], Results[Value], Value | None]: ...

    def __call__(self, function: Any, /) -> Any:
        """Register a function that runs batches as a kind."""


def calling_module() -> str:
    """The name of the module that has called the caller of this function."""
    name: str = sys._getframe(2).f_globals.get("__name__", "")  # noqa: SLF001  the usual way to know
    return name
