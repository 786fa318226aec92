"""Commands: control actions that run on servers of a provider, before every task.

A command is stored as a task, so it is durable, can be cancelled and appears in the history. Commands run in the order
in which they were sent. A command that has started is never run again, whatever happens to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import msgspec

from synergon.async_calls import Bridge, must_await
from synergon.call import Call
from synergon.context import Context
from synergon.errors import CommandsFailed, ConfigurationError, OptionError, TaskError
from synergon.handle import Handle
from synergon.options.addresses import normal_address
from synergon.options.decorators import calling_module
from synergon.options.durations import Duration
from synergon.options.overrides import RunsIn
from synergon.providers.server import Server
from synergon.task import TaskType

if TYPE_CHECKING:
    from synergon.providers.provider import Provider

Parameters = ParamSpec("Parameters")
Full = ParamSpec("Full")
Returned = TypeVar("Returned")
Value = TypeVar("Value")

ANY: Final = "any"
EACH: Final = "each"


class CommandOptions(TypedDict, total=False):
    """The options of `@provider.command`."""

    name: str
    timeout: Duration | None
    runs_in: RunsIn


OPTIONS: Final = tuple(CommandOptions.__annotations__)


class CommandDecorator:
    """The decorator `@provider.command`, with or without options."""

    def __init__(self, provider: Provider, options: Mapping[str, Any] | None = None) -> None:
        self._provider = provider
        self._options = options or {}

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Server, Parameters], Coroutine[Any, Any, Value]], /
    ) -> Command[Concatenate[Context, Server, Parameters], Parameters, Coroutine[Any, Any, Value], Value]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Server, Parameters], Returned], /
    ) -> Command[Concatenate[Context, Server, Parameters], Parameters, Returned, Returned]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Server, Context, Parameters], Coroutine[Any, Any, Value]], /
    ) -> Command[Concatenate[Server, Context, Parameters], Parameters, Coroutine[Any, Any, Value], Value]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Server, Context, Parameters], Returned], /
    ) -> Command[Concatenate[Server, Context, Parameters], Parameters, Returned, Returned]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Parameters], Coroutine[Any, Any, Value]], /
    ) -> Command[Concatenate[Context, Parameters], Parameters, Coroutine[Any, Any, Value], Value]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Parameters], Returned], /
    ) -> Command[Concatenate[Context, Parameters], Parameters, Returned, Returned]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Server, Parameters], Coroutine[Any, Any, Value]], /
    ) -> Command[Concatenate[Server, Parameters], Parameters, Coroutine[Any, Any, Value], Value]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Server, Parameters], Returned], /
    ) -> Command[Concatenate[Server, Parameters], Parameters, Returned, Returned]: ...
    @overload
    def __call__(
        self, function: Callable[Parameters, Coroutine[Any, Any, Value]], /
    ) -> Command[Parameters, Parameters, Coroutine[Any, Any, Value], Value]: ...
    @overload
    def __call__(
        self, function: Callable[Parameters, Returned], /
    ) -> Command[Parameters, Parameters, Returned, Returned]: ...
    @overload
    def __call__(self, /, **options: Unpack[CommandOptions]) -> CommandDecorator: ...

    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register the function as a command. If only options are given, returns a decorator that does so. A parameter
        annotated with `Server` receives the server."""
        if function is None:
            return CommandDecorator(self._provider, options)
        return Command(self._provider, function, self._options, calling_module())


class Command(Generic[Full, Parameters, Returned, Value]):
    """A registered control action. The function remains callable.

    For type checkers, the parameters are those of `TaskType`. The arguments of a call with `to` are checked when it is
    made: Python cannot express their types beside `to`.
    """

    def __init__(
        self, provider: Provider, function: Callable[Full, Returned], options: Mapping[str, Any], registered_in: str
    ) -> None:
        name = options.get("name", getattr(function, "__name__", ""))
        where = f"@command {name!r} of provider {provider.name!r}"
        for option in options:
            if option not in OPTIONS:
                raise OptionError(f"{where} has no option {option!r}; it takes {', '.join(OPTIONS)}")
        self._provider = provider
        self._function = function
        self._task_type: TaskType[..., ..., Any, Value] = provider.engine._register(
            function, {**options, "name": f"{provider.name}.{name}"}, registered_in, provider=provider, is_command=True
        )
        if "to" in self._task_type.signature.names:
            raise ConfigurationError(f"{where} has an argument `to`, which says where a command is sent; rename it")

    def __repr__(self) -> str:
        return f"<Command {self.kind}>"

    def __call__(self, *args: Full.args, **kwargs: Full.kwargs) -> Returned:
        """Call the function directly, as if it had not been decorated."""
        return self._function(*args, **kwargs)

    @property
    def kind(self) -> str:
        """The kind of the command's tasks."""
        return self._task_type.kind

    @property
    def _name_in_code(self) -> str:
        """The name of the function in the program, for messages."""
        return self._task_type._name_in_code

    @property
    def logger(self) -> logging.Logger:
        """The logger of the engine."""
        return self._provider.engine.logger

    @property
    def sync_bridge(self) -> Bridge:
        """Runs the methods that end in `_sync`, for code without an event loop."""
        return self._provider.engine.sync_bridge

    @overload
    async def send(self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value: ...
    @overload
    async def send(self, /, *args: Any, to: Literal["each"], **kwargs: Any) -> dict[str, Value]: ...
    @overload
    async def send(self, /, *args: Any, to: str, **kwargs: Any) -> Value: ...

    @must_await(sync="send_sync")
    async def send(self, /, *args: Any, to: Any = ANY, **kwargs: Any) -> Any:
        """Run the command on any server, on each server (`to="each"`), or on the server with this address, and wait for
        the result.

        Returns what the function returned; with "each", a dict by address. If the command failed, raises TaskFailed;
        with "each", CommandsFailed, which also has the results of the other servers.
        """
        handles = await self.enqueue(*args, to=to, **kwargs)
        if to != EACH:
            return await next(iter(handles.values())).result()
        results: dict[str, Value] = {}
        errors: dict[str, TaskError] = {}
        for address, handle in handles.items():
            try:
                results[address] = await handle.result()
            except TaskError as error:
                errors[address] = error
        if errors:
            raise CommandsFailed(
                f"{self.kind} failed on {len(errors)} of {len(handles)} servers: "
                + "; ".join(f"{address}: {error}" for address, error in errors.items()),
                results,
                errors,
            )
        return results

    @overload
    def send_sync(self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value: ...
    @overload
    def send_sync(self, /, *args: Any, to: Literal["each"], **kwargs: Any) -> dict[str, Value]: ...
    @overload
    def send_sync(self, /, *args: Any, to: str, **kwargs: Any) -> Value: ...

    def send_sync(self, /, *args: Any, to: Any = ANY, **kwargs: Any) -> Any:
        """`send` for code without an event loop."""
        return self.sync_bridge.call(lambda: self.send(*args, to=to, **kwargs))

    @overload
    async def enqueue(self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> dict[str, Handle[Value]]: ...
    @overload
    async def enqueue(self, /, *args: Any, to: str, **kwargs: Any) -> dict[str, Handle[Value]]: ...

    @must_await(sync="enqueue_sync")
    async def enqueue(self, /, *args: Any, to: Any = ANY, **kwargs: Any) -> dict[str, Handle[Value]]:
        """Send the command without waiting for it. Returns its handles by address. A command to any server has one
        handle, under "any"."""
        engine = self._provider.engine
        call: Call[Value] = self._task_type.call(*args, **kwargs)
        addresses = await self._addresses(to)
        tasks = [
            msgspec.structs.replace(
                call.to_new_task(engine._connection.origin),
                is_command=True,
                provider=self._provider.name,
                target=None if address == ANY else address,
            )
            for address in addresses
        ]
        inserted = await engine._enqueuer.enqueue_tasks(tasks)
        handles = (Handle.of(engine, found, self._task_type) for found in inserted)
        return dict(zip(addresses, handles, strict=True))

    @overload
    def enqueue_sync(self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> dict[str, Handle[Value]]: ...
    @overload
    def enqueue_sync(self, /, *args: Any, to: str, **kwargs: Any) -> dict[str, Handle[Value]]: ...

    def enqueue_sync(self, /, *args: Any, to: Any = ANY, **kwargs: Any) -> dict[str, Handle[Value]]:
        """`enqueue` for code without an event loop."""
        return self.sync_bridge.call(lambda: self.enqueue(*args, to=to, **kwargs))

    async def _addresses(self, to: Any) -> list[str]:
        if to == ANY:
            return [ANY]
        pool = [server.address for server in await self._provider.servers() if not server.is_removed]
        if to == EACH:
            if not pool:
                raise OptionError(f"provider {self._provider.name!r} has no servers to send {self.kind} to")
            return pool
        address = normal_address(to, "to")
        if address not in pool:
            raise OptionError(
                f"provider {self._provider.name!r} has no server {to!r}; it has {', '.join(pool) or 'none'}"
            )
        return [address]
