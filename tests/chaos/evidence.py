"""What the auditor judges by: plain records of what was done, and of what is there in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from synergon import Reason, ScheduleRecord, State

SOON_SECONDS: Final = 3.0


class Event(StrEnum):
    """What an execution can say of itself."""

    BEGINS = "begins"
    LIVES = "lives"
    RETURNS = "returns"
    RAISES = "raises"
    IS_STOPPED = "is_stopped"


@dataclass(frozen=True, slots=True)
class Line:
    """One word of one execution."""

    event: Event
    task_id: int
    claim_no: int
    pid: int
    node_pid: int
    at: float


@dataclass(frozen=True, slots=True)
class Row:
    """A task as the database has it in the end."""

    is_history: bool
    id: int
    kind: str
    state: State
    reason: Reason | None = None
    attempts: int = 1
    max_attempts: int | None = 1
    crashes: int = 0
    owner_deaths: int = 0
    claim_no: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)
    errors: str = ""
    """As they are stored; for whoever has to find out."""
    batch_id: int | None = None
    """The task that led its last batch, and wrote down what the batch did."""
    schedule: str | None = None
    """What has created it, if a schedule has."""
    scheduled_for: int | None = None
    flow_id: int | None = None
    """The flow that it is a step of."""
    is_map: bool = False
    """Whether it creates tasks, and runs no body."""
    result: Any = None


@dataclass(frozen=True, slots=True)
class FlowRow:
    """A flow as the database has it in the end."""

    id: int
    state: State | None
    """None if it has not ended."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """What items the execution of a claim got."""

    leader_id: int
    claim_no: int
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """A row that a body wrote in its transaction."""

    task_id: int
    claim_no: int


@dataclass(frozen=True, slots=True)
class Acceptance:
    """An enqueue of a producer has returned these ids."""

    pid: int
    at: float
    task_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fall:
    """A node's process was ended, by whomever."""

    node_pid: int
    at: float


@dataclass(frozen=True, slots=True)
class Pause:
    """A node's process stood still, and went on."""

    node_pid: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Outage:
    """The database was away or refused to be written."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All of it."""

    lease_seconds: float
    accepted: Sequence[int]
    rows: Sequence[Row]
    lines: Sequence[Line]
    effects: Sequence[Effect] = ()
    falls: Sequence[Fall] = ()
    pauses: Sequence[Pause] = ()
    outages: Sequence[Outage] = ()
    soon_seconds: float = SOON_SECONDS
    """How long an outcome may take to be written while the database is there; longer on a machine that is slow."""
    schedules: Sequence[ScheduleRecord] = ()
    """As they are when all is quiet, and they are paused."""
    flows: Sequence[FlowRow] = ()
    retried: Sequence[str] = ()
    """The labels of the flows that were retried after their step was mended."""
    batches: Sequence[BatchLine] = ()
    strange_nodes: Sequence[str] = ()
    """Rows of the node table whose process is not there."""
