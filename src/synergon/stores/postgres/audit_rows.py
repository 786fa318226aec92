"""The audit of operator actions in the PostgreSQL store: implements `stores.session.AuditRows` with the statements of
`sql/operator_actions.sql`."""

from __future__ import annotations

from typing import Final

import msgspec

from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.stores import session as port
from synergon.stores.postgres.transaction import Transaction


class AuditRows(port.AuditRows):
    """Implements `stores.session.AuditRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def add(self, action: NewAction, outcome: str | None) -> AuditRecord:
        node_id = action.subject if outcome is None else None
        value = msgspec.json.encode(action.value).decode()
        (record,) = await self._transaction.typed(
            AuditRecord,
            "add_action",
            action.verb,
            action.subject,
            value,
            action.who,
            node_id,
            outcome,
            action.node_name,
        )
        return record

    async def may_add(self) -> bool:
        return bool(await self._transaction.value("may_add_action"))

    async def set_outcome(self, action_id: int, outcome: str) -> bool:
        return await self._transaction.run("set_outcome", action_id, outcome) == 1

    async def latest(self, limit: int) -> list[AuditRecord]:
        return await self._transaction.typed(AuditRecord, "latest_actions", limit)

    async def open(self, node_id: str, limit: int) -> list[AuditRecord]:
        return await self._transaction.typed(AuditRecord, "open_actions", node_id, limit)

    async def prune(self, age: int, limit: int) -> None:
        await self._transaction.run("prune_audit", age, limit)
