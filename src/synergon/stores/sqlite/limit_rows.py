"""Limits in the SQLite store: implements `stores.claim_primitives.LimitRows` with the statements of
`sql/limits.sql`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from synergon.model.limits import NO_BATCH, NO_RATE, RATE_COLUMNS, NewLimit, NewRate
from synergon.stores import claim_primitives as port
from synergon.stores.rows import KeyQueueTotal, LimitRow, PermitCount
from synergon.stores.sqlite.transaction import Transaction


class LimitRows(port.LimitRows):
    """Implements `stores.claim_primitives.LimitRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def declared(self, names: Iterable[str]) -> dict[str, str]:
        return self._transaction.declared("declared_limit", names)

    async def exclude_unlimited(self) -> None:
        """Does nothing: no other transaction writes concurrently."""

    async def declare(self, limit: NewLimit, declared: str) -> bool:
        """Insert a limit, or replace its value and rate. Always True."""
        rate = NO_RATE if limit.rate is None else limit.rate.values
        batch = NO_BATCH if limit.batch is None else limit.batch.values
        return self._transaction.run("declare_limit", limit.name, declared, limit.value, *rate, *batch) == 1

    async def set_value(self, name: str, value: int | None) -> bool:
        return self._transaction.run("set_limit", value, name) == 1

    async def set_rate(self, name: str, rate: NewRate | None, latest: int) -> bool:
        values = NO_RATE if rate is None else rate.values
        parameters = {"name": name, "latest": latest, **dict(zip(RATE_COLUMNS, values, strict=True))}
        return self._transaction.run("set_rate", **parameters) == 1

    async def set_next_starts(self, moments: Mapping[str, int]) -> None:
        for name, moment in moments.items():
            self._transaction.run("set_limit_start", moment, name)

    async def all(self) -> list[LimitRow]:
        return self._transaction.typed(LimitRow, "limits")

    async def held(self) -> list[PermitCount]:
        return self._transaction.typed(PermitCount, "held_permits")

    async def key_queue_totals(self) -> list[KeyQueueTotal]:
        return self._transaction.typed(KeyQueueTotal, "key_queue_totals")
