"""Records of tasks and queues for users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, TypeVar

import msgspec

from synergon.model.attempts import MOST_ATTEMPTS_STORED, AttemptOutcome, AttemptRecord
from synergon.model.lifecycle import FINAL, Reason, State, clears_suspicion
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
    """How many nodes have died while they ran the task, since the last attempt that ended."""
    server_failures: int = 0
    """How many attempts of the task have blamed their server (`ServerFailed`). Such attempts are not counted in
    `attempts`."""
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
    ended_attempts: tuple[AttemptRecord, ...] = ()
    """The latest attempts that did not end the task with success, oldest first. `attempts_made` also has the success
    and the running attempt."""
    progress: Progress | None = None
    key: str | None = None
    limit_key: str | None = None
    group_id: int | None = None
    parent_id: int | None = None
    """The task that has created this one: by `ctx.enqueue`, or as a map."""
    is_dependent: bool = False
    """Whether the task waits for tasks that it depends on."""
    has_dependencies: bool = False
    """Whether it depends on other tasks, ended or not."""
    batch_id: int | None = None
    """The batch in which the task runs, or ran when it ended, by the id of its leader. None if it ran alone."""
    is_command: bool = False
    target: str | None = None
    requirements: str = KIND_DEFAULT
    """The requirements, as JSON. Empty means those of the task's kind."""
    fair_key: str | None = None
    """The tenant of the task, if the tenants of its kind take turns."""
    fair_tag: int = 0
    """The turn of the task among those of its kind and priority: the smallest is next. 0 if it has none: before it
    first becomes ready, and when it has ended."""
    reserved_by: str | None = None
    """The node that has reserved capacity for the task."""
    title: str | None = None
    """The text that the option `title` makes from the arguments."""
    units: int = 1
    """How many units each start of the task charges to the rates of its limits."""
    tags: tuple[str, ...] = ()
    meta: dict[str, Any] = {}
    node_name: str | None = None
    """The name of the node `node_id`, also when it is gone. Only `engine.get` and `handle.status` read it and `host`,
    so lists have none."""
    host: str | None = None
    unreadable: tuple[str, ...] = ()
    """The columns whose stored values this release cannot read. Their fields have replacements, such as None."""

    def as_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, with `arguments` and `attempts_made`, and without columns that only synergon
        reads."""
        values = super().as_dict()
        arguments = values.pop("payload")
        del values["overrides"], values["requirements"], values["ended_attempts"]
        scheduled_for = None if self.scheduled_for is None else self.scheduled_for.isoformat()
        return values | {
            "arguments": arguments,
            "attempts_made": [attempt.as_dict() for attempt in self.attempts_made],
            "schedule": self.schedule,
            "scheduled_for": scheduled_for,
            "is_suspect": self.is_suspect,
        }

    @property
    def is_suspect(self) -> bool:
        """Whether the process of its last attempt died, so that the next one runs isolated."""
        return is_suspect_text(self.requirements) and not clears_suspicion(self.state, self.reason)

    @property
    def result(self) -> Any:
        """The result as a plain JSON value. `handle.result()` returns it in the type of the function's annotation."""
        return None if self.result_json is None else msgspec.json.decode(self.result_json)

    @property
    def error(self) -> ErrorRecord | None:
        """The last error. None if no attempt has failed."""
        return self.errors[-1] if self.errors else None

    @property
    def attempts_made(self) -> tuple[AttemptRecord, ...]:
        """The latest attempts, oldest first, including the running one: how, when and where each ended."""
        if self.started_at is None or self.state not in (State.RUNNING, State.SUCCEEDED):
            return self.ended_attempts
        last = AttemptRecord(
            claim_no=self.claim_no,
            attempt=self.attempts,
            outcome=AttemptOutcome.SUCCEEDED if self.state is State.SUCCEEDED else None,
            started_at=self.started_at,
            ended_at=self.finished_at,
            node_id=self.node_id,
            node_name=self.node_name,
            host=self.host,
            server=self.server,
        )
        return (*self.ended_attempts, last)[-MOST_ATTEMPTS_STORED:]

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


Sort = Literal["id", "due", "end"]
"""How a listing is sorted: by id, scheduled tasks by the time at which they are due, or final ones by their end."""

SEARCHED_TASKS: Final = 10_000
"""How many matching tasks one page searches for a text."""


class BulkFilters(TypedDict, total=False):
    """The filters that select the tasks of a bulk operation."""

    state: State | str | Iterable[State | str] | None
    kind: str | Iterable[str] | None
    queue: str | None
    tag: str | None
    key: str | None
    title: str | None
    meta: Mapping[str, str | float | bool | None] | None
    search: str | None
    flow: int | None
    parent: int | None
    node: str | Iterable[str] | None
    enqueued_since: datetime | None
    enqueued_until: datetime | None
    started_since: datetime | None
    started_until: datetime | None
    finished_since: datetime | None
    finished_until: datetime | None


class TaskFilters(BulkFilters, total=False):
    """The arguments of `engine.tasks(...)`."""

    sort: Sort
    ascending: bool
    after: str | None
    limit: int


class TaskQuery(Record, frozen=True, kw_only=True):
    """A filter over all tasks, and the order of the listing. Moments are microseconds since 1970; a range contains its
    beginning, and not its end."""

    states: frozenset[State] | None = None
    kinds: tuple[str, ...] | None = None
    queue: str | None = None
    tag: str | None = None
    key: str | None = None
    title: str | None = None
    """Only tasks whose title contains this text; case is ignored."""
    meta: dict[str, Any] | None = None
    """Only tasks whose metadata has these values: texts, numbers, true, false or null."""
    search: str | None = None
    """Only tasks whose arguments or errors contain this text; case is ignored. A page searches the first
    `SEARCHED_TASKS` that match the other filters."""
    enqueued_since: int | None = None
    enqueued_until: int | None = None
    started_since: int | None = None
    started_until: int | None = None
    finished_since: int | None = None
    finished_until: int | None = None
    sort: Sort = "id"
    ascending: bool = False
    after: str | None = None
    """The cursor of the page before (`TaskPage.next`)."""
    group_id: int | None = None
    """Only tasks of this group or flow."""
    parent_id: int | None = None
    """Only tasks that this task has created."""
    nodes: tuple[str, ...] | None = None
    """Only tasks whose last attempt ran on one of these nodes, given by id."""
    limit: int = 100

    @property
    def selected_states(self) -> frozenset[State]:
        """The states of the tasks that can match."""
        states = self.states if self.states is not None else frozenset(State)
        if self.finished_since is not None or self.finished_until is not None:
            states &= FINAL
        return states & SORTED_STATES[self.sort]


SORTED_STATES: Final[dict[Sort, frozenset[State]]] = {
    "id": frozenset(State),
    "due": frozenset({State.SCHEDULED}),
    "end": FINAL,
}
"""The states of the tasks that a listing in this order contains."""


class TaskPage(Record, frozen=True, kw_only=True):
    """One page of a listing."""

    tasks: tuple[TaskRecord, ...]
    next: str | None = None
    """Pass this as `after` to get the next page. None on the last page. It stays valid when tasks are added or
    deleted."""
    is_cut: bool = False
    """Whether the search for a text ended before the last task that matches the other filters. The next page goes
    on."""

    def __iter__(self) -> Iterator[TaskRecord]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> TaskRecord:
        return self.tasks[index]


CountKey = TypeVar("CountKey")


class Counts(dict[CountKey, int]):
    """Numbers of tasks."""

    counted_at: datetime | None = None
    """When the live tasks were counted, if there are many of them. None if they were counted just now, so that all
    numbers are exact."""


class QueueRecord(Record, frozen=True, kw_only=True):
    """A queue, and the number of its tasks in each state."""

    name: str
    paused_at: datetime | None = None
    counts: dict[State, int] = {}
    counted_at: datetime | None = None
    """When the live tasks were counted, if there are many of them. None if they were counted just now, so that all
    numbers are exact."""

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self.paused_at is not None
