"""Operator actions and their records in the audit."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from synergon.model.record import Record

Verb = Literal[
    "pause",
    "resume",
    "set_limit",
    "set_servers",
    "cancel",
    "pause_schedule",
    "resume_schedule",
    "run_schedule",
    "delete_schedule",
    "cordon",
    "uncordon",
    "stop",
    "drain",
    "restart",
]
"""The operator actions. The named node carries out the last five; the store carries out all others at once. From the
record of a cordon, drain or restart on, the store rejects the claims of the node, even before the node reads the
action."""


RESTART_EXIT_CODE: Final = 86
"""The exit code of a worker after the action `restart`. Its supervisor then starts it again."""

REJECTED: Final = "rejected: "
"""The beginning of the outcome of a rejected action."""


class NewAction(Record, frozen=True, kw_only=True):
    """An operator action to be carried out and recorded."""

    verb: Verb
    subject: str
    """The queue, limit, provider, schedule, task id or node id that the action concerns."""
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
    """What the action did, or why it was rejected. None until the named node has carried it out."""

    @property
    def is_rejected(self) -> bool:
        """Whether the action was rejected and changed nothing. `outcome` says why."""
        return self.outcome is not None and self.outcome.startswith(REJECTED)
