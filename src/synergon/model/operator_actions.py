"""Operator actions and their records in the audit."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from synergon.model.record import Record

BulkVerb = Literal["cancel_all", "retry_all", "delete_all", "reschedule_all", "set_priority_all"]
"""Operations on all tasks that match a filter. The engine that records them carries them out."""

Verb = Literal[
    BulkVerb,
    "pause",
    "resume",
    "set_limit",
    "set_servers",
    "cancel",
    "pause_schedule",
    "resume_schedule",
    "run_schedule",
    "delete_schedule",
    "retry",
    "delete",
    "cordon",
    "uncordon",
    "stop",
    "drain",
    "restart",
]
"""The operator actions. The named node carries out the last five, the store all but bulk operations at once.
After a cordon, drain or restart is recorded, the store rejects the claims of the node, before the node knows of it."""


RESTART_EXIT_CODE: Final = 86
"""The exit code of a worker after the action `restart`. Its supervisor then starts it again."""

REJECTED: Final = "rejected: "
"""The beginning of the outcome of a rejected action."""


class NewAction(Record, frozen=True, kw_only=True):
    """An operator action to be carried out and recorded."""

    verb: Verb
    subject: str
    """The queue, limit, provider, schedule, task id, node id or filter of tasks that the action concerns."""
    value: Any = None
    """A plain JSON value: the new limit, the servers as [[address, capacity], ...], or why a task is cancelled."""
    who: str
    rejection: str | None = None
    """Why the engine has rejected the action, which is then only recorded. None if it is to be carried out."""


class AuditRecord(Record, frozen=True, kw_only=True):
    """A recorded operator action with its outcome."""

    id: int
    verb: Verb
    subject: str
    value: Any = None
    who: str
    requested_at: datetime
    done_at: datetime | None = None
    outcome: str | None = None
    """None while the named node, or the engine of a bulk operation, has not carried it out yet."""

    @property
    def is_rejected(self) -> bool:
        """Whether the action was rejected and changed nothing. `outcome` says why."""
        return self.outcome is not None and self.outcome.startswith(REJECTED)
