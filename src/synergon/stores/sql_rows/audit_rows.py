"""The audit of operator actions: implements `stores.session.AuditRows` with the statements of
`sql/operator_actions.sql`."""

from __future__ import annotations

import msgspec

from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.stores import session as port
from synergon.stores.sql_rows.named_statements import SqlRows


class AuditRows(SqlRows, port.AuditRows):
    """Implements `stores.session.AuditRows`."""

    __slots__ = ()

    async def add(self, action: NewAction, outcome: str | None) -> AuditRecord:
        node_id = action.subject if outcome is None else None
        value = msgspec.json.encode(action.value).decode()
        given = (action.verb, action.subject, value, action.who, node_id, outcome, action.node_name)
        (record,) = await self._sql.typed(AuditRecord, "add_action", *given)
        return record

    async def may_add(self) -> bool:
        return bool(await self._sql.value("may_add_action"))

    async def set_outcome(self, action_id: int, outcome: str) -> bool:
        return await self._sql.run("set_outcome", action_id, outcome) == 1

    async def latest(self, limit: int) -> list[AuditRecord]:
        return await self._sql.typed(AuditRecord, "latest_actions", limit)

    async def open(self, node_id: str, limit: int) -> list[AuditRecord]:
        return await self._sql.typed(AuditRecord, "open_actions", node_id, limit)

    async def prune(self, age: int, limit: int) -> None:
        await self._sql.run("prune_audit", age, limit)
