"""The part of an engine that finds flows and groups, and works on flows as a whole: `engine.flows`, `engine.groups`."""

from __future__ import annotations

import asyncio
import builtins
from typing import TYPE_CHECKING, Any, Final

from synergon.async_calls import Bridge, sync
from synergon.client.operations import check_id, check_why
from synergon.errors import KeyConflict, OptionError, ResultTimeout, TaskNotFound
from synergon.flow_run import FlowRun
from synergon.group import Group
from synergon.handle import Handle
from synergon.model.flows import FlowPage, FlowQuery, FlowRecord, FlowStep
from synergon.model.lifecycle import FINAL, State
from synergon.model.task_records import TaskQuery, TaskRecord
from synergon.options.durations import Duration, seconds

if TYPE_CHECKING:
    from synergon.engine import Engine

AT_ONCE: Final = 500
"""How many tasks are read at once."""


async def tasks_of(engine: Engine, group_id: int) -> list[TaskRecord]:
    """The tasks of a group or a flow, by ascending id."""
    found: list[TaskRecord] = []
    after: str | None = None
    while True:
        page = await engine._store.list_tasks(TaskQuery(group_id=group_id, after=after, limit=AT_ONCE))
        found += page
        after = page.next
        if after is None:
            return found[::-1]


class Groups:
    """Finds groups."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def sync_bridge(self) -> Bridge:
        """The bridge that runs the `*_sync` methods of this class for code without an event loop."""
        return self._engine.sync_bridge

    async def get(self, group_id: int) -> Group[Any]:
        """The group with this id. Raises TaskNotFound if there is none."""
        (record,) = await self._engine._store.groups([check_id(group_id)])
        if record is None or record.is_flow:
            raise TaskNotFound(f"there is no group {group_id}: it never existed, or it was pruned", group_id)
        tasks = await tasks_of(self._engine, group_id)
        handles = [_handle(self._engine, task.id, task.kind) for task in tasks]
        then = None
        if record.then_id is not None:
            (last,) = await self._engine._store.get([record.then_id])
            then = None if last is None else _handle(self._engine, last.id, last.kind)
        return Group(self._engine, group_id, record.name, handles, then)

    get_sync: Final = sync(get)


def _handle(engine: Engine, task_id: int, kind: str) -> Handle[Any]:
    return Handle(engine, task_id, task_type=engine.kinds.get(kind))


class Flows:
    """Finds flows, from any process, and works on them as a whole."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def sync_bridge(self) -> Bridge:
        """Runs the twins of its methods for code without an event loop."""
        return self._engine.sync_bridge

    async def get(self, flow_id: int) -> FlowRun:
        """The flow with this id. Raises TaskNotFound if there is none."""
        record = await self.record(flow_id)
        assert record.last_id is not None, "a flow has steps"
        (last,) = await self._engine._store.get([record.last_id])
        task_type = None if last is None else self._engine.kinds.get(last.kind)
        return FlowRun(self._engine, flow_id, record.name, Handle(self._engine, record.last_id, task_type=task_type))

    get_sync: Final = sync(get)

    async def record(self, flow_id: int) -> FlowRecord:
        """The current record of a flow. Raises TaskNotFound if there is none."""
        (found,) = await self._engine._store.groups([check_id(flow_id)])
        if found is None or not found.is_flow:
            raise _not_found(flow_id)
        return FlowRecord.of(found)

    async def list(
        self,
        *,
        name: str | None = None,
        state: State | str | None = None,
        is_open: bool | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> FlowPage:
        """One page of the flows that match, newest first. For the following page, pass `page.next` as `before`."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise OptionError(f"limit must be a whole number from 1 on, got {limit!r}")
        try:
            wanted = None if state is None else State(state)
        except ValueError:
            wanted = None
        if state is not None and wanted not in FINAL:
            raise OptionError(
                f"a flow's state is one of {', '.join(sorted(FINAL))}, got {state!r}; or give is_open=True"
            )
        return await self._engine._store.list_flows(
            FlowQuery(name=name, state=wanted, is_open=is_open, before=before, limit=min(limit, 1000))
        )

    list_sync: Final = sync(list)  # noqa: A003  the method above

    async def steps(self, flow_id: int) -> builtins.list[FlowStep]:
        """The tasks of a flow, with what they depend on, by ascending id. Raises TaskNotFound if there is none."""
        await self.record(flow_id)
        tasks = await tasks_of(self._engine, flow_id)
        steps: builtins.list[FlowStep] = []
        for start in range(0, len(tasks), AT_ONCE):
            some = tasks[start : start + AT_ONCE]
            needs = await self._engine._store.dependencies([task.id for task in some])
            steps += [FlowStep(task=task, needs=tuple(found)) for task, found in zip(some, needs, strict=True)]
        return steps

    async def wait(self, flow_id: int, timeout: Duration | None = None) -> FlowRecord:
        """Wait until all tasks of a flow have ended. Raises ResultTimeout after `timeout`."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        try:
            async with asyncio.timeout(limit):
                while (record := await self.record(flow_id)).ended_at is None:
                    await self._one_ended(flow_id)
        except TimeoutError:
            raise ResultTimeout(f"flow {flow_id} had not ended after {limit:g} s; its tasks go on") from None
        return record

    async def _one_ended(self, flow_id: int) -> None:
        """Wait for the end of a live task, the newest: the last step ends last, unless a map has created more."""
        live = frozenset(set(State) - FINAL)
        page = await self._engine._store.list_tasks(TaskQuery(group_id=flow_id, states=live, limit=1))
        for task in page:
            await self._engine.wait(task.id)

    async def cancel(self, flow_id: int, why: str | None = None) -> int:
        """Cancel all live tasks of a flow, in one transaction. Returns how many there were."""
        await self.record(flow_id)
        return await self._engine._operations.cancel_group(flow_id, check_why(why))

    async def retry(self, flow_id: int) -> int:
        """Run the steps of a flow that failed or were cancelled again, in one transaction, and those that were
        cancelled because of them, which are not counted. Returns how many. Raises KeyConflict, without a change, if a
        live task holds the unique key of one of them."""
        await self.record(flow_id)
        moves = await self._engine._store.retry_flow(check_id(flow_id))
        for moved in moves:
            if moved.key_holder is not None:
                raise KeyConflict(
                    f"flow {flow_id} cannot be retried: task {moved.key_holder} is live and holds the key of its step "
                    f"{moved.id}",
                    moved.key_holder,
                )
        self._engine._announcer.announce_moves(moves)
        return sum(moved.done for moved in moves)


def _not_found(flow_id: int) -> TaskNotFound:
    return TaskNotFound(f"there is no flow {flow_id}: it never existed, or it was pruned", flow_id)
