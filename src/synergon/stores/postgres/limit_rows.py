"""Limits in the PostgreSQL store: implements `stores.session.LimitRows` with the statements of `sql/limits.sql`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from synergon.model.limits import NewLimit
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import KeyQueueTotal, LimitRow, PermitCount


class LimitRows:
    """Implements `stores.session.LimitRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def declared(self, names: Iterable[str]) -> dict[str, str]:
        """The last declaration of each of these limits, as JSON, without limits that do not exist."""
        return dict(await self._transaction.rows("declared_limits", list(names)))

    async def exclude_unlimited(self) -> None:
        """Wait for transactions that read the kind's limit as missing, and block new ones that read it."""
        await self._transaction.rows("make_limit")

    async def declare(self, limit: NewLimit, declared: str) -> bool:
        """Insert a limit, or replace its value and rate. False if a concurrent transaction has stored this
        declaration."""
        rate = (None, None) if limit.rate is None else (limit.rate.every, limit.rate.burst)
        return await self._transaction.run("declare_limit", limit.name, declared, limit.value, *rate) == 1

    async def set_value(self, name: str, value: int | None) -> bool:
        """Change the value of a limit. False if there is no limit of this name."""
        return await self._transaction.run("set_limit", name, value) == 1

    async def all(self) -> list[LimitRow]:
        """All limits, by name."""
        return await self._transaction.typed(LimitRow, "limits")

    async def held(self) -> list[PermitCount]:
        """The permits that running tasks hold, with their numbers."""
        return await self._transaction.typed(PermitCount, "held_permits")

    async def key_queue_totals(self) -> list[KeyQueueTotal]:
        """The numbers of running and waiting tasks in key queues, by kind."""
        return await self._transaction.typed(KeyQueueTotal, "key_queue_totals")
