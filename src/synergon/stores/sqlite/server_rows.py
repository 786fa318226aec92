"""Providers and servers in the SQLite store: implements `stores.claim_primitives.ServerRows` with the statements of
`sql/servers.sql`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from synergon.model.limits import NewProvider
from synergon.stores import claim_primitives as port
from synergon.stores.rows import ServerHealth, ServerName, ServerRow, UsedServer
from synergon.stores.sqlite.transaction import Transaction, as_json


class ServerRows(port.ServerRows):
    """Implements `stores.claim_primitives.ServerRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def declared(self, providers: Iterable[str]) -> dict[str, str]:
        return self._transaction.declared("declared_provider", providers)

    async def declare(self, provider: NewProvider, declared: str) -> bool:
        """Insert a provider, or replace its back-off; its servers do not change. Always True."""
        return self._transaction.run("declare_provider", provider.name, declared, *provider.health) == 1

    async def lock_provider(self, provider: str) -> bool:
        """Whether the provider exists. Needs no lock: the transaction holds the write lock of the file."""
        return bool(await self.declared([provider]))

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        self._transaction.run("drop_servers", provider, as_json(capacities))
        rows = [(provider, address, capacity) for address, capacity in capacities.items()]
        self._transaction.run_each("add_server", rows)

    async def commands_without_server(self, provider: str, addresses: Collection[str]) -> dict[int, str]:
        return dict(self._transaction.rows("commands_without_server", provider, as_json(addresses)))

    async def lock_health(
        self,
        servers: Collection[ServerName],
        failed: Collection[ServerName],  # noqa: ARG002  nothing is locked
    ) -> dict[ServerName, ServerHealth]:
        """Read the health of these servers. A server that was removed from its pool is missing from the result."""
        found: dict[ServerName, ServerHealth] = {}
        for provider, address in servers:
            parameters = {"provider": provider, "address": address, "now": self._transaction.now}
            for health in self._transaction.typed(ServerHealth, "server_health", **parameters):
                found[provider, address] = health
        return found

    async def lock_suspended(self, providers: Sequence[str]) -> list[ServerHealth]:
        """Read the health of the servers that are out of service. Needs no lock."""
        parameters = {"providers": as_json(providers), "now": self._transaction.now}
        return self._transaction.typed(ServerHealth, "suspended_servers", **parameters)

    async def set_health(
        self,
        server: ServerName,
        failures: int,
        recent: int,
        backoffs: int,
        backs_off_until: int | None,
        failed_at: int | None,
    ) -> None:
        self._transaction.run("set_health", failures, recent, backoffs, backs_off_until, failed_at, *server)

    async def all(self) -> list[ServerRow]:
        return self._transaction.typed(ServerRow, "servers")

    async def used(self) -> list[UsedServer]:
        return self._transaction.typed(UsedServer, "used_servers")
