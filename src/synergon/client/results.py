"""Waits for the end of tasks, and returns their results.

The node and the peers announce ends; a slow sweep finds those that were not announced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from synergon.errors import PayloadError, PermissionDenied, ResultTimeout, TaskCancelled, TaskDeleted, TaskFailed
from synergon.model.clock import Clock
from synergon.model.lifecycle import FINAL, State
from synergon.model.task_records import TaskRecord
from synergon.options.durations import Duration, seconds

if TYPE_CHECKING:
    from synergon.client.connection import Connection
    from synergon.peering.peers import Peers
    from synergon.stores.base import Store
    from synergon.task import AnyTask


class Waiters:
    """Futures of waiting callers, by task id. One sweep serves all of them, and runs only while there are any."""

    def __init__(self, store: Store, clock: Clock, sweep_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._sweep_seconds = sweep_seconds
        self._futures: dict[int, list[asyncio.Future[TaskRecord]]] = {}
        self._to_check: set[int] = set()
        self.enqueued_elsewhere: set[int] = set()
        """Tasks that callers wait for, and that another engine has enqueued."""
        self.followers: set[asyncio.Event] = set()
        """Events of open streams. They are set when any task may have ended."""
        self._unrequested: set[int] = set()
        self.peers: Peers | None = None
        """The peers, which are asked to announce the end of tasks that other engines have enqueued. None without
        peers."""
        self.is_closed: bool = False
        self._wake = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None
        self._sweep_at = 0.0

    def expect_from_peers(self, task_id: int) -> None:
        """Note that another engine has enqueued the task: peers are asked to announce its end to this engine."""
        self.enqueued_elsewhere.add(task_id)
        self._unrequested.add(task_id)

    async def wait(self, task_id: int) -> TaskRecord:
        """Wait for the end of the task, and return its final record. Raises TaskDeleted if it does not exist."""
        future: asyncio.Future[TaskRecord] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(task_id, []).append(future)
        # Registered before it is read: an end in between is announced or read, never missed.
        self._check_soon([task_id])
        try:
            return await future
        finally:
            self._forget(task_id, future)

    def recheck(self, ids: Iterable[int]) -> None:
        """Read these tasks, if callers wait for them: they may have ended. Wakes all streams of events, too."""
        self.wake_followers()
        if self._futures:
            self._check_soon(ids)

    def wake_followers(self) -> None:
        """Wake the streams of events: any task may have ended."""
        for follower in self.followers:
            follower.set()

    def _check_soon(self, ids: Iterable[int]) -> None:
        self._to_check.update(task_id for task_id in ids if task_id in self._futures)
        if self._to_check:
            self._wake.set()
            self._start()

    def recheck_all(self) -> None:
        """Read all tasks that callers wait for: they may have ended."""
        self.recheck(list(self._futures))

    def close(self, error: Exception) -> None:
        """Raise the error in all waiting callers, and end the streams of events."""
        self.is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._reject(self._futures, error)
        self.wake_followers()

    def _start(self) -> None:
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        while self._futures:
            is_due = self._clock.monotonic() >= self._sweep_at
            ids, self._to_check = sorted(self._futures if is_due else self._to_check), set()
            self._wake.clear()
            if is_due:  # each of them is checked in time, however many are announced meanwhile
                self._sweep_at = self._clock.monotonic() + self._sweep_seconds
            try:
                await self._read(ids)
            except PermissionDenied as error:  # a role that may not read results waits for nothing
                self._reject(ids, error)
            except Exception:  # noqa: BLE001  whatever it is, callers still wait
                self._to_check.update(ids)
                await self._clock.sleep(min(self._sweep_seconds, 1.0))
                continue
            if not self._to_check and self._futures:
                await self._wait_for_wake_up()

    async def _wait_for_wake_up(self) -> None:
        try:
            async with asyncio.timeout(max(self._sweep_at - self._clock.monotonic(), 0)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _read(self, ids: Sequence[int]) -> None:
        records = dict(zip(ids, await self._store.get(ids), strict=True))
        self._resolve(records)
        live = {task_id for task_id, record in records.items() if record is not None and record.state not in FINAL}
        if unasked := live & self._unrequested:
            self._unrequested -= unasked
            if self.peers is not None:
                self.peers.request_done(sorted(unasked))

    def _resolve(self, records: Mapping[int, TaskRecord | None]) -> None:
        for task_id, record in records.items():
            for future in self._futures.get(task_id, ()):
                if future.done():
                    continue
                if record is None:
                    future.set_exception(TaskDeleted.of(task_id))
                elif record.state in FINAL:
                    future.set_result(record)

    def _reject(self, ids: Iterable[int], error: Exception) -> None:
        for task_id in ids:
            for future in self._futures.get(task_id, ()):
                if not future.done():
                    future.set_exception(error)

    def _forget(self, task_id: int, future: asyncio.Future[TaskRecord]) -> None:
        futures = self._futures[task_id]
        futures.remove(future)
        if not futures:
            del self._futures[task_id]
            self.enqueued_elsewhere.discard(task_id)
            self._unrequested.discard(task_id)


class Results:
    """The part of an engine that waits for the end of tasks, and decodes their results."""

    def __init__(self, connection: Connection, kinds: Mapping[str, AnyTask]) -> None:
        self._connection = connection
        self._kinds = kinds

    async def wait(self, task_id: int, timeout: Duration | None, *, is_ours: bool) -> TaskRecord:
        """Wait for the end of the task, and return its final record. `is_ours`: this engine has enqueued the task, so
        its end is announced without a request. Raises ResultTimeout."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        waiters = self._connection.waiters
        try:
            async with asyncio.timeout(limit):
                self._connection.become_reachable()
                if self._connection.peers is not None and not is_ours:
                    waiters.expect_from_peers(task_id)
                return await waiters.wait(task_id)
        except ResultTimeout:  # the waiters knew that the task would not end
            raise
        except TimeoutError:
            raise ResultTimeout(f"task {task_id} had not ended after {limit:g} s; it goes on") from None

    def decode(self, record: TaskRecord, task_type: AnyTask | None) -> Any:
        """The result of a final task in the type of its function's annotation. Raises TaskFailed or TaskCancelled, and
        PayloadError if the stored result cannot be read."""
        if record.state is State.CANCELLED:
            raise TaskCancelled(f"task {record.id} ({record.kind}) was cancelled", record)
        if record.state is State.FAILED:
            error = record.error
            detail = f": {error.type}: {error.message}" if error is not None else ""
            raise TaskFailed(f"task {record.id} ({record.kind}) failed ({record.reason}){detail}", record)
        if "result" in record.unreadable:
            raise PayloadError(f"task {record.id} ({record.kind}) succeeded, but its stored result cannot be read")
        task_type = task_type or self._kinds.get(record.kind)
        if task_type is None or record.result_json is None:  # its kind does not keep results
            return record.result
        return task_type.signature.decode_result(record.result_json)
