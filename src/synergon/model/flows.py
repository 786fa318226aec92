"""Records of flows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Self

from synergon.model.dependencies import Dependency
from synergon.model.groups import GroupRecord
from synergon.model.lifecycle import FINAL, State
from synergon.model.record import Record
from synergon.model.task_records import TaskRecord


class FlowRecord(Record, frozen=True, kw_only=True):
    """A stored flow."""

    id: int
    name: str
    state: State | None
    """What its tasks have come to: `failed` if one failed, else `cancelled` if one was cancelled, else `succeeded`.
    None while a task is live."""
    created_at: datetime
    ended_at: datetime | None
    counts: dict[State, int]
    """The number of its tasks in each state, without zeros."""
    last_id: int | None
    """The last step."""

    @classmethod
    def of(cls, group: GroupRecord) -> Self:
        """The record of a flow, which is stored as a group."""
        return cls(
            id=group.id,
            name=group.name,
            state=group.state,
            created_at=group.created_at,
            ended_at=group.ended_at,
            counts=group.counts,
            last_id=group.then_id,
        )

    @property
    def open(self) -> int:
        """How many tasks of the flow are live."""
        return sum(count for state, count in self.counts.items() if state not in FINAL)


class FlowStep(Record, frozen=True, kw_only=True):
    """A task of a flow, and the tasks that it depends on."""

    task: TaskRecord
    needs: tuple[Dependency, ...] = ()


class FlowQuery(Record, frozen=True, kw_only=True):
    """A filter over all flows, newest first. With `before`, only flows with lower ids."""

    name: str | None = None
    is_open: bool | None = None
    """True: only flows that have not ended. False: only flows that have ended. None: both."""
    state: State | None = None
    before: int | None = None
    limit: int = 100


class FlowPage(Record, frozen=True, kw_only=True):
    """One page of a listing of flows."""

    flows: tuple[FlowRecord, ...]
    next: int | None = None
    """Pass this as `before` to get the next page. None on the last page."""

    def __iter__(self) -> Iterator[FlowRecord]:
        return iter(self.flows)

    def __len__(self) -> int:
        return len(self.flows)

    def __getitem__(self, index: int) -> FlowRecord:
        return self.flows[index]
