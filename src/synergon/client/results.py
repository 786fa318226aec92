"""Waiting for the end of tasks, and what they returned."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from synergon.client.control import Control
from synergon.errors import ResultTimeout, TaskCancelled, TaskFailed
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskRecord
from synergon.options.durations import Duration, seconds
from synergon.peering.result_listener import ResultListener
from synergon.task import AnyTask


class Results(Control):
    """The part of an Engine that waits."""

    kinds: dict[str, AnyTask]
    _doorplate: ResultListener | None

    async def wait(self, task_id: int, *, timeout: Duration | None = None) -> TaskRecord:
        """The record of the task once it has ended. TaskDeleted if it is gone, ResultTimeout after `timeout`."""
        return await self.wait_for(task_id, timeout, is_ours=False)

    async def wait_for(self, task_id: int, timeout: Duration | None, *, is_ours: bool) -> TaskRecord:
        """The same; `is_ours`: this engine has enqueued the task, and is told of its end without asking."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        waiters = self.waiters
        try:
            async with asyncio.timeout(limit):
                self._become_reachable()
                if self.peers is not None and not is_ours:
                    waiters.expect_of_others(task_id)
                return await waiters.wait(task_id)
        except ResultTimeout:  # whoever waited knew before that there was no use in it
            raise
        except TimeoutError:
            raise ResultTimeout(f"task {task_id} had not ended after {limit:g} s; it goes on") from None

    def _become_reachable(self) -> None:
        """Somebody here waits for what happens elsewhere."""
        if self.node is None and self._doorplate is not None:
            self._doorplate.put_up()

    def result_of(self, record: TaskRecord, task_type: AnyTask | None) -> Any:
        """The result of an ended task in the type of its function's annotation; TaskFailed, TaskCancelled otherwise."""
        if record.state is State.CANCELLED:
            raise TaskCancelled(f"task {record.id} ({record.kind}) was cancelled", record)
        if record.state is State.FAILED:
            error = record.error
            detail = f": {error.type}: {error.message}" if error is not None else ""
            raise TaskFailed(f"task {record.id} ({record.kind}) failed ({record.reason}){detail}", record)
        task_type = task_type or self.kinds.get(record.kind)
        if task_type is None:
            return record.result
        return task_type.signature.decode_result(msgspec.json.encode(record.result))
