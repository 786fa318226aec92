"""Providers and servers, in the SQLite store: the primitives of `stores.session.ServerRows` with its statements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from synergon.model.limits import NewProvider
from synergon.stores.rows import ServerHealth, ServerName, ServerRow, UsedServer
from synergon.stores.sqlite.transaction import Transaction, as_json


class ServerRows:
    """Implements `stores.session.ServerRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def declared(self, providers: Iterable[str]) -> dict[str, str]:
        """The last declaration of each of these providers, as JSON."""
        return self._transaction.declared("declared_provider", providers)

    async def declare(self, provider: NewProvider, declared: str) -> bool:
        """Insert a provider, or replace its back-off."""
        backoff = (provider.backoff_after, provider.backoff_first, provider.backoff_cap)
        return self._transaction.run("declare_provider", provider.name, declared, *backoff) == 1

    async def lock_provider(self, provider: str) -> bool:
        """Whether the provider exists."""
        return bool(await self.declared([provider]))

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        """Replace the servers of a provider. Those that remain retain their health."""
        self._transaction.run("drop_servers", provider, as_json(capacities))
        rows = [(provider, address, capacity) for address, capacity in capacities.items()]
        self._transaction.run_each("add_server", rows)

    async def commands_without_server(self, provider: str, addresses: Collection[str]) -> dict[int, str]:
        """Commands of the provider that wait for a server outside this pool, with its address."""
        return dict(self._transaction.rows("commands_without_server", provider, as_json(addresses)))

    async def lock_health(
        self,
        servers: Collection[ServerName],
        failed: Collection[ServerName],  # noqa: ARG002  nothing is locked
    ) -> dict[ServerName, ServerHealth]:
        """Read the health of the servers that these outcomes concern."""
        found: dict[ServerName, ServerHealth] = {}
        for provider, address in servers:
            parameters = {"provider": provider, "address": address, "now": self._transaction.now}
            for health in self._transaction.typed(ServerHealth, "server_health", **parameters):
                found[provider, address] = health
        return found

    async def set_health(self, server: ServerName, failures: int, backoffs: int, backs_off_until: int | None) -> None:
        """Write the health of a server."""
        self._transaction.run("set_health", failures, backoffs, backs_off_until, *server)

    async def all(self) -> list[ServerRow]:
        """All servers of all pools."""
        return self._transaction.typed(ServerRow, "servers")

    async def used(self) -> list[UsedServer]:
        """The servers that tasks run on, with the number of their tasks."""
        return self._transaction.typed(UsedServer, "used_servers")
