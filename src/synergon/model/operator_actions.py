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
    "add_server",
    "remove_server",
    "close_server",
    "set_retention",
    "cancel",
    "pause_schedule",
    "resume_schedule",
    "run_schedule",
    "update_schedule",
    "delete_schedule",
    "retry",
    "delete",
    "reschedule",
    "set_priority",
    "extend_timeout",
    "update_meta",
    "cancel_group",
    "retry_flow",
    "prune",
    "enqueue",
    "cordon",
    "uncordon",
    "stop",
    "drain",
    "restart",
]
"""The operator actions. The named node carries out the last five, an engine carries out bulk operations and `prune`,
and the store carries out all others at once. After a cordon, drain or restart is recorded, the store rejects the claims
of the node, before the node knows of it."""


RESTART_EXIT_CODE: Final = 86
"""The exit code of a worker after the action `restart`. Its supervisor then starts it again."""

REJECTED: Final = "rejected: "
"""The beginning of the outcome of a rejected action."""


class NewAction(Record, frozen=True, kw_only=True):
    """An operator action to be carried out and recorded."""

    verb: Verb
    subject: str
    """The queue, limit, provider, schedule, kind, task id, group id, node id or filter of tasks that the action
    concerns."""
    value: Any = None
    """A plain JSON value: the new limit, the servers as [[address, capacity], ...], a new server as [address,
    capacity], the address of a server to remove or close, the retention as [succeeded, failed, cancelled, statistics]
    in microseconds, the ages by which an engine prunes as {"failed": "30 d"}, why a task is cancelled, {"delay": ...}
    or {"run_at": ...} in microseconds, the new priority, the extension of a timeout in microseconds, new values of
    metadata, or the changed fields of a schedule."""
    who: str
    node_name: str | None = None
    """The name and host of the node that the action concerns."""
    rejection: str | None = None
    """Why the engine has rejected the action, which is then only recorded. None if it is to be carried out."""


class AuditRecord(Record, frozen=True, kw_only=True):
    """A recorded operator action with its outcome."""

    id: int
    verb: Verb
    subject: str
    value: Any = None
    who: str
    node_name: str | None = None
    """The name and host of the node that the action concerns, also after the node is gone."""
    requested_at: datetime
    done_at: datetime | None = None
    outcome: str | None = None
    """None while the named node, or the engine of a bulk operation, has not carried it out yet."""

    @property
    def why(self) -> str | None:
        """The reason that the operator gave for a cancel or a bulk operation."""
        if self.verb in ("cancel", "cancel_group"):
            found = self.value
        else:
            found = self.value.get("why") if self.verb.endswith("_all") and isinstance(self.value, dict) else None
        return found if isinstance(found, str) else None

    @property
    def is_rejected(self) -> bool:
        """Whether the action was rejected and changed nothing. `outcome` says why."""
        return self.outcome is not None and self.outcome.startswith(REJECTED)
