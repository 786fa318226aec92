"""Providers and servers in the PostgreSQL store: implements `stores.claim_primitives.ServerRows` with the statements of
`sql/servers.sql`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from synergon.model.limits import NewProvider
from synergon.model.record import to_datetime
from synergon.stores import claim_primitives as port
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ServerHealth, ServerName, ServerRow, UsedServer


class ServerRows(port.ServerRows):
    """Implements `stores.claim_primitives.ServerRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def declared(self, providers: Iterable[str]) -> dict[str, str]:
        return dict(await self._transaction.rows("declared_providers", list(providers)))

    async def declare(self, provider: NewProvider, declared: str) -> bool:
        return await self._transaction.run("declare_provider", provider.name, declared, *provider.health) == 1

    async def lock_provider(self, provider: str) -> bool:
        """Lock a provider. False if there is no provider of this name."""
        return await self._transaction.row("lock_provider", provider) is not None

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        """Replace the servers of a provider. A server whose address remains retains its health. Waits for claims that
        count the provider's permits."""
        addresses = list(capacities)
        await self._transaction.rows("lock_pools", [provider])
        await self._transaction.run("drop_servers", provider, addresses)
        await self._transaction.run("add_servers", provider, addresses, list(capacities.values()))

    async def commands_without_server(self, provider: str, addresses: Collection[str]) -> dict[int, str]:
        return dict(await self._transaction.rows("commands_without_server", provider, list(addresses)))

    async def lock_health(
        self, servers: Collection[ServerName], failed: Collection[ServerName]
    ) -> dict[ServerName, ServerHealth]:
        """Lock the servers in `failed`, and those of `servers` that are unhealthy, and read their health. The
        transaction remembers the rows, because the locks are taken before the rule needs the rows."""
        known = self._transaction.server_health
        new = set(servers) - known.keys()
        if new:
            known.update(dict.fromkeys(new))
            unwell = await self._transaction.rows("unhealthy_servers", *_columns(new))
            if news := new.intersection((*failed, *map(tuple, unwell))):
                for health in await self._transaction.typed(ServerHealth, "lock_health", *_columns(news)):
                    known[health.provider, health.address] = health
        return {server: found for server in servers if (found := known[server]) is not None}

    async def lock_suspended(self, providers: Sequence[str]) -> list[ServerHealth]:
        """Lock the servers that are out of service, in the lock order. A server that another transaction has locked is
        read after that has ended."""
        return await self._transaction.typed(ServerHealth, "lock_suspended", list(providers))

    async def set_health(
        self,
        server: ServerName,
        failures: int,
        recent: int,
        backoffs: int,
        backs_off_until: int | None,
        failed_at: int | None,
    ) -> None:
        moments = [None if moment is None else to_datetime(moment) for moment in (backs_off_until, failed_at)]
        await self._transaction.run("set_health", *server, failures, recent, backoffs, *moments)
        self._transaction.locked_limits = None  # the claim of an exchange reads the servers again

    async def all(self) -> list[ServerRow]:
        return await self._transaction.typed(ServerRow, "servers")

    async def used(self) -> list[UsedServer]:
        return await self._transaction.typed(UsedServer, "used_servers")


def _columns(servers: Collection[ServerName]) -> tuple[list[str], list[str]]:
    pairs = sorted(servers)
    return [provider for provider, _ in pairs], [address for _, address in pairs]
