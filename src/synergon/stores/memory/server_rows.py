"""Providers and servers in the memory store: implements `stores.claim_primitives.ServerRows` over the store's
tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from synergon.model.lifecycle import State
from synergon.model.limits import NewProvider
from synergon.stores import claim_primitives as port
from synergon.stores.memory.entries import Provider, Server
from synergon.stores.rows import ServerHealth, ServerName, ServerRow, UsedServer

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class ServerRows(port.ServerRows):
    """Implements `stores.claim_primitives.ServerRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._tables: Final = session.tables

    async def declared(self, providers: Iterable[str]) -> dict[str, str]:
        known = self._tables.providers
        return {name: known[name].declared for name in providers if name in known}

    async def declare(self, provider: NewProvider, declared: str) -> bool:
        """Insert a provider, or replace its declaration; its servers do not change. Returns True."""
        known = self._tables.providers.get(provider.name)
        self._tables.providers[provider.name] = Provider(
            declared,
            provider.backoff_after,
            provider.backoff_first,
            provider.backoff_cap,
            provider.failure_most,
            provider.failure_window,
            provider.probe_timeout,
            servers={} if known is None else known.servers,
        )
        return True

    async def lock_provider(self, provider: str) -> bool:
        """Whether the provider exists. Needs no lock."""
        return provider in self._tables.providers

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        entry = self._tables.providers[provider]
        before, entry.servers = entry.servers, {}
        for address, capacity in sorted(capacities.items()):
            server = entry.servers[address] = before.get(address) or Server(capacity)
            server.capacity = capacity

    async def commands_without_server(self, provider: str, addresses: Collection[str]) -> dict[int, str]:
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
        """Read the health of these servers. A server that was removed from its pool is missing from the result."""
        found: dict[ServerName, ServerHealth] = {}
        for name, address in servers:
            provider = self._tables.providers.get(name)
            server = None if provider is None else provider.servers.get(address)
            if provider is not None and server is not None:
                found[name, address] = self._health(name, provider, address, server)
        return found

    async def lock_suspended(self, providers: Sequence[str]) -> list[ServerHealth]:
        """Read the health of the servers that are out of service. Needs no lock."""
        return [
            self._health(name, provider, address, server)
            for name in providers
            if (provider := self._tables.providers.get(name)) is not None
            for address, server in provider.servers.items()
            if server.backs_off_until is not None
        ]

    def _health(self, name: str, provider: Provider, address: str, server: Server) -> ServerHealth:
        return ServerHealth(
            name,
            address,
            server.failures,
            server.recent,
            server.backoffs,
            server.backs_off_until,
            server.failed_at,
            self._session.now,
            provider.backoff_after,
            provider.backoff_first,
            provider.backoff_cap,
            provider.failure_most,
            provider.failure_window,
            provider.probe_timeout,
        )

    async def set_health(
        self,
        server: ServerName,
        failures: int,
        recent: int,
        backoffs: int,
        backs_off_until: int | None,
        failed_at: int | None,
    ) -> None:
        provider, address = server
        entry = self._tables.providers[provider].servers[address]
        entry.failures, entry.recent, entry.backoffs = failures, recent, backoffs
        entry.backs_off_until, entry.failed_at = backs_off_until, failed_at

    async def all(self) -> list[ServerRow]:
        return [
            server_row(name, provider, address, server)
            for name, provider in self._tables.providers.items()
            for address, server in provider.servers.items()
        ]

    async def used(self) -> list[UsedServer]:
        used = Counter(
            (row.provider, row.server)
            for row in self._tables.held.values()
            if row.provider is not None and row.server is not None
        )
        return [UsedServer(provider, address, count) for (provider, address), count in used.items()]


def server_row(name: str, provider: Provider, address: str, server: Server) -> ServerRow:
    """The server as the row that rules read."""
    return ServerRow(
        name,
        address,
        server.capacity,
        server.failures,
        server.recent,
        server.backs_off_until,
        server.failed_at,
        provider.probe_timeout is not None,
    )
