"""Results: waits for the end of tasks, and decodes what they returned."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from synergon.errors import ResultTimeout, TaskCancelled, TaskFailed
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskRecord
from synergon.options.durations import Duration, seconds

if TYPE_CHECKING:
    from synergon.client.connection import Connection
    from synergon.task import AnyTask


class Results:
    """The part of an engine that waits for tasks. It is told of their ends; it does not poll."""

    def __init__(self, connection: Connection, kinds: Mapping[str, AnyTask]) -> None:
        self._connection = connection
        self._kinds = kinds

    async def wait(self, task_id: int, timeout: Duration | None, *, is_ours: bool) -> TaskRecord:
        """The final record of the task. `is_ours`: this engine has enqueued it, so its end is told without asking."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        waiters = self._connection.waiters
        try:
            async with asyncio.timeout(limit):
                self._connection.become_reachable()
                if self._connection.peers is not None and not is_ours:
                    waiters.expect_of_others(task_id)
                return await waiters.wait(task_id)
        except ResultTimeout:  # the waiters knew that the task would not end
            raise
        except TimeoutError:
            raise ResultTimeout(f"task {task_id} had not ended after {limit:g} s; it goes on") from None

    def decode(self, record: TaskRecord, task_type: AnyTask | None) -> Any:
        """The result of an ended task in the type of its function's annotation; TaskFailed, TaskCancelled otherwise."""
        if record.state is State.CANCELLED:
            raise TaskCancelled(f"task {record.id} ({record.kind}) was cancelled", record)
        if record.state is State.FAILED:
            error = record.error
            detail = f": {error.type}: {error.message}" if error is not None else ""
            raise TaskFailed(f"task {record.id} ({record.kind}) failed ({record.reason}){detail}", record)
        task_type = task_type or self._kinds.get(record.kind)
        if task_type is None:
            return record.result
        return task_type.signature.decode_result(record.result_json or b"null")
