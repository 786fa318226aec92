"""A task as the memory store holds it, and its conversion to a record."""

from __future__ import annotations

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.record import to_datetime
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import NewTask

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
    """The counts of its queue and kind, in which this row is included."""
    state: State
    priority: int
    run_at: int
    enqueued_at: int
    expires_at: int | None
    limit_key: str | None = None
    """The key of its key queue."""
    after_group: int | None = None
    """The group that the task waits for; None after the group has ended."""
    holds: tuple[str, ...] | None = None
    """The limits whose permits the running task holds; None if it needs no permits, or does not run."""
    provider: str | None = None
    """The provider of the server on which the task runs."""
    server: str | None = None
    """The server on which the task runs or last ran."""
    slot: int | None = None
    """The number of its permit on that server."""
    reserved_by: str | None = None
    """The node that has reserved capacity for the task."""
    reserved_until: int = 0
    protected_until: int = 0
    """No preemption before this moment."""
    claim_no: int = 0
    attempts: int = 0
    crashes: int = 0
    node_id: str | None = None
    started_at: int | None = None
    finished_at: int | None = None
    ended_no: int = 0
    """The number of its end; later ends have greater numbers."""
    reason: Reason | None = None
    cancel_requested: bool = False
    overdue: bool = False
    result: bytes | None = None
    progress: Progress | None = None
    errors: tuple[ErrorRecord, ...] = ()
    finished_no: int | None = None
    """The last claim for which an outcome was applied."""

    def release_reservation(self) -> None:
        """Delete the reservation of the task."""
        self.reserved_by = None
        self.reserved_until = 0


def record_of(row: Row) -> TaskRecord:
    """The row as a record for users, which shares no mutable value with it."""
    task = row.task
    return TaskRecord(
        id=row.id,
        kind=task.kind,
        queue=task.queue,
        state=row.state,
        reason=row.reason,
        priority=row.priority,
        run_at=to_datetime(row.run_at),
        attempts=row.attempts,
        max_attempts=task.max_attempts,
        crashes=row.crashes,
        claim_no=row.claim_no,
        node_id=row.node_id,
        server=row.server,
        enqueued_at=to_datetime(row.enqueued_at),
        started_at=None if row.started_at is None else to_datetime(row.started_at),
        finished_at=None if row.finished_at is None else to_datetime(row.finished_at),
        expires_at=None if row.expires_at is None else to_datetime(row.expires_at),
        cancel_requested=row.cancel_requested,
        overdue=row.overdue,
        payload=msgspec.Raw(task.payload),
        overrides=None if task.overrides is None else msgspec.Raw(task.overrides),
        result_json=None if row.result is None else msgspec.Raw(row.result),
        errors=row.errors,
        progress=row.progress,
        key=task.key,
        limit_key=row.limit_key,
        group_id=task.group_id,
        after_group=row.after_group,
        is_command=task.is_command,
        target=task.target,
        requirements=task.requirements,
        reserved_by=row.reserved_by,
        tags=task.tags,
        meta=msgspec.json.decode(task.meta) if task.meta else {},
    )
