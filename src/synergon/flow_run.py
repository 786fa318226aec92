"""The handle of an enqueued flow, and the functions that read flows and the tasks of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from synergon.async_calls import Bridge, sync
from synergon.call import Call
from synergon.errors import KeyConflict, ResultTimeout, TaskNotFound
from synergon.handle import Handle
from synergon.model.flows import FlowRecord, FlowStep
from synergon.model.groups import OpenedGroup
from synergon.model.lifecycle import LIVE
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


async def record_of(engine: Engine, flow_id: int) -> FlowRecord:
    """The current record of a flow. Raises TaskNotFound if there is none."""
    (found,) = await engine._store.groups([flow_id])
    if found is None or not found.is_flow:
        raise TaskNotFound(f"there is no flow {flow_id}: it never existed, or it was pruned", flow_id)
    return FlowRecord.of(found)


async def steps_of(engine: Engine, flow_id: int) -> list[FlowStep]:
    """The tasks of a flow, with what they depend on, by ascending id. Raises TaskNotFound if there is none."""
    await record_of(engine, flow_id)
    tasks = await tasks_of(engine, flow_id)
    steps: list[FlowStep] = []
    for start in range(0, len(tasks), AT_ONCE):
        some = tasks[start : start + AT_ONCE]
        needs = await engine._store.dependencies([task.id for task in some])
        steps += [FlowStep(task=task, needs=tuple(found)) for task, found in zip(some, needs, strict=True)]
    return steps


class FlowRun:
    """A stored flow. The object has its id, and no state that could become outdated."""

    def __init__(self, engine: Engine, flow_id: int, name: str, last: Handle[Any]) -> None:
        self.id = flow_id
        self.name = name
        self.last = last
        """The handle of the last step."""
        self.handles: list[Handle[Any]] = []
        """One handle for each step, in the order in which they were added. Empty if the flow was found by its id."""
        self._engine = engine

    @classmethod
    def of(cls, engine: Engine, name: str, opened: OpenedGroup, calls: Sequence[Call[Any]]) -> FlowRun:
        """The handle of a flow that was just stored."""
        handles = [
            Handle.of(engine, found, call.task_type) for call, found in zip(calls, opened.insertions, strict=True)
        ]
        run = cls(engine, opened.id, name, handles[-1])
        run.handles = handles
        return run

    def __repr__(self) -> str:
        return f"<FlowRun {self.id} {self.name!r}>"

    @property
    def sync_bridge(self) -> Bridge:
        """The bridge that runs the `*_sync` methods of this class for code without an event loop."""
        return self._engine.sync_bridge

    async def status(self) -> FlowRecord:
        """The current record of the flow. Raises TaskNotFound if it does not exist."""
        return await record_of(self._engine, self.id)

    status_sync: Final = sync(status)

    async def steps(self) -> list[FlowStep]:
        """The tasks of the flow, with what they depend on, by ascending id."""
        return await steps_of(self._engine, self.id)

    steps_sync: Final = sync(steps)

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the end of the last step, and return its result. Raises as `Handle.result` does."""
        return await self.last.result(None if timeout is None else seconds(timeout, "timeout"))

    result_sync: Final = sync(result)

    async def wait(self, timeout: Duration | None = None) -> FlowRecord:
        """Wait until all tasks of the flow have ended, in whatever state. Raises ResultTimeout after `timeout`."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        try:
            async with asyncio.timeout(limit):
                while (record := await self.status()).ended_at is None:
                    await self._one_ended()
        except TimeoutError:
            raise ResultTimeout(f"flow {self.id} had not ended after {limit:g} s; its tasks go on") from None
        return record

    wait_sync: Final = sync(wait)

    async def _one_ended(self) -> None:
        """Wait until the newest live task of the flow has ended. It usually ends last, so the caller rarely has to wait
        again; a map may have created newer tasks meanwhile. Returns at once if no task is live."""
        page = await self._engine._store.list_tasks(TaskQuery(group_id=self.id, states=LIVE, limit=1))
        for task in page:
            await self._engine.wait(task.id)

    async def cancel(self, why: str | None = None) -> int:
        """Cancel all live tasks of the flow, in one transaction. Returns how many there were."""
        await self.status()
        return await self._engine._operations.cancel_group(self.id, why)

    cancel_sync: Final = sync(cancel)

    async def retry(self) -> int:
        """Run failed and cancelled steps again, in one transaction, together with the steps that were cancelled because
        of them. Steps that succeeded do not run again. Returns the number of steps, without those that were cancelled
        because of others. Raises KeyConflict, and changes nothing, if a live task holds the unique key of a step."""
        await self.status()
        moves = await self._engine._store.retry_flow(self.id)
        for moved in moves:
            if moved.key_holder is not None:
                raise KeyConflict(
                    f"flow {self.id} cannot be retried: task {moved.key_holder} is live and holds the key of its step "
                    f"{moved.id}",
                    moved.key_holder,
                )
        self._engine._announcer.announce_moves(moves)
        return sum(moved.done for moved in moves)

    retry_sync: Final = sync(retry)
