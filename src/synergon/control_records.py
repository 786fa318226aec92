"""Plain records about groups of tasks and about orders (what people tell the engine to do)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from synergon.lifecycle import FINAL, State
from synergon.records import Insertion, NewTask, Record

Verb = Literal[
    "pause", "resume", "set_limit", "set_servers", "cancel", "cordon", "uncordon", "stop", "drain", "restart"
]
"""What can be ordered. The last five are carried out by the node that they name, the others by the store at once; but
no store lets a node claim from the moment on in which a cordon, drain or restart was written down."""


REFUSED: Final = "refused: "
"""How the outcome of an order begins that made no sense."""


class NewGroup(Record, frozen=True, kw_only=True):
    """Tasks that belong together, and perhaps one that runs when all of them have ended."""

    name: str
    tasks: tuple[NewTask, ...]
    then: NewTask | None = None


class OpenedGroup(Record, frozen=True, kw_only=True):
    """What became of a NewGroup. A live task that held the key of a new one is not a member."""

    id: int
    insertions: tuple[Insertion, ...]
    then: Insertion | None = None


class GroupRecord(Record, frozen=True, kw_only=True):
    """A group as the store has it."""

    id: int
    name: str
    created_at: datetime
    ended_at: datetime | None
    """When the last of its tasks had ended for the first time."""
    counts: dict[State, int]
    then_id: int | None = None

    @property
    def open(self) -> int:
        """How many of its tasks have not ended."""
        return sum(count for state, count in self.counts.items() if state not in FINAL)


class NewOrder(Record, frozen=True, kw_only=True):
    """What somebody orders."""

    verb: Verb
    subject: str
    """The queue, limit, provider, task id or node id that it is about."""
    value: Any = None
    """A plain JSON value: the new limit, the servers as [[address, capacity], ...], why a task is cancelled."""
    who: str
    refusal: str | None = None
    """Why it is refused: whoever gives it knows already that nobody would obey. It is only written down."""


class OrderRecord(Record, frozen=True, kw_only=True):
    """An order, when it was given, and what came of it."""

    id: int
    verb: Verb
    subject: str
    value: Any = None
    who: str
    ordered_at: datetime
    done_at: datetime | None = None
    outcome: str | None = None
    """None: the node that it names has not carried it out yet."""

    @property
    def is_refused(self) -> bool:
        """It made no sense and nothing was done; `outcome` says why."""
        return self.outcome is not None and self.outcome.startswith(REFUSED)
