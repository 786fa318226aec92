"""Operator actions: what people tell the engine to do, and the audit of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from synergon.model.record import Record

Verb = Literal[
    "pause", "resume", "set_limit", "set_servers", "cancel", "cordon", "uncordon", "stop", "drain", "restart"
]
"""What can be ordered. The last five are carried out by the node that they name, the others by the store at once; but
no store lets a node claim from the moment on in which a cordon, drain or restart was written down."""


RESTART_EXIT_CODE: Final = 86
"""The exit code of a worker that was told to restart; its supervisor starts it again."""

REJECTED: Final = "rejected: "
"""How the outcome of an order begins that made no sense."""


class NewAction(Record, frozen=True, kw_only=True):
    """What somebody orders."""

    verb: Verb
    subject: str
    """The queue, limit, provider, task id or node id that it is about."""
    value: Any = None
    """A plain JSON value: the new limit, the servers as [[address, capacity], ...], why a task is cancelled."""
    who: str
    rejection: str | None = None
    """Why it is refused: whoever gives it knows already that nobody would obey. It is only written down."""


class AuditRecord(Record, frozen=True, kw_only=True):
    """An order, when it was given, and what came of it."""

    id: int
    verb: Verb
    subject: str
    value: Any = None
    who: str
    requested_at: datetime
    done_at: datetime | None = None
    outcome: str | None = None
    """None: the node that it names has not carried it out yet."""

    @property
    def is_rejected(self) -> bool:
        """It made no sense and nothing was done; `outcome` says why."""
        return self.outcome is not None and self.outcome.startswith(REJECTED)
