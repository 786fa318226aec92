"""Operator actions in the PostgreSQL store."""

from __future__ import annotations

from typing import Final

import msgspec

from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.stores.postgres.transaction import Transaction


class AuditRows:
    """`stores.session.AuditRows`."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def add(self, action: NewAction, outcome: str | None) -> AuditRecord:
        """Insert an action."""
        node_id = action.subject if outcome is None else None
        value = msgspec.json.encode(action.value).decode()
        (record,) = await self._transaction.typed(
            AuditRecord, "add_action", action.verb, action.subject, value, action.who, node_id, outcome
        )
        return record

    async def set_outcome(self, action_id: int, outcome: str) -> bool:
        """Write what the node reports."""
        return await self._transaction.run("set_outcome", action_id, outcome) == 1

    async def latest(self, limit: int) -> list[AuditRecord]:
        """The latest actions."""
        return await self._transaction.typed(AuditRecord, "latest_actions", limit)

    async def open(self, node_id: str, limit: int) -> list[AuditRecord]:
        """What a node has yet to report."""
        return await self._transaction.typed(AuditRecord, "open_actions", node_id, limit)

    async def prune(self, age: int, limit: int) -> None:
        """Delete old actions."""
        await self._transaction.run("prune_audit", age, limit)
