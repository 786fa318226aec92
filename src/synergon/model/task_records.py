"""Records of tasks and queues for users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.record import Record, to_datetime
from synergon.model.requirements import KIND_DEFAULT, is_suspect_text


class TaskRecord(Record, frozen=True, kw_only=True):
    """A stored task."""

    id: int
    kind: str
    queue: str
    state: State
    reason: Reason | None = None
    priority: int = 0
    run_at: datetime
    attempts: int = 0
    max_attempts: int | None = None
    crashes: int = 0
    owner_deaths: int = 0
    """How many nodes died while they ran the task, since an attempt of it has ended."""
    claim_no: int = 0
    node_id: str | None = None
    server: str | None = None
    enqueued_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    cancel_requested: bool = False
    overdue: bool = False
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    """The arguments, as JSON."""
    overrides: msgspec.Raw | None = None
    result_json: msgspec.Raw | None = msgspec.field(default=None, name="result")
    """What the task function returned, as JSON. Decoded by `result`."""
    errors: tuple[ErrorRecord, ...] = ()
    progress: Progress | None = None
    key: str | None = None
    limit_key: str | None = None
    group_id: int | None = None
    after_group: int | None = None
    """The group that the task waits for. None after the group has ended."""
    is_command: bool = False
    target: str | None = None
    requirements: str = KIND_DEFAULT
    """The requirements, as JSON. Empty means those of the task's kind."""
    reserved_by: str | None = None
    """The node that has reserved capacity for the task."""
    title: str | None = None
    """The text that the option `title` makes from the arguments."""
    tags: tuple[str, ...] = ()
    meta: dict[str, Any] = {}
    unreadable: tuple[str, ...] = ()
    """The columns whose stored values this release cannot read. Their fields have replacements, such as None."""

    @property
    def is_suspect(self) -> bool:
        """Whether the process of its last attempt died, so that the next one runs isolated."""
        return is_suspect_text(self.requirements)

    @property
    def result(self) -> Any:
        """The result as a plain JSON value. `handle.result()` returns it in the type of the function's annotation."""
        return None if self.result_json is None else msgspec.json.decode(self.result_json)

    @property
    def error(self) -> ErrorRecord | None:
        """The last error. None if no attempt has failed."""
        return self.errors[-1] if self.errors else None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments as plain JSON values."""
        decoded: dict[str, Any] = msgspec.json.decode(self.payload)
        return decoded

    @property
    def schedule(self) -> str | None:
        """The schedule that has created the task."""
        found = self._options.get("schedule")
        return found if isinstance(found, str) else None

    @property
    def scheduled_for(self) -> datetime | None:
        """The nominal moment of the occurrence for which the schedule created the task."""
        moment = self._options.get("scheduled_for")
        return to_datetime(moment) if isinstance(moment, int) else None

    @property
    def _options(self) -> dict[str, Any]:
        try:
            return {} if self.overrides is None else msgspec.json.decode(self.overrides, type=dict[str, Any])
        except msgspec.MsgspecError:  # one bad row harms only itself
            return {}


class BulkFilters(TypedDict, total=False):
    """Which tasks an operation on many of them concerns."""

    state: State | str | Iterable[State | str] | None
    kind: str | None
    queue: str | None
    tag: str | None
    key: str | None
    title: str | None


class TaskFilters(BulkFilters, total=False):
    """What `engine.tasks(...)` takes."""

    before: int | None
    limit: int


class TaskQuery(Record, frozen=True, kw_only=True):
    """A filter over all tasks, newest first. With `before`, only tasks with lower ids."""

    states: frozenset[State] | None = None
    kind: str | None = None
    queue: str | None = None
    tag: str | None = None
    key: str | None = None
    title: str | None = None
    """Only tasks whose title contains this text; case is ignored."""
    before: int | None = None
    limit: int = 100


class TaskPage(Record, frozen=True, kw_only=True):
    """One page of a listing."""

    tasks: tuple[TaskRecord, ...]
    next: int | None = None
    """Pass this as `before` to get the next page. None on the last page."""

    def __iter__(self) -> Iterator[TaskRecord]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> TaskRecord:
        return self.tasks[index]


class QueueRecord(Record, frozen=True, kw_only=True):
    """A queue, and the number of its tasks in each state."""

    name: str
    paused_at: datetime | None = None
    counts: dict[State, int] = {}

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self.paused_at is not None
