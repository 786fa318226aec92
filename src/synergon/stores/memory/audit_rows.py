"""The audit of operator actions in the memory store: implements `stores.session.AuditRows` over the store's tables."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.record import from_datetime, to_datetime
from synergon.stores import session as port

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class AuditRows(port.AuditRows):
    """Implements `stores.session.AuditRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._tables: Final = session.tables

    async def add(self, action: NewAction, outcome: str | None) -> AuditRecord:
        now = to_datetime(self._session.now)
        self._tables.last_action_id += 1
        record = self._tables.audit[self._tables.last_action_id] = AuditRecord(
            id=self._tables.last_action_id,
            verb=action.verb,
            subject=action.subject,
            value=action.value,
            who=action.who,
            node_name=action.node_name,
            requested_at=now,
            done_at=None if outcome is None else now,
            outcome=outcome,
        )
        return record

    async def may_add(self) -> bool:
        return True

    async def set_outcome(self, action_id: int, outcome: str) -> bool:
        record = self._tables.audit.get(action_id)
        if record is None or record.outcome is not None:
            return False
        self._tables.audit[action_id] = replace(record, outcome=outcome, done_at=to_datetime(self._session.now))
        return True

    async def latest(self, limit: int) -> list[AuditRecord]:
        return list(islice(reversed(self._tables.audit.values()), limit))

    async def open(self, node_id: str, limit: int) -> list[AuditRecord]:
        records = self._tables.audit.values()
        return list(islice((one for one in records if one.outcome is None and one.subject == node_id), limit))

    async def prune(self, age: int, limit: int) -> None:
        before = self._session.now - age
        for record in list(islice(self._tables.audit.values(), limit)):
            if from_datetime(record.requested_at) < before:
                del self._tables.audit[record.id]
