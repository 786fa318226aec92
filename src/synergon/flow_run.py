"""The handle of an enqueued flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from synergon.async_calls import Bridge, sync
from synergon.call import Call
from synergon.handle import Handle
from synergon.model.flows import FlowRecord, FlowStep
from synergon.model.groups import OpenedGroup
from synergon.options.durations import Duration, seconds

if TYPE_CHECKING:
    from synergon.engine import Engine


class FlowRun:
    """One stored flow: its id, and nothing that could become outdated."""

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
        """Runs the twins of its methods for code without an event loop."""
        return self._engine.sync_bridge

    async def status(self) -> FlowRecord:
        """The current record of the flow. Raises TaskNotFound if it does not exist."""
        return await self._engine.flows.record(self.id)

    status_sync: Final = sync(status)

    async def steps(self) -> list[FlowStep]:
        """The tasks of the flow, with what they depend on, by ascending id."""
        return await self._engine.flows.steps(self.id)

    steps_sync: Final = sync(steps)

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the end of the last step, and return its result. Raises as `Handle.result` does."""
        return await self.last.result(None if timeout is None else seconds(timeout, "timeout"))

    result_sync: Final = sync(result)

    async def wait(self, timeout: Duration | None = None) -> FlowRecord:
        """Wait until all tasks of the flow have ended, in whatever state. Raises ResultTimeout after `timeout`."""
        return await self._engine.flows.wait(self.id, timeout)

    wait_sync: Final = sync(wait)

    async def cancel(self, why: str | None = None) -> int:
        """Cancel all live tasks of the flow, in one transaction. Returns how many there were."""
        return await self._engine.flows.cancel(self.id, why)

    cancel_sync: Final = sync(cancel)

    async def retry(self) -> int:
        """Run the steps that failed or were cancelled again, and those that were cancelled because of them, in one
        transaction. Steps that succeeded do not run again. Returns how many steps had failed or were cancelled
        themselves; those that were cancelled because of them come back, too, and are not counted."""
        return await self._engine.flows.retry(self.id)

    retry_sync: Final = sync(retry)
