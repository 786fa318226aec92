"""Providers and servers: implements `stores.claim_primitives.ServerRows` with the statements of `sql/servers.sql`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from synergon.model.limits import NewProvider
from synergon.stores import claim_primitives as port
from synergon.stores.rows import ServerHealth, ServerName, ServerRow, UsedServer
from synergon.stores.sql_rows.named_statements import SqlRows


class ServerRows(SqlRows, port.ServerRows):
    """Implements `stores.claim_primitives.ServerRows`."""

    __slots__ = ()

    async def declared(self, providers: Iterable[str]) -> dict[str, str]:
        return dict(await self._sql.rows("declared_providers", list(providers)))

    async def declare(self, provider: NewProvider, declared: str) -> bool:
        return await self._sql.run("declare_provider", provider.name, declared, *provider.health) == 1

    async def lock_provider(self, provider: str) -> bool:
        return await self._sql.value("lock_provider", provider) is not None

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        await self._sql.run("drop_servers", provider, list(capacities))
        await self._sql.run_all("add_servers", [(provider, *server) for server in sorted(capacities.items())])

    async def commands_without_server(self, provider: str, addresses: Collection[str]) -> dict[int, str]:
        return dict(await self._sql.rows("commands_without_server", provider, list(addresses)))

    async def lock_health(
        self,
        servers: Collection[ServerName],
        failed: Collection[ServerName],  # noqa: ARG002  PostgreSQL needs it
    ) -> dict[ServerName, ServerHealth]:
        found = await self._sql.typed(ServerHealth, "lock_health", *self._sql.pairs(sorted(servers)))
        return {(health.provider, health.address): health for health in found}

    async def lock_suspended(self, providers: Sequence[str]) -> list[ServerHealth]:
        return await self._sql.typed(ServerHealth, "lock_suspended", list(providers))

    async def set_health(
        self,
        server: ServerName,
        failures: int,
        recent: int,
        backoffs: int,
        backs_off_until: int | None,
        failed_at: int | None,
    ) -> None:
        moments = [None if moment is None else self._sql.moment(moment) for moment in (backs_off_until, failed_at)]
        await self._sql.run("set_health", *server, failures, recent, backoffs, *moments)

    async def all(self) -> list[ServerRow]:
        return await self._sql.typed(ServerRow, "servers")

    async def used(self) -> list[UsedServer]:
        return await self._sql.typed(UsedServer, "used_servers")
