"""The audit of operator actions in the PostgreSQL store: implements `stores.session.AuditRows` with the statements of
`sql/operator_actions.sql`."""

from __future__ import annotations

from typing import Final

import msgspec

from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.stores.postgres.transaction import Transaction


class AuditRows:
    """Implements `stores.session.AuditRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def add(self, action: NewAction, outcome: str | None) -> AuditRecord:
        """Insert an operator action. An outcome of None means that the named node will report it."""
        node_id = action.subject if outcome is None else None
        value = msgspec.json.encode(action.value).decode()
        (record,) = await self._transaction.typed(
            AuditRecord, "add_action", action.verb, action.subject, value, action.who, node_id, outcome
        )
        return record

    async def set_outcome(self, action_id: int, outcome: str) -> bool:
        """Write the outcome that a node reports for an action. False if the action has an outcome or does not exist."""
        return await self._transaction.run("set_outcome", action_id, outcome) == 1

    async def latest(self, limit: int) -> list[AuditRecord]:
        """The latest actions, newest first."""
        return await self._transaction.typed(AuditRecord, "latest_actions", limit)

    async def open(self, node_id: str, limit: int) -> list[AuditRecord]:
        """The actions whose outcome this node has yet to report, oldest first."""
        return await self._transaction.typed(AuditRecord, "open_actions", node_id, limit)

    async def prune(self, age: int, limit: int) -> None:
        """Of the oldest `limit` actions, delete those older than `age` microseconds."""
        await self._transaction.run("prune_audit", age, limit)
