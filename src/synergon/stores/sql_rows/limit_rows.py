"""Limits: implements `stores.claim_primitives.LimitRows` with the statements of `sql/limits.sql`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from synergon.model.limits import NO_BATCH, NO_RATE, NewLimit, NewRate
from synergon.stores import claim_primitives as port
from synergon.stores.rows import KeyQueueTotal, LimitRow, PermitCount
from synergon.stores.sql_rows.named_statements import SqlRows


class LimitRows(SqlRows, port.LimitRows):
    """Implements `stores.claim_primitives.LimitRows`."""

    __slots__ = ()

    async def declared(self, names: Iterable[str]) -> dict[str, str]:
        return dict(await self._sql.rows("declared_limits", list(names)))

    async def exclude_unlimited(self) -> None:
        """Does nothing in SQLite, which has one writer at a time. PostgreSQL overrides it."""

    async def declare(self, limit: NewLimit, declared: str) -> bool:
        rate = NO_RATE if limit.rate is None else limit.rate.values
        batch = NO_BATCH if limit.batch is None else limit.batch.values
        return await self._sql.run("declare_limit", limit.name, declared, limit.value, *rate, *batch) == 1

    async def set_value(self, name: str, value: int | None) -> bool:
        return await self._sql.run("set_limit", name, value) == 1

    async def set_rate(self, name: str, rate: NewRate | None, latest: int) -> bool:
        values = NO_RATE if rate is None else rate.values
        return await self._sql.run("set_rate", name, *values, latest) == 1

    async def set_next_starts(self, moments: Mapping[str, int]) -> None:
        await self._sql.run_all("set_limit_starts", list(moments.items()))

    async def all(self) -> list[LimitRow]:
        return await self._sql.typed(LimitRow, "limits")

    async def held(self) -> list[PermitCount]:
        return await self._sql.typed(PermitCount, "held_permits")

    async def key_queue_totals(self) -> list[KeyQueueTotal]:
        return await self._sql.typed(KeyQueueTotal, "key_queue_totals")
