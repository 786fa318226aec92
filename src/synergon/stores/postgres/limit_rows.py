"""Limits in the PostgreSQL store: implements `stores.claim_primitives.LimitRows` with the statements of
`sql/limits.sql`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from synergon.model.limits import NO_BATCH, NO_RATE, NewLimit, NewRate
from synergon.stores import claim_primitives as port
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import KeyQueueTotal, LimitRow, PermitCount


class LimitRows(port.LimitRows):
    """Implements `stores.claim_primitives.LimitRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def declared(self, names: Iterable[str]) -> dict[str, str]:
        return dict(await self._transaction.rows("declared_limits", list(names)))

    async def exclude_unlimited(self) -> None:
        """Wait for transactions that read the kind's limit as missing, and block new ones that read it."""
        await self._transaction.rows("make_limit")

    async def declare(self, limit: NewLimit, declared: str) -> bool:
        rate = NO_RATE if limit.rate is None else limit.rate.values
        batch = NO_BATCH if limit.batch is None else limit.batch.values
        return await self._transaction.run("declare_limit", limit.name, declared, limit.value, *rate, *batch) == 1

    async def set_value(self, name: str, value: int | None) -> bool:
        return await self._transaction.run("set_limit", name, value) == 1

    async def set_rate(self, name: str, rate: NewRate | None, latest: int) -> bool:
        values = NO_RATE if rate is None else rate.values
        return await self._transaction.run("set_rate", name, *values, latest) == 1

    async def set_next_starts(self, moments: Mapping[str, int]) -> None:
        await self._transaction.run("set_limit_starts", list(moments), list(moments.values()))

    async def all(self) -> list[LimitRow]:
        return await self._transaction.typed(LimitRow, "limits")

    async def held(self) -> list[PermitCount]:
        return await self._transaction.typed(PermitCount, "held_permits")

    async def key_queue_totals(self) -> list[KeyQueueTotal]:
        return await self._transaction.typed(KeyQueueTotal, "key_queue_totals")
