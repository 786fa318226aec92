"""Replaces the node and the waiters of an engine under test: only the tester runs tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synergon.client.results import Waiters
from synergon.errors import ResultTimeout, TaskDeleted
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskRecord
from synergon.node.node import Node

if TYPE_CHECKING:
    from synergon.testing.tester import Tester


class StandbyNode(Node):
    """The node that `engine.worker()` starts in a test. It claims nothing. So an app that starts a worker needs no
    change for a test."""

    def __init__(self, *args: Any, tester: Tester, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tester = tester

    async def start(self) -> None:
        """Does nothing."""

    async def drained(self) -> None:
        """Run all due tasks."""
        await self._tester.drain()

    async def _stop(self, grace: float | None) -> None:  # noqa: ARG002  nothing runs, so no grace is needed
        self._has_stopped.set()


class PromptWaiters(Waiters):
    """Waits for no time to pass: runs due tasks, after which the awaited task has ended or cannot end before the test
    continues."""

    def __init__(self, *args: Any, tester: Tester) -> None:
        super().__init__(*args)
        self._tester = tester

    async def wait(self, task_id: int) -> TaskRecord:
        """The final record of the task. If the task has not ended, raises a ResultTimeout that says why."""
        record = await self._get(task_id)
        if not record.state.is_final:
            await self._tester.run_or_join([task_id])
            record = await self._get(task_id)
        if not record.state.is_final:
            raise ResultTimeout(f"task {task_id} ({record.kind}) has not ended: {self._tester.why_not_ended(record)}")
        return record

    async def _get(self, task_id: int) -> TaskRecord:
        (record,) = await self._store.get([task_id])
        if record is None:
            raise TaskDeleted.of(task_id)
        return record


def why_not_ended(record: TaskRecord, *, due_in_seconds: float, is_known: bool) -> str:
    """Why a task has not ended although all due tasks have run."""
    if record.state is State.SCHEDULED:
        failed = f"attempt {record.attempts} has failed, and " if record.attempts else ""
        return f"{failed}it is due in {due_in_seconds:g} s by the test's clock; move it with clock.advance()"
    if record.state is State.RUNNING:
        return "the code that waits for it blocks it, or holds a slot or permit that it needs"
    if not is_known:
        return "its kind is not registered on this engine, so nothing here can run it"
    return "its queue is paused, or the task functions that wait for it take all slots"
