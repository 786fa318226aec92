"""One task as the memory store keeps it, and as the outside sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import NewTask
from synergon.stores.typed_rows import field_names, row_reader

Tally = dict[State, int]
"""How many tasks of one queue and kind are in each state."""


class Row(msgspec.Struct, gc=False):
    """A task. Mutable, and never handed out: callers get a `TaskRecord` or a `Claim`.

    The garbage collector does not look into rows (there may be a million of them), so a row must never point at
    anything that points back at rows.
    """

    id: int
    task: NewTask
    """What was asked for; a replacement puts another one here."""
    tally: Tally
    """The numbers in which this row is counted."""
    state: State
    priority: int
    run_at: int
    enqueued_at: int
    expires_at: int | None
    limit_key: str | None = None
    """With its kind, the key queue that it is in."""
    after_group: int | None = None
    """The group that it waits for; None as soon as that has ended."""
    holds: tuple[str, ...] | None = None
    """The limits that it holds while it runs; None: it runs without limits and without a server, or not at all."""
    provider: str | None = None
    """The provider of the server that it runs on."""
    server: str | None = None
    """The server that it runs on, or was last given."""
    slot: int | None = None
    """Its place on that server."""
    reserved_by: str | None = None
    """The node that keeps room for it."""
    reserved_until: int = 0
    protected_until: int = 0
    """It may not be asked to yield before."""
    claim_no: int = 0
    attempts: int = 0
    crashes: int = 0
    node_id: str | None = None
    started_at: int | None = None
    finished_at: int | None = None
    ended_no: int = 0
    """A number that grows with every end."""
    reason: Reason | None = None
    cancel_requested: bool = False
    overdue: bool = False
    result: bytes | None = None
    progress: Progress | None = None
    errors: tuple[ErrorRecord, ...] = ()
    finished_no: int | None = None
    """The last claim that its owner finished."""

    def release_reservation(self) -> None:
        """Nobody keeps room for it."""
        self.reserved_by = None
        self.reserved_until = 0


def values_of(columns: Sequence[str]) -> Callable[[Row], tuple[Any, ...]]:
    """What reads these columns from a row: what may have changed stands in the row itself, the rest in its task."""
    own = {field.name for field in msgspec.structs.fields(Row)}
    return attrgetter(*(column if column in own else f"task.{column}" for column in columns))


_record_values: Final = values_of(field_names(TaskRecord))
_read_record: Final[Callable[[Sequence[Any]], TaskRecord]] = row_reader(TaskRecord, field_names(TaskRecord))


def record_of(row: Row) -> TaskRecord:
    """The row as users see it; shares nothing with it that could change."""
    return _read_record(_record_values(row))
