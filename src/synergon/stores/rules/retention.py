"""The retention of a store: what workers declare and operators set. It holds for all nodes."""

from __future__ import annotations

import msgspec

from synergon.model.operator_actions import NewAction
from synergon.model.tasks import Cutoffs, StoredRetention
from synergon.stores.rules import action_texts
from synergon.stores.session import Session


async def declare(session: Session, cutoffs: Cutoffs, name: str, *, is_default: bool = False) -> StoredRetention | None:
    """Store the retention that a worker declares. A declaration that equals the last one changes nothing, so a value
    that an operator has set since then remains in force. The default of a worker whose code and environment give no
    retention is stored only if there is none. The audit records a change, if the user of the database may write to it.
    Returns the retention that was replaced; None if there was none, or it does not change."""
    declared = msgspec.json.encode(cutoffs).decode()
    before = await session.retention.locked()
    if before is not None and (is_default or before.declared == declared):
        return None
    await session.retention.write(_stored(cutoffs, declared, name))
    if before is None or ages(before) == ages(cutoffs):
        return None
    if not await session.audit.may_add():
        return before
    action = NewAction(verb="set_retention", subject="history", value=list(ages(cutoffs)), who=f"worker {name}")
    await session.audit.add(action, action_texts.declaration_outcome(before, cutoffs))
    return before


async def set_retention(session: Session, cutoffs: Cutoffs) -> None:
    """Set the retention for an operator. It holds until a worker declares a retention that differs from the last
    declaration."""
    before = await session.retention.locked()
    last = ("", "") if before is None else (before.declared, before.declared_by)
    await session.retention.write(_stored(cutoffs, *last))


async def retention(session: Session) -> StoredRetention | None:
    """The retention. None if no worker has declared and no operator has set one."""
    return await session.retention.read()


def ages(found: Cutoffs | StoredRetention) -> tuple[int | None, ...]:
    """The ages after which succeeded, failed and cancelled tasks, and statistics, are deleted."""
    return found.succeeded, found.failed, found.cancelled, found.statistics


def _stored(cutoffs: Cutoffs, declared: str, name: str) -> StoredRetention:
    return StoredRetention(
        succeeded=cutoffs.succeeded,
        failed=cutoffs.failed,
        cancelled=cutoffs.cancelled,
        statistics=cutoffs.statistics,
        declared=declared,
        declared_by=name,
    )
