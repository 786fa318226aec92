"""A task as the memory store holds it, and its conversion to a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from synergon.model.attempts import AttemptRecord
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import NewTask
from synergon.stores.rows import ChangedTask
from synergon.stores.typed_rows import field_names, read_row

Tally = dict[State, int]
"""How many tasks of one queue and kind are in each state."""


class Row(msgspec.Struct, gc=False):
    """A task. Mutable, and never returned to callers: they get a `TaskRecord` or a `Claim`.

    The garbage collector does not track rows, because there may be a million of them. So a row must never refer to an
    object that refers to rows.
    """

    id: int
    task: NewTask
    """The task as it was inserted or last replaced."""
    tally: Tally
    """The counts for this task's queue and kind, which include the task."""
    state: State
    priority: int
    run_at: int
    enqueued_at: int
    expires_at: int | None
    limit_key: str | None = None
    """The key of the task's key queue."""
    fair_tag: int = 0
    """The turn of the task among those of its kind and priority. 0 if it has none."""
    is_dependent: bool = False
    """Whether the task waits for dependencies."""
    has_dependents: bool = False
    """Whether other tasks may depend on this one."""
    batch_id: int | None = None
    """The leader of the batch in which the task runs, or ran when it ended."""
    holds: tuple[str, ...] | None = None
    """The limits whose permits the running task holds. None if the task needs no permits or does not run."""
    provider: str | None = None
    """The provider of the server on which the task runs."""
    server: str | None = None
    """The server on which the task runs or last ran."""
    slot: int | None = None
    """The number of the permit that the task holds on that server."""
    reserved_by: str | None = None
    """The node that has reserved capacity for the task."""
    reserved_until: int = 0
    protected_until: int = 0
    """The task is not preempted before this moment."""
    claim_no: int = 0
    attempts: int = 0
    crashes: int = 0
    owner_deaths: int = 0
    server_failures: int = 0
    node_id: str | None = None
    started_at: int | None = None
    finished_at: int | None = None
    ended_no: int = 0
    """The number that the task got when it ended. A task that ended later has a greater number."""
    reason: Reason | None = None
    cancel_requested: bool = False
    overdue: bool = False
    extended_by: int | None = None
    """The microseconds by which the timeout of the current attempt was extended."""
    result: bytes | None = None
    progress: Progress | None = None
    errors: tuple[ErrorRecord, ...] = ()
    ended_attempts: tuple[AttemptRecord, ...] = ()
    """The ended attempts, except the successful one."""
    finished_no: int | None = None
    """The last claim for which an outcome was applied."""

    def release_reservation(self) -> None:
        """Delete the reservation of the task."""
        self.reserved_by = None
        self.reserved_until = 0


def values_of(columns: Sequence[str]) -> Callable[[Row], tuple[Any, ...]]:
    """A function that reads these columns from a row. Values that can change are fields of the row, all others fields
    of its `task`."""
    own = {field.name for field in msgspec.structs.fields(Row)}
    return attrgetter(*(column if column in own else f"task.{column}" for column in columns))


_RECORD_COLUMNS: Final = field_names(TaskRecord)
_record_values: Final = values_of(_RECORD_COLUMNS)


def record_of(row: Row) -> TaskRecord:
    """The record of a row, as users get it. It shares no mutable value with the row."""
    return read_row(TaskRecord, _RECORD_COLUMNS, _record_values(row))


def changed_task(row: Row) -> ChangedTask:
    """The record that primitives return for a row that they have changed."""
    task = row.task
    return ChangedTask(row.id, task.kind, row.state, row.limit_key, task.group_id, task.fair_key)
