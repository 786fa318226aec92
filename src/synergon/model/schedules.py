"""Records of schedules: what a schedule is made of, what it did, and what firing returns."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, Literal

from synergon.model.lifecycle import State
from synergon.model.record import Record
from synergon.model.tasks import NewTask

Missed = Literal["one", "skip", "all"]
"""What happens to occurrences that no node fired in time."""
Overlap = Literal["skip", "queue"]
"""What happens to an occurrence while the previous task of the schedule has not ended."""
ScheduleState = Literal["active", "paused", "ended", "undeclared"]
"""`undeclared`: the schedule was declared in code, but no live node declares it, so it does not fire."""


MOST_PAST: Final = 24
"""How many past occurrences of a schedule are kept."""


class PastOccurrence(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What became of an occurrence. Consecutive occurrences that created no task for one reason are one entry."""

    at: datetime
    """The nominal moment of the occurrence, or of the first of several."""
    outcome: Literal["fired", "missed", "skipped"]
    """`fired`: it created a task."""
    task_id: int | None = None
    count: int = 1
    reason: str | None = None


class NewSchedule(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The definition of a schedule, as it is stored. Moments and durations are in microseconds."""

    name: str
    task: NewTask
    """The task that each occurrence inserts."""
    cron: str | None = None
    """A cron expression of five fields. None if `every` is given."""
    every: int | None = None
    tz: str = "UTC"
    missed: Missed = "one"
    overlap: Overlap = "skip"
    jitter: int = 0
    """Each occurrence is due up to this much later than its nominal moment."""
    starts_at: int | None = None
    """No occurrence is earlier than this moment."""
    ends_at: int | None = None
    """No occurrence is later than this moment."""


class ScheduleRecord(Record, frozen=True, kw_only=True):
    """A schedule as users see it."""

    name: str
    state: ScheduleState
    kind: str
    queue: str
    arguments: dict[str, Any] = {}
    cron: str | None = None
    every: timedelta | None = None
    tz: str = "UTC"
    missed: Missed = "one"
    overlap: Overlap = "skip"
    jitter: timedelta = timedelta(0)
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    is_declared: bool = False
    """Whether the schedule is declared in code. Otherwise it was made at run time."""
    next_at: datetime | None = None
    """The nominal moment of the next occurrence; None if there is none."""
    due_at: datetime | None = None
    """When that occurrence is due: `next_at` with its jitter."""
    paused_at: datetime | None = None
    last_task_id: int | None = None
    """The last task that the schedule created."""
    last_at: datetime | None = None
    """The nominal moment of the last occurrence that created a task."""
    times_fired: int = 0
    """How many occurrences created a task."""
    times_missed: int = 0
    """How many occurrences created no task, because no node fired them in time."""
    times_skipped: int = 0
    """How many occurrences created no task for another reason."""
    skips_in_row: int = 0
    """How many occurrences were skipped since the last task."""
    skipped_since: datetime | None = None
    """The nominal moment of the first of these skipped occurrences."""
    reason: str | None = None
    """Why the last missed or skipped occurrence created no task."""
    reason_at: datetime | None = None
    past: tuple[PastOccurrence, ...] = ()
    """The latest occurrences, the oldest first, and tasks that were created by `run_now`."""
    created_at: datetime
    unreadable: tuple[str, ...] = ()
    """The columns of its row that cannot be read: such a schedule does not fire."""


class FiredTask(Record, frozen=True, kw_only=True):
    """A task that a schedule has created."""

    id: int
    kind: str
    queue: str
    state: State
    schedule: str
    expires: bool = False

    @property
    def needs_claim(self) -> bool:
        """Whether a task may be claimable now: this one, or the leader of a batch that it has completed."""
        return self.state is not State.SCHEDULED

    @property
    def needs_alarm(self) -> bool:
        """Whether an alarm must be set: the task is due later or expires, or its batch is due later."""
        return self.expires or self.state is not State.READY


class Fired(Record, frozen=True, kw_only=True):
    """The result of `Store.fire`."""

    tasks: tuple[FiredTask, ...] = ()
    broken: dict[str, tuple[str, str]] = {}
    """Schedules that this node cannot read, with the column and the error. They are tried again a minute later."""
    next_in: int | None = None
    """Microseconds until the next schedule is due; None if there is none."""


class ScheduleRun(Record, frozen=True, kw_only=True):
    """The result of `Store.run_schedule`."""

    task: FiredTask | None
    reason: str | None = None
    """Why no task was created. None if a task was created."""


class Occurrence(Record, frozen=True, kw_only=True):
    """One moment at which a schedule will fire."""

    name: str
    at: datetime
