"""The audit of operator actions in the SQLite store: implements `stores.session.AuditRows` with the statements of
`sql/operator_actions.sql`."""

from __future__ import annotations

from typing import Final

import msgspec

from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.record import to_datetime
from synergon.stores import session as port
from synergon.stores.sqlite.transaction import Transaction


class AuditRows(port.AuditRows):
    """Implements `stores.session.AuditRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    async def add(self, action: NewAction, outcome: str | None) -> AuditRecord:
        action_id, now = self._transaction.next_id(), self._transaction.now
        self._transaction.run(
            "add_action",
            action_id,
            action.verb,
            action.subject,
            msgspec.json.encode(action.value),
            action.who,
            action.node_name,
            action.subject if outcome is None else None,
            now,
            None if outcome is None else now,
            outcome,
        )
        return AuditRecord(
            id=action_id,
            verb=action.verb,
            subject=action.subject,
            value=action.value,
            who=action.who,
            node_name=action.node_name,
            requested_at=to_datetime(now),
            done_at=None if outcome is None else to_datetime(now),
            outcome=outcome,
        )

    async def may_add(self) -> bool:
        return True

    async def set_outcome(self, action_id: int, outcome: str) -> bool:
        return self._transaction.run("set_outcome", self._transaction.now, outcome, action_id) == 1

    async def latest(self, limit: int) -> list[AuditRecord]:
        return self._transaction.typed(AuditRecord, "latest_actions", limit)

    async def open(self, node_id: str, limit: int) -> list[AuditRecord]:
        return self._transaction.typed(AuditRecord, "open_actions", node_id, limit)

    async def prune(self, age: int, limit: int) -> None:
        self._transaction.run("prune_audit", limit, self._transaction.now - age)
