"""The group handle: tasks that were enqueued together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from synergon.async_calls import Bridge, sync
from synergon.call import Call
from synergon.errors import ResultTimeout, TaskDeleted, TaskNotFound
from synergon.handle import Handle
from synergon.model.groups import GroupRecord, OpenedGroup
from synergon.model.lifecycle import State
from synergon.options.durations import Duration, seconds

if TYPE_CHECKING:
    from synergon.engine import Engine

Value = TypeVar("Value", covariant=True)
Found = TypeVar("Found")

AT_ONCE: Final = 500
"""How many tasks are read at once."""


class Group(Generic[Value]):
    """A stored group, as `engine.group` and `engine.groups.get` return it. The object has its id and the handles of its
    tasks, and no state that could become outdated."""

    def __init__(
        self, engine: Engine, group_id: int, name: str, handles: list[Handle[Value]], then: Handle[Any] | None
    ) -> None:
        self.id = group_id
        self.name = name
        self._engine = engine
        self.then = then
        """The handle of the task that runs when all others have ended. None if there is none."""
        self.handles = handles
        """One handle for each call, in order."""

    @classmethod
    def of(
        cls, engine: Engine, name: str, calls: Sequence[Call[Found]], then: Call[Any] | None, opened: OpenedGroup
    ) -> Group[Found]:
        """The handle of a group that was just stored."""
        handles = [
            Handle.of(engine, found, call.task_type) for call, found in zip(calls, opened.insertions, strict=True)
        ]
        follower = None
        if then is not None and opened.then is not None:
            follower = Handle.of(engine, opened.then, then.task_type)
        return Group(engine, opened.id, name, handles, follower)

    def __repr__(self) -> str:
        return f"<Group {self.id} {self.name!r} of {len(self.handles)} tasks>"

    @property
    def sync_bridge(self) -> Bridge:
        """The bridge that runs the `*_sync` methods of this class for code without an event loop."""
        return self._engine.sync_bridge

    async def status(self) -> GroupRecord:
        """The current record of the group. Raises TaskNotFound if it does not exist."""
        (record,) = await self._engine._store.groups([self.id])
        if record is None:
            raise TaskNotFound(f"there is no group {self.id}: its tasks were deleted or pruned", self.id)
        return record

    status_sync: Final = sync(status)

    async def counts(self) -> dict[State, int]:
        """The number of the group's tasks in each state."""
        return dict.fromkeys(State, 0) | (await self.status()).counts

    counts_sync: Final = sync(counts)

    async def wait(self, timeout: Duration | None = None) -> GroupRecord:
        """Wait until all tasks of the group have ended, in whatever state. Returns the record of the group. Raises
        ResultTimeout after `timeout`; the tasks continue."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        try:
            async with asyncio.timeout(limit):
                await self._all_ended()
        except TimeoutError:
            raise ResultTimeout(f"group {self.id} had not ended after {limit:g} s; its tasks go on") from None
        return await self.status()

    wait_sync: Final = sync(wait)

    async def _all_ended(self) -> None:
        left = iter(self.handles)
        while ids := [handle.id for handle in islice(left, AT_ONCE)]:
            for record in await self._engine._store.get(ids):
                if record is not None and not record.state.is_final:
                    await self._ended(record.id)

    async def _ended(self, task_id: int) -> None:
        try:
            await self._engine.wait(task_id)
        except TaskDeleted:
            return

    async def results(self, timeout: Duration | None = None) -> list[Value]:
        """Wait until all tasks have ended, and return their results in the order of the calls. Raises the error of the
        first one that did not succeed."""
        await self.wait(timeout)
        return [await handle.result() for handle in self.handles]

    results_sync: Final = sync(results)

    async def cancel(self, why: str | None = None) -> int:
        """Cancel all live tasks of the group. Returns how many there were."""
        return await self._engine.cancel_group(self.id, why)

    cancel_sync: Final = sync(cancel)
