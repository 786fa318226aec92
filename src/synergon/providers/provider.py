"""Provider: a named pool of servers, with the kinds that run on them.

There are two equivalent styles: `gpu = engine.provider("gpu", servers=...)` with `@gpu.task`, or a subclass whose
`handle` serves every kind in `kinds`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import msgspec

from synergon.async_calls import Bridge, sync
from synergon.call import check_kind
from synergon.context import Context
from synergon.errors import ConfigurationError, OptionError
from synergon.model.limits import NewProvider, NewServer, ServerRecord
from synergon.options.addresses import normal_address
from synergon.options.decorators import TaskDecorator
from synergon.options.durations import Duration, microseconds, seconds
from synergon.options.options import HOOKS, check_hooks, check_limit, check_timeout, reject_unknown
from synergon.options.settings import UNSET, check_at_once
from synergon.policies import Health
from synergon.providers.commands import CommandDecorator
from synergon.providers.kind import Kind
from synergon.providers.server import Server
from synergon.task import AnyTask

if TYPE_CHECKING:
    from synergon.engine import Engine

Arguments = TypeVar("Arguments")

Servers = Mapping[str, int | None] | Iterable[str]
"""Addresses with their capacities (None means unlimited, 0 means closed), or only addresses, which all get one
capacity."""

DEFAULT_HEALTH = Health()

PROVIDER_OPTIONS: Final = ("servers", "capacity", "slots", "timeout", "health", *HOOKS)


class ProviderTask(msgspec.Struct, Generic[Arguments], frozen=True, kw_only=True):
    """The task that is passed to `handle` of a Provider subclass."""

    id: int
    kind: str
    attempt: int
    arguments: Arguments
    """The arguments, in the type given in `kinds`."""
    context: Context


class Provider:
    """Distributes tasks over servers, within limits that apply across all nodes."""

    kinds: ClassVar[Mapping[str, Any]] = {}
    """For a subclass with its own `handle`: the kinds that it serves, each with the type of its arguments, or with a
    `Kind` that has type and options."""

    def __init__(
        self,
        engine: Engine,
        name: str = "",
        *,
        servers: Servers = (),
        capacity: int | None = 1,
        slots: int | None = None,
        timeout: Duration | None = UNSET,
        health: Health | None = DEFAULT_HEALTH,
        **hooks: Callable[..., Any],
    ) -> None:
        self.engine = engine
        self.name: Final = check_kind(name or type(self).__name__.lower())
        where = f"provider {self.name!r}"
        reject_unknown(hooks, PROVIDER_OPTIONS, where)
        if health is not None and not isinstance(health, Health):
            raise OptionError(f"{where}: health must be a Health, or None for none, got {health!r}")
        self._servers = listed_servers(servers, check_limit(capacity, "capacity"), where)
        self._capacity = capacity
        self.slots: Final = None if slots is None else check_at_once(slots, f"{where}: slots")
        """How many of its tasks may run at once on each node; None means any number."""
        self._health = health
        self.timeout: float | None = UNSET
        """The timeout in seconds. None means no timeout; UNSET means that of the engine."""
        if timeout is not UNSET:
            self.timeout = check_timeout(timeout)
        self.hooks: Final = check_hooks({**self._own_hooks(), **hooks}, where)
        engine._registry.add_provider(self)
        self._serve_kinds()

    def __repr__(self) -> str:
        return f"<Provider {self.name}>"

    # ------------------------------------------------------------ kinds

    @property
    def task(self) -> TaskDecorator:
        """The decorator that registers a function to run on a server of this provider. A parameter annotated with
        `Server` receives the server."""
        return TaskDecorator(self, {})

    @property
    def command(self) -> CommandDecorator:
        """The decorator that registers a control action to run on servers of this provider, before every task."""
        return CommandDecorator(self)

    def _register(self, function: Callable[..., Any], options: Mapping[str, Any], registered_in: str) -> AnyTask:
        """Register a function, as the decorator does."""
        return self.engine._register(function, options, registered_in, provider=self)

    async def handle(self, task: ProviderTask[Any], server: Server) -> Any:
        """The task function of every kind in `kinds`. Subclasses implement it."""
        raise NotImplementedError  # a provider that is given functions has no `kinds`, and never comes here

    def _serve_kinds(self) -> None:
        if not isinstance(self.kinds, Mapping):
            raise ConfigurationError(
                f"provider {self.name!r}: kinds must be a dict of names and types of arguments, got {self.kinds!r}"
            )
        if self.kinds and type(self).handle is Provider.handle:
            raise ConfigurationError(f"provider {self.name!r} lists kinds but has no `async def handle(task, server)`")
        for name, given in self.kinds.items():
            kind = given if isinstance(given, Kind) else Kind(given)
            self._register(self._task_function(kind.arguments), {**kind.options, "name": name}, type(self).__module__)

    def _task_function(self, arguments_type: Any) -> Callable[..., Any]:
        async def task_function(arguments: Any, context: Context, server: Server) -> Any:
            task: ProviderTask[Any] = ProviderTask(
                id=context.task_id, kind=context.kind, attempt=context.attempt, arguments=arguments, context=context
            )
            return await self.handle(task, server)

        annotations = {"arguments": arguments_type, "context": Context, "server": Server, "return": Any}
        task_function.__annotations__ = annotations
        task_function.__qualname__ = f"{type(self).__qualname__}.handle"
        return task_function

    def _own_hooks(self) -> dict[str, Callable[..., Any]]:
        return {name: getattr(self, name) for name in HOOKS if hasattr(self, name)}

    # ------------------------------------------------------------ servers

    @property
    def probe(self) -> Callable[[Server], Awaitable[Any]] | None:
        """The function that probes servers that are out of service. None if there is none."""
        return None if self._health is None else self._health.probe

    def declaration(self) -> NewProvider:
        """The record that the engine stores when it connects."""
        health = self._health
        if health is None:
            return NewProvider(name=self.name, servers=self._servers, backoff_after=None, failure_most=None)
        return NewProvider(
            name=self.name,
            servers=self._servers,
            backoff_after=health.failures,
            backoff_first=microseconds(seconds(health.backoff, "backoff")),
            backoff_cap=microseconds(seconds(health.cap, "cap")),
            failure_most=health.most_failures,
            failure_window=health.window,
            probe_timeout=None
            if health.probe is None
            else microseconds(seconds(health.probe_timeout, "probe_timeout")),
        )

    @property
    def sync_bridge(self) -> Bridge:
        """Runs the methods that end in `_sync`, for code without an event loop."""
        return self.engine.sync_bridge

    async def set_servers(self, servers: Servers, *, capacity: int | None = UNSET) -> None:
        """Replace the pool on all nodes. Running tasks finish; waiting tasks can use new capacity at once."""
        if capacity is UNSET:
            capacity = self._capacity
        listed = listed_servers(servers, check_limit(capacity, "capacity"), f"provider {self.name!r}")
        await self.engine.set_servers(self.name, {server.address: server.capacity for server in listed})

    set_servers_sync: Final = sync(set_servers)

    async def add_server(self, address: str, capacity: int | None = UNSET) -> None:
        """Add a server to the pool on all nodes, or change its capacity."""
        await self.engine.add_server(self.name, address, self._capacity if capacity is UNSET else capacity)

    add_server_sync: Final = sync(add_server)

    async def remove_server(self, address: str) -> None:
        """Remove a server from the pool on all nodes. Its running tasks finish."""
        await self.engine.remove_server(self.name, address)

    remove_server_sync: Final = sync(remove_server)

    async def close_server(self, address: str) -> None:
        """Close a server on all nodes: it stays in the pool with capacity 0. Its running tasks finish."""
        await self.engine.close_server(self.name, address)

    close_server_sync: Final = sync(close_server)

    async def servers(self) -> list[ServerRecord]:
        """The servers of the pool with their running tasks and health, and removed servers on which tasks still run."""
        return [server for server in await self.engine.servers() if server.provider == self.name]

    servers_sync: Final = sync(servers)


def listed_servers(servers: Any, capacity: int | None, where: str) -> tuple[NewServer, ...]:
    """The servers with normalised addresses. Raises OptionError if one is invalid or named twice."""
    if isinstance(servers, str) or not isinstance(servers, Iterable):
        raise OptionError(f"{where}: servers must be a dict of addresses and capacities, or a list, got {servers!r}")
    capacities = servers if isinstance(servers, Mapping) else dict.fromkeys(_check_unique(servers, where), capacity)
    found: dict[str, str] = {}
    for given in capacities:
        address = normal_address(given)
        if address in found:
            raise OptionError(
                f"{where}: {found[address]!r} and {given!r} are the same server; name it once and give it a capacity"
            )
        found[address] = given
    return tuple(
        NewServer(address=address, capacity=check_limit(capacities[given], f"capacity of {given!r}"))
        for address, given in found.items()
    )


def _check_unique(servers: Iterable[str], where: str) -> list[str]:
    listed = list(servers)
    for address in listed:
        if not isinstance(address, str):
            raise OptionError(
                f"{where}: a server is an address, like 'http://gpu1:8000', got {address!r}; "
                "write a dict of addresses and capacities to give each a capacity of its own"
            )
        if listed.count(address) > 1:
            raise OptionError(f"{where}: {address!r} is named twice; name it once and give it a capacity")
    return listed
