"""Stores calls as tasks, all or none, and announces them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synergon.client.call_lists import listed_calls
from synergon.client.caller_connections import driver_connection, one_connection
from synergon.client.cooperative import made_in_chunks
from synergon.client.sync_bridge import IDLE_HOOK_GUARD, SyncBridge
from synergon.errors import KeyConflict, OptionError
from synergon.handle import Handle
from synergon.model.groups import NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.tasks import Insertion, NewTask, RequestKey
from synergon.options.options import check_name

if TYPE_CHECKING:
    from synergon.call import Call
    from synergon.client.announcer import Announcer
    from synergon.client.connection import Connection
    from synergon.client.unrunnable_warning import UnrunnableWarning
    from synergon.model.tracer import ProducerSpan
    from synergon.providers.registry import Registry

READY: Final = State.READY  # to look a member up takes longer than to compare it, and every enqueue does

TASKS_PER_ITERATION: Final = 200
"""After how many tasks the event loop runs other tasks: in memory they take about two milliseconds. An iteration of the
event loop costs as much as several tasks."""


class Enqueuer:
    """The part of an engine that enqueues tasks. A returned insertion is durable, or part of the caller's
    transaction."""

    def __init__(
        self,
        connection: Connection,
        announcer: Announcer,
        registry: Registry,
        warning: UnrunnableWarning,
        sync_bridge: SyncBridge,
    ) -> None:
        self._connection = connection
        self._announcer = announcer
        self._registry = registry
        self._warning = warning
        self._sync_bridge = sync_bridge
        self._since_yield = 0
        """How many tasks were enqueued since `_yield_to_loop` last ran."""

    async def enqueue(self, calls: Sequence[Call[Any]], conn: Any = None) -> list[Insertion]:
        """Store all calls or none. With `conn`, they are part of the caller's transaction."""
        conn = one_connection(calls, conn)
        await self._connection.declare()
        if (guard := IDLE_HOOK_GUARD.get()) is not None:
            await guard.check_after_other_tasks()
        origin = self._connection.origin
        tasks = await made_in_chunks(lambda call: call.to_new_task(origin), calls)
        if conn is None:
            inserted = await self.enqueue_tasks(tasks)
            _announce_needed(self._announcer, calls)
            return inserted
        await self._connection.store.announce_queues({task.queue for task in tasks})
        with self._connection.producer_span(tasks) as span:
            inserted = await self._connection.store.insert_on(conn, span.tasks) if tasks else []
            span.note_stored(inserted)
        self._announcer.expect_commit()
        await self._warning.consider(self._connection.store, tasks, inserted)
        return inserted

    async def enqueue_one(self, call: Call[Any]) -> Insertion:
        """`enqueue` for a single call, with less work."""
        connection, announcer = self._connection, self._announcer
        if call.placement.conn is not None or connection.tracer is not None:
            return (await self.enqueue([call]))[0]
        if not self._registry.is_declared:
            await connection.declare()
        self._since_yield += 1
        if self._since_yield >= TASKS_PER_ITERATION:
            await self._yield_to_loop()
        task = call.to_new_task(connection.origin)
        try:
            (inserted,) = await connection.store.insert((task,))
        except asyncio.CancelledError:
            announcer.announce_doubtful((task,))
            raise
        if inserted.created:
            connection.note_accepted((task,))
        if inserted.state is READY and task.expires_in is None:  # the usual case, and called most often
            is_hinted = announcer.announce_ready({(task.kind, task.queue, task.requirements): 1})
        else:
            is_hinted = announcer.announce_inserted((task,), (inserted,))
            _announce_needed(announcer, [call])
        if is_hinted:
            await asyncio.sleep(0)  # the hint leaves before this caller continues: its event loop may rest for long
        if task.requirements or call.task_type is None:
            await self._warning.consider(connection.store, (task,), (inserted,))
        return inserted

    async def enqueue_for(self, call: Call[Any], who: str, request: RequestKey | None = None) -> Insertion:
        """Store a call that came over the HTTP API, and record its caller in the audit. A repeated request with the key
        `request` gets the task of the first one."""
        await self._connection.declare()
        task = call.to_new_task(self._connection.origin)
        try:
            inserted = await self._connection.store.insert_for(task, who, request)
        except asyncio.CancelledError:
            self._announcer.announce_doubtful((task,))
            raise
        if inserted.created or task.on_conflict == "replace":
            await self._announce((task,), (inserted,))
        return inserted

    async def enqueue_tasks(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store tasks that were already made from calls."""
        await self._connection.declare()
        if not tasks:
            return []
        self._since_yield += len(tasks)
        if self._since_yield >= TASKS_PER_ITERATION:
            await self._yield_to_loop()
        try:
            with self._connection.producer_span(tasks) as span:
                inserted = await self._connection.store.insert(span.tasks)
                span.note_stored(inserted)
        except asyncio.CancelledError:
            self._announcer.announce_doubtful(tasks)
            raise
        await self._announce(tasks, inserted)
        return inserted

    async def _yield_to_loop(self) -> None:
        """Let the event loop run other tasks. A store in memory waits for nothing, so without this a program that
        enqueues in a loop would keep its worker, its timers and `engine.stop()` from running."""
        self._since_yield = 0
        await asyncio.sleep(0)

    def enqueue_sync(self, calls: Sequence[Call[Any]], conn: Any = None) -> list[Insertion]:
        """`enqueue` for code without an event loop."""
        conn = one_connection(calls, conn)
        if conn is None:
            return self._sync_bridge.call(lambda: self.enqueue(calls))
        connection = self._connection
        tasks = [call.to_new_task(connection.origin) for call in calls]
        self._sync_bridge.call(lambda: self._before_commit(tasks))
        # The caller's connection belongs to the caller's thread, so the insert runs here.
        with connection.producer_span(tasks) as span:
            inserted = connection.store.insert_on_sync(conn, span.tasks) if tasks else []
            span.note_stored(inserted)
        if any(map(self._warning.is_of_interest, tasks)):
            self._sync_bridge.call(lambda: self._warning.consider(connection.store, tasks, inserted))
        return inserted

    async def _before_commit(self, tasks: Sequence[NewTask]) -> None:
        await self._connection.store.announce_queues({task.queue for task in tasks})
        self._announcer.expect_commit()

    async def open_group(self, name: str, calls: Sequence[Call[Any]], then: Call[Any] | None) -> OpenedGroup:
        """Store the tasks of a group, and the task that follows them, all or none."""
        together = listed_calls([*calls, *([then] if then is not None else [])])
        for call in together:
            if call.placement.conn is not None:
                raise OptionError("conn cannot be given for tasks of a group: the group is a transaction of its own")
        await self._connection.declare()
        await self._yield_to_loop()
        origin = self._connection.origin
        tasks = [call.to_new_task(origin) for call in together]
        name = check_name(name, "a group's name")
        with self._connection.producer_span(tasks) as span:
            opened = await self._connection.store.open_group(
                NewGroup(
                    name=name,
                    tasks=tuple(span.tasks[: len(calls)]),
                    then=_follower(span.tasks) if then is not None else None,
                )
            )
            span.note_stored(opened.all_insertions)
        await self._announce(tasks, opened.all_insertions)
        return opened

    async def open_flow(self, flow: NewGroup, conn: Any = None) -> OpenedGroup:
        """Store the steps of a flow, all or none. With `conn`, they are part of the caller's transaction."""
        conn = driver_connection(conn)
        await self._connection.declare()
        store = self._connection.store
        if conn is None:
            await self._yield_to_loop()
            with self._connection.producer_span(flow.tasks) as span:
                opened = await store.open_group(_traced(flow, span))
                span.note_stored(opened.insertions)
            await self._announce(flow.tasks, opened.insertions)
            return opened
        await self._before_commit(flow.tasks)
        with self._connection.producer_span(flow.tasks) as span:
            opened = await store.open_group_on(conn, _traced(flow, span))
            span.note_stored(opened.insertions)
        await self._warning.consider(store, flow.tasks, opened.insertions)
        return opened

    def open_flow_sync(self, flow: NewGroup, conn: Any = None) -> OpenedGroup:
        """`open_flow` for code without an event loop."""
        conn = driver_connection(conn)
        if conn is None:
            return self._sync_bridge.call(lambda: self.open_flow(flow))
        self._sync_bridge.call(lambda: self._before_commit(flow.tasks))
        # The caller's connection belongs to the caller's thread, so the insert runs here.
        with self._connection.producer_span(flow.tasks) as span:
            opened = self._connection.store.open_group_on_sync(conn, _traced(flow, span))
            span.note_stored(opened.insertions)
        if any(map(self._warning.is_of_interest, flow.tasks)):
            self._sync_bridge.call(
                lambda: self._warning.consider(self._connection.store, flow.tasks, opened.insertions)
            )
        return opened

    async def _announce(self, tasks: Sequence[NewTask], inserted: Sequence[Insertion]) -> None:
        self._connection.note_accepted(task for task, one in zip(tasks, inserted, strict=True) if one.created)
        if self._announcer.announce_inserted(tasks, inserted):
            await asyncio.sleep(0)  # the hint leaves first, as in `enqueue_one`
        await self._warning.consider(self._connection.store, tasks, inserted)


def _announce_needed(announcer: Announcer, calls: Sequence[Call[Any]]) -> None:
    """Announce the kinds of the tasks in `after` once more: the insert has locked these tasks for a moment, and a claim
    at that moment has skipped them."""
    needed = [entry.kind for call in calls for entry in call.placement.after if isinstance(entry, Handle)]
    kinds = Counter(kind for kind in needed if kind is not None)
    if kinds:
        announcer.announce_ready({(kind, None, KIND_DEFAULT): count for kind, count in kinds.items()})


def _traced(flow: NewGroup, span: ProducerSpan) -> NewGroup:
    """The flow with the tasks of `span`, whose metadata has the trace."""
    return flow if span.tasks is flow.tasks else msgspec.structs.replace(flow, tasks=tuple(span.tasks))


def _follower(tasks: Sequence[NewTask]) -> NewTask:
    """The task that follows a group: the last of `tasks`. It is always a new task: a live task with its key would not
    wait for the group, and a member that it replaced would wait for itself. Raises KeyConflict if it has the key of a
    member."""
    *members, then = tasks
    if then.key is not None and any((then.kind, then.key) == (member.kind, member.key) for member in members):
        raise KeyConflict(f"`then` has the key {then.key!r} of one of the group's own tasks; use another key", 0)
    return msgspec.structs.replace(then, on_conflict="raise") if then.on_conflict == "return" else then
