"""How tasks come into the store, and how whoever could start them is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from synergon.client.call_lists import listed_calls, one_connection
from synergon.client.cooperative import made_in_chunks
from synergon.client.must_await import must_await
from synergon.client.operations import Operations
from synergon.client.sync_bridge import IDLE_HOOK_GUARD, SyncBridge
from synergon.client.unrunnable_warning import UnrunnableWarning
from synergon.handle import Handle
from synergon.model.lifecycle import State
from synergon.model.tasks import Insertion, NewTask
from synergon.peering.router import ReadyGroupName
from synergon.providers.registry import Registry
from synergon.stores.base import Store
from synergon.task import AnyTask, Call

if TYPE_CHECKING:
    from synergon.engine import Engine
    from synergon.node.node import Node
    from synergon.peering.peers import Peers

Value = TypeVar("Value")

READY: Final = State.READY  # to look a member up takes longer than to compare it, and every enqueue does


class Enqueuing(Operations):
    """The part of an Engine that stores calls, all of them or none, and tells the node here, and peers, of new work."""

    registry: Registry
    outlook: UnrunnableWarning
    portal: SyncBridge
    logger: logging.Logger
    is_in_child: bool
    """This is a child process that runs a body, and a store in memory is in another one."""
    _node: Node | None
    _peers: Peers | None
    name_in_code: Final = "engine"
    """How a program names it, for messages."""

    @property
    def origin(self) -> str | None:
        """By which id this engine is told of the end of what it enqueues."""
        return None if self._peers is None else self._peers.id

    async def _declare(self) -> None:
        """Tell the store of limits and providers that were made since it was last told."""
        if self.is_in_child or self.registry.is_declared:
            return
        limits, providers = self.registry.declarations()
        if limits or providers:
            await self.store.declare(limits, providers)
        self.registry.is_declared = True

    @must_await(sync="enqueue_sync")
    async def enqueue(self, calls: Iterable[Call[Any]], *, conn: Any = None) -> list[Handle[Any]]:
        """Store all calls or none; returns when they are durable, or, with `conn`, part of the caller's transaction."""
        listed = listed_calls(calls)
        conn = one_connection(listed, conn)
        await self._declare()
        if (leash := IDLE_HOOK_GUARD.get()) is not None:
            await leash.give_way()
        origin = self.origin
        tasks = await made_in_chunks(lambda call: call.to_new_task(origin), listed)
        if conn is not None:
            await self._announce_queues(tasks)
            inserted = await self.store.insert_on(conn, tasks) if tasks else []
            self._let_watch()
        else:
            inserted = await self._insert(tasks) if tasks else []
        await self.outlook.consider(self.store, tasks, inserted)
        pairs = list(zip(listed, inserted, strict=True))
        return await made_in_chunks(lambda pair: self._handle(*pair), pairs)

    def store_for(self, loop: asyncio.AbstractEventLoop | None) -> Store:
        """`store`, for a caller that has asked already which event loop runs."""
        raise NotImplementedError

    async def enqueue_one(self, call: Call[Value], loop: asyncio.AbstractEventLoop | None = None) -> Handle[Value]:
        """`enqueue` for a single call; `loop` is the event loop that runs, if the caller knows it."""
        if call.placement.conn is not None:
            handles: list[Handle[Value]] = await self.enqueue([call])
            return handles[0]
        if not self.registry.is_declared:
            await self._declare()
        task = call.to_new_task(self.origin)
        try:
            inserted = await self.store_for(loop).insert((task,))
        except asyncio.CancelledError:
            self._announce_doubtful((task,))
            raise
        if inserted[0].state is READY and task.expires_in is None:  # the usual case, and the hottest path
            if self._announce_ready({(task.kind, task.queue, task.requirements): 1}):
                await asyncio.sleep(0)  # the task can start elsewhere before the caller goes on here
        else:
            self._announce((task,), inserted)
        if task.requirements or call.task_type is None:
            await self.outlook.consider(self.store, (task,), inserted)
        return self._handle(call, inserted[0])

    async def _insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        try:
            inserted = await self.store.insert(tasks)
        except asyncio.CancelledError:
            self._announce_doubtful(tasks)
            raise
        self._announce(tasks, inserted)
        return inserted

    async def enqueue_tasks(self, tasks: Sequence[NewTask], task_type: AnyTask) -> list[Handle[Any]]:
        """Store what is not made from a call alone."""
        await self._declare()
        inserted = await self._insert(tasks)
        await self.outlook.consider(self.store, tasks, inserted)
        return [
            Handle(cast("Engine", self), found.id, created=found.created, task_type=task_type, is_ours=found.created)
            for found in inserted
        ]

    def enqueue_sync(self, calls: Iterable[Call[Any]], *, conn: Any = None) -> list[Handle[Any]]:
        """`enqueue` for code without an event loop."""
        listed = listed_calls(calls)
        conn = one_connection(listed, conn)
        if conn is None:
            return self.portal.call(lambda: self.enqueue(listed))
        tasks = [call.to_new_task(self.origin) for call in listed]
        self.portal.call(lambda: self._announce_queues(tasks, watch=True))
        # The caller's connection belongs to the caller's thread, so this happens here.
        inserted = self.store.insert_on_sync(conn, tasks) if tasks else []
        if any(map(self.outlook.is_of_interest, tasks)):
            self.portal.call(lambda: self.outlook.consider(self.store, tasks, inserted))
        return [self._handle(call, insertion) for call, insertion in zip(listed, inserted, strict=True)]

    async def _announce_queues(self, tasks: Sequence[NewTask], *, watch: bool = False) -> None:
        await self.store.announce_queues({task.queue for task in tasks})
        if watch:
            self._let_watch()

    def _let_watch(self) -> None:
        """Tasks come when the caller commits, and not every store tells then: nodes should look often for a while."""
        if self.store.capabilities.listens:
            return
        if self._node is not None:
            self._node.watch()
        if self._peers is not None:
            self._peers.tell_control()

    def enqueue_one_sync(self, call: Call[Value]) -> Handle[Value]:
        """`enqueue_one` for code without an event loop."""
        if call.placement.conn is not None:
            return self.enqueue_sync([call])[0]
        return self.portal.call(lambda: self.enqueue_one(call))

    def _handle(self, call: Call[Value], insertion: Insertion) -> Handle[Value]:
        created = insertion.created
        return Handle(cast("Engine", self), insertion.id, created=created, task_type=call.task_type, is_ours=created)

    def _announce_doubtful(self, tasks: Sequence[NewTask]) -> None:
        """Whoever stored these was cancelled meanwhile, and they may be stored all the same: nobody else will tell."""
        self._announce(tasks, [Insertion(0, created=True, state=State.READY) for _ in tasks])
        self._announce_later({task.kind for task in tasks})

    def _announce(self, tasks: Sequence[NewTask], inserted: Sequence[Insertion]) -> None:
        """Wake whoever could start these: the node here, and peers."""
        ready: dict[ReadyGroupName, int] = {}
        later: set[str] = set()
        for task, insertion in zip(tasks, inserted, strict=True):
            if insertion.state == State.READY:
                lane = (task.kind, task.queue, task.requirements)
                ready[lane] = ready.get(lane, 0) + 1
            if task.expires_in is not None or insertion.state == State.SCHEDULED:
                later.add(task.kind)
        self._announce_ready(ready)
        if later:
            self._announce_later(later)
