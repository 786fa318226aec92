"""Providers and servers, in the PostgreSQL store: the primitives of `stores.session.ServerRows` with its statements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from synergon.model.limits import NewProvider
from synergon.model.record import to_datetime
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ServerHealth, ServerName, ServerRow, UsedServer


class ServerRows:
    """Implements `stores.session.ServerRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def declared(self, providers: Iterable[str]) -> dict[str, str]:
        """The last declaration of each of these providers, as JSON."""
        return dict(await self._transaction.rows("declared_providers", list(providers)))

    async def declare(self, provider: NewProvider, declared: str) -> bool:
        """Insert a provider, or replace its back-off. False if a concurrent transaction declared exactly this."""
        backoff = (provider.backoff_after, provider.backoff_first, provider.backoff_cap)
        return await self._transaction.run("declare_provider", provider.name, declared, *backoff) == 1

    async def lock_provider(self, provider: str) -> bool:
        """Lock a provider. False if it does not exist."""
        return await self._transaction.row("lock_provider", provider) is not None

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        """Replace the servers of a provider. Waits for claims that count its permits."""
        addresses = list(capacities)
        await self._transaction.rows("lock_pools", [provider])
        await self._transaction.run("drop_servers", provider, addresses)
        await self._transaction.run("add_servers", provider, addresses, list(capacities.values()))

    async def commands_without_server(self, provider: str, addresses: Collection[str]) -> dict[int, str]:
        """Commands of the provider that wait for a server outside this pool, with its address."""
        return dict(await self._transaction.rows("commands_without_server", provider, list(addresses)))

    async def lock_health(
        self, servers: Collection[ServerName], failed: Collection[ServerName]
    ) -> dict[ServerName, ServerHealth]:
        """Lock the servers that have failed or are unhealthy. The transaction remembers them, because the lock order
        takes the locks earlier than the rule needs the rows."""
        known = self._transaction.server_health
        new = set(servers) - known.keys()
        if new:
            known.update(dict.fromkeys(new))
            unwell = await self._transaction.rows("unhealthy_servers", *_columns(new))
            if news := new.intersection((*failed, *map(tuple, unwell))):
                for health in await self._transaction.typed(ServerHealth, "lock_health", *_columns(news)):
                    known[health.provider, health.address] = health
        return {server: found for server in servers if (found := known[server]) is not None}

    async def set_health(self, server: ServerName, failures: int, backoffs: int, backs_off_until: int | None) -> None:
        """Write the health of a server."""
        until = None if backs_off_until is None else to_datetime(backs_off_until)
        await self._transaction.run("set_health", *server, failures, backoffs, until)
        self._transaction.locked_limits = None  # the claim of an exchange reads the servers again

    async def all(self) -> list[ServerRow]:
        """All servers of all pools."""
        return await self._transaction.typed(ServerRow, "servers")

    async def used(self) -> list[UsedServer]:
        """The servers that tasks run on, with the number of their tasks."""
        return await self._transaction.typed(UsedServer, "used_servers")


def _columns(servers: Collection[ServerName]) -> tuple[list[str], list[str]]:
    pairs = sorted(servers)
    return [provider for provider, _ in pairs], [address for _, address in pairs]
