"""Providers and servers, in the memory store: the primitives of `stores.session.ServerRows` over its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import State
from synergon.model.limits import NewProvider
from synergon.stores.memory.entries import Provider, Server
from synergon.stores.rows import ServerHealth, ServerName, ServerRow, UsedServer

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class ServerRows:
    """Implements `stores.session.ServerRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._tables: Final = session.tables

    async def declared(self, providers: Iterable[str]) -> dict[str, str]:
        """The last declaration of each of these providers, as JSON."""
        known = self._tables.providers
        return {name: known[name].declared for name in providers if name in known}

    async def declare(self, provider: NewProvider, declared: str) -> bool:
        """Insert a provider, or replace its back-off."""
        known = self._tables.providers.get(provider.name)
        self._tables.providers[provider.name] = Provider(
            declared,
            provider.backoff_after,
            provider.backoff_first,
            provider.backoff_cap,
            servers={} if known is None else known.servers,
        )
        return True

    async def lock_provider(self, provider: str) -> bool:
        """Whether the provider exists."""
        return provider in self._tables.providers

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        """Replace the servers of a provider. Those that remain retain their health."""
        entry = self._tables.providers[provider]
        before, entry.servers = entry.servers, {}
        for address, capacity in sorted(capacities.items()):
            server = entry.servers[address] = before.get(address) or Server(capacity)
            server.capacity = capacity

    async def commands_without_server(self, provider: str, addresses: Collection[str]) -> dict[int, str]:
        """Commands of the provider that wait for a server outside this pool, with its address."""
        return {
            row.id: row.task.target
            for row in self._tables.commands.values()
            if row.task.provider == provider
            and row.task.target is not None
            and row.task.target not in addresses
            and row.state is not State.RUNNING
        }

    async def lock_health(
        self,
        servers: Collection[ServerName],
        failed: Collection[ServerName],  # noqa: ARG002  nothing is locked
    ) -> dict[ServerName, ServerHealth]:
        """Read the health of the servers that these outcomes concern."""
        found: dict[ServerName, ServerHealth] = {}
        for name, address in servers:
            provider = self._tables.providers.get(name)
            server = None if provider is None else provider.servers.get(address)
            if provider is not None and server is not None:
                found[name, address] = ServerHealth(
                    name,
                    address,
                    server.failures,
                    server.backoffs,
                    server.backs_off_until,
                    self._session.now,
                    provider.backoff_after,
                    provider.backoff_first,
                    provider.backoff_cap,
                )
        return found

    async def set_health(self, server: ServerName, failures: int, backoffs: int, backs_off_until: int | None) -> None:
        """Write the health of a server."""
        provider, address = server
        entry = self._tables.providers[provider].servers[address]
        entry.failures, entry.backoffs, entry.backs_off_until = failures, backoffs, backs_off_until

    async def all(self) -> list[ServerRow]:
        """All servers of all pools."""
        return [
            ServerRow(name, address, server.capacity, server.failures, server.backs_off_until)
            for name, provider in self._tables.providers.items()
            for address, server in provider.servers.items()
        ]

    async def used(self) -> list[UsedServer]:
        """The servers that tasks run on, with the number of their tasks."""
        used = Counter(
            (row.provider, row.server)
            for row in self._tables.held.values()
            if row.provider is not None and row.server is not None
        )
        return [UsedServer(provider, address, count) for (provider, address), count in used.items()]
