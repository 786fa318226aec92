"""Groups of tasks."""

from __future__ import annotations

from datetime import datetime

from synergon.model.lifecycle import FINAL, State
from synergon.model.record import Record
from synergon.model.tasks import Insertion, NewTask


class NewGroup(Record, frozen=True, kw_only=True):
    """The tasks of a new group, and perhaps a task that runs when all of them have ended; or the steps of a new
    flow."""

    name: str
    tasks: tuple[NewTask, ...]
    then: NewTask | None = None
    is_flow: bool = False


class OpenedGroup(Record, frozen=True, kw_only=True):
    """A group that was just stored. If a live task held the key of a new task, that live task is not a member."""

    id: int
    insertions: tuple[Insertion, ...]
    then: Insertion | None = None

    @property
    def all_insertions(self) -> tuple[Insertion, ...]:
        """The insertions of the members, followed by that of `then` if there is one."""
        return self.insertions if self.then is None else (*self.insertions, self.then)


class GroupRecord(Record, frozen=True, kw_only=True):
    """A stored group."""

    id: int
    name: str
    created_at: datetime
    ended_at: datetime | None
    """When all tasks of the group had ended for the first time. None before that."""
    counts: dict[State, int]
    then_id: int | None = None
    """The task that follows the group, or the last step of the flow."""
    is_flow: bool = False
    state: State | None = None
    """What its tasks have come to: `failed` if one failed, else `cancelled` if one was cancelled, else `succeeded`.
    None until it has ended."""

    @property
    def open(self) -> int:
        """How many tasks of the group are live."""
        return sum(count for state, count in self.counts.items() if state not in FINAL)
