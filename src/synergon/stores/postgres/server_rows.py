"""Providers and servers in the PostgreSQL store: locks servers, and remembers the health of those that it has
locked."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ServerHealth, ServerName
from synergon.stores.sql_rows.server_rows import ServerRows as SqlServerRows


class ServerRows(SqlServerRows):
    """Adapts `stores.sql_rows.server_rows` to the PostgreSQL store."""

    __slots__ = ()
    _sql: Transaction

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        """Replace the servers of a provider. Waits for claims that count the provider's permits."""
        await self._sql.rows("lock_pools", [provider])
        await super().replace(provider, capacities)

    async def lock_health(
        self, servers: Collection[ServerName], failed: Collection[ServerName]
    ) -> dict[ServerName, ServerHealth]:
        """Lock the servers in `failed` and the unhealthy ones in `servers`, and read their health. The transaction
        remembers it, because the rule calls this again after the locks were taken."""
        known = self._sql.server_health
        new = set(servers) - known.keys()
        if new:
            known.update(dict.fromkeys(new))
            unwell = await self._sql.rows("unhealthy_servers", *self._sql.pairs(sorted(new)))
            if news := new.intersection((*failed, *map(tuple, unwell))):
                known.update(await super().lock_health(news, failed))
        return {server: found for server in servers if (found := known[server]) is not None}

    async def set_health(
        self,
        server: ServerName,
        failures: int,
        recent: int,
        backoffs: int,
        backs_off_until: int | None,
        failed_at: int | None,
    ) -> None:
        await super().set_health(server, failures, recent, backoffs, backs_off_until, failed_at)
        self._sql.locked_limits = None  # the claim of an exchange reads the servers again
