"""One simulated process: its life, its sense of time, and the node in it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from tests.simulation.executor import SimulatedExecutor
from tests.simulation.network import Connection
from tests.simulation.virtual_loop import OWNER, Owner

from synergon.call import Call
from synergon.client.results import Waiters
from synergon.errors import StoreUnavailable, TaskDeleted
from synergon.model.nodes import ProcessIdentity
from synergon.model.schedules import NewSchedule
from synergon.model.tasks import NewTask, Reprioritizing, Rescheduling
from synergon.node.duties.sweep import SHORTEST_SECONDS as SWEEP_SECONDS
from synergon.node.node import Node
from synergon.options.durations import microseconds
from synergon.options.settings import Settings
from synergon.stores.base import Store
from synergon.task import AnyTask

if TYPE_CHECKING:
    from tests.simulation.world import World

LOGGER: Final = logging.getLogger("tests.simulation.node")
LOGGER.propagate = False
LOGGER.addHandler(logging.NullHandler())

EPOCH_MICROSECONDS: Final = 1_700_000_000_000_000


class HostClock:
    """The clock of the one host that the database runs on; operators may step it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chances: random.Random | None = None) -> None:
        self._loop = loop
        self._chances = chances or random.Random(0)
        self.stepped_seconds = 0.0

    def monotonic(self) -> float:
        return self._loop.time()

    def wall(self) -> int:
        return EPOCH_MICROSECONDS + round((self._loop.time() + self.stepped_seconds) * 1_000_000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def chance(self) -> float:
        return self._chances.random()


class Process(Owner):
    """A node and everything it has started. When it dies, all of that stops where it is."""

    def __init__(self, world: World, pid: int, settings: Settings, chances: random.Random) -> None:
        super().__init__()
        self.world = world
        self.pid = pid
        self.settings = settings
        self.clock = HostClock(world.loop, chances)
        self.identity = ProcessIdentity(host="host", boot_id="boot", pid_namespace="", pid=pid, started=float(pid))
        self.connection = Connection(self)
        self.executor = SimulatedExecutor(self)
        self.waiters = Waiters(self.store, self.clock, SWEEP_SECONDS)
        self.waits_for: set[int] = set()
        """The tasks whose ends somebody in the process waits for."""
        self.is_stopping = False
        self.troubled_until = 0.0
        """When something last went wrong for it."""
        self.busy_at = 0.0
        """When a body last began or ended there."""
        self._context = contextvars.Context()
        self._context.run(OWNER.set, self)
        self.node: Node | None = None
        self.start(self._begin())

    def __str__(self) -> str:
        return f"process {self.pid}"

    @property
    def store(self) -> Store:
        """The store as this process sees it."""
        return cast(Store, self.connection)

    @property
    def is_healthy(self) -> bool:
        """Whether it should be working."""
        node = self.node
        return self.is_alive and not self.is_paused and not self.is_stopping and node is not None

    @property
    def row_id(self) -> str | None:
        """Under which it is in the node table."""
        return None if self.node is None else self.node.id

    @property
    def kinds(self) -> Mapping[str, AnyTask]:
        """What its node runs."""
        return self.world.kinds

    @property
    def schedules(self) -> Mapping[str, NewSchedule]:
        """What its code declares."""
        return self.world.schedules_of(self)

    @property
    def sweep_seconds(self) -> float:
        """How often it looks for what nobody told it about."""
        return self.settings.sweep or SWEEP_SECONDS

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do this in the process."""
        return self.world.loop.create_task(work, context=self._context)

    def start_apart(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """The same, with context variables of its own."""
        return self.world.loop.create_task(work, context=self._context.copy())

    async def _begin(self) -> None:
        node = Node(
            self.store,
            self.kinds,
            self.settings,
            self.clock,
            self.executor,
            logging.LoggerAdapter(LOGGER),
            waiters=self.waiters,
            schedules=self.schedules,
            may_exit=True,
        )
        failures = 0
        while True:
            try:
                await node.start()
                break
            except StoreUnavailable:
                failures += 1
                await asyncio.sleep(failures)
        self.node = node
        self.trouble()

    def trouble(self, seconds: float = 0.0) -> None:
        """Something goes wrong for it, for so long."""
        self.troubled_until = max(self.troubled_until, self.world.loop.time() + seconds)

    async def wait_for(self, task_id: int) -> None:
        """Wait until the task has ended, or is deleted."""
        self.waits_for.add(task_id)
        try:
            record = await self.waiters.wait(task_id)
            assert record.state.is_final
        except TaskDeleted:
            pass
        self.waits_for.discard(task_id)

    # ------------------------------------------------------------ what people do through it

    async def enqueue(self, calls: Sequence[Call[Any]]) -> int:
        """Store these; the id of the first."""
        return await self.enqueue_tasks([call.to_new_task() for call in calls])

    async def enqueue_tasks(self, tasks: Sequence[NewTask]) -> int:
        """Store these; the id of the first."""
        inserted = await self.store.insert(tasks)
        if self.node is not None:
            self.node.signals.ready([task.kind for task in tasks])
            self.node.alarm.check_now()
        return inserted[0].id

    async def cancel(self, task_id: int) -> None:
        await self.store.cancel([task_id])
        if self.node is not None:
            self.node.cancel(task_id)

    async def retry(self, task_id: int) -> None:
        await self.store.retry([task_id])

    async def delete(self, task_id: int) -> None:
        await self.store.delete([task_id])

    async def reschedule(self, task_id: int, delay_seconds: float) -> None:
        await self.store.reschedule([Rescheduling(id=task_id, delay=microseconds(delay_seconds))])

    async def set_priority(self, task_id: int, priority: int) -> None:
        await self.store.set_priority([Reprioritizing(id=task_id, priority=priority)])

    async def pause(self, queue: str) -> None:
        await self.store.pause([queue])

    async def resume(self, queue: str) -> None:
        await self.store.resume([queue])

    # ------------------------------------------------------------ the end

    async def stop(self, grace_seconds: float) -> None:
        """Stop the node in order; then the process ends."""
        self.is_stopping = True
        if self.node is not None:
            await self.node.stop(grace_seconds)
        self.die("has stopped")

    def die(self, how: str) -> None:
        """End now, whatever it does."""
        if self.is_alive:
            self.is_alive = False
            self.was_killed = how != "has stopped"
            self.world.process_died(self, how)
