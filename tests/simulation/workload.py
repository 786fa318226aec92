"""Who enqueues tasks, and who operates on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import task_functions as bodies
from tests.simulation.task_functions import Script

from synergon.call import Call
from synergon.errors import SynergonError
from synergon.model.lifecycle import State

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

UNTIL: Final = 20.0
QUEUES: Final = ("default", "side")
ENDS: Final = ("return", "return", "return", "fail", "snooze", "retry_after", "discard", "cancel")


Act = Callable[["Process"], Coroutine[Any, Any, None]]


class Workload:
    """Tasks come in bursts; operators interfere. Each does so through some process, and shares its troubles."""

    quiet_at = 46.0
    """When the slowest statement of a process that stood still for longest has arrived."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chances = world.chances
        self._pause_seconds = self._chances.choice((0.3, 1.0, 2.0))
        self._poison = self._chances.choice((0.0, 0.0, 0.05))
        self._operations: tuple[Act, ...] = (
            self._cancel,
            self._cancel,
            self._retry,
            self._reschedule,
            self._delete,
            self._set_priority,
            self._pause,
            self._resume,
        )

    async def run(self) -> None:
        """Work until the time is over, then open all queues."""
        world, chances = self._world, self._chances
        while world.loop.time() < UNTIL:
            await asyncio.sleep(chances.expovariate(1 / self._pause_seconds))
            if world.processes:
                process = chances.choice(world.processes)
                act = self._enqueue if chances.random() < 0.6 else chances.choice(self._operations)
                process.start(self._try(act, process))
        await asyncio.sleep(max(self.quiet_at - world.loop.time(), 0))
        if not world.processes:
            world.start_process()
        await self.open_queues(world.processes[0])

    async def open_queues(self, process: Process) -> None:
        """Whatever was paused goes on."""
        self._world.apply(process, "resume", (QUEUES,))

    @staticmethod
    async def _try(act: Act, process: Process) -> None:
        with suppress(SynergonError):  # a caller would see it
            await act(process)

    # ------------------------------------------------------------ producers

    async def _enqueue(self, process: Process) -> None:
        calls = [self._new_call() for _ in range(self._chances.choice((1, 1, 2, 5)))]
        first = await process.enqueue(calls)
        if self._chances.random() < 0.3:
            await process.wait_for(first)

    def _new_call(self) -> Call[Any]:
        kind = self._chances.choice(sorted(self._world.kinds))
        options = self._options()
        call = bodies.engine.call(kind, script=self._script())
        return call.with_options(**options) if options else call

    def _options(self) -> dict[str, Any]:
        chances = self._chances
        options: dict[str, Any] = {}
        if chances.random() < 0.3:
            options["priority"] = chances.choice((-1, 1, 5))
        if chances.random() < 0.2:
            options["delay"] = chances.choice((0.5, 2.0, 6.0))
        if chances.random() < 0.15:
            options["expires_in"] = chances.choice((0.5, 3.0))
        if chances.random() < 0.2:
            options["key"] = f"key-{chances.randrange(3)}"
            options["on_conflict"] = chances.choice(("return", "replace", "raise"))
        return options

    def _script(self) -> Script:
        chances = self._chances
        return Script(
            seconds=chances.choice((0.0, 0.05, 0.5, 2.5, 4.5)),
            end="crash" if chances.random() < self._poison else chances.choice(ENDS),
            children=chances.choice((0, 0, 0, 2)),
            failures=chances.choice((0, 0, 0, 1)),
        )

    # ------------------------------------------------------------ operators

    def _some_task(self, state: State | None = None) -> int:
        """Any task; now and then one that is in this state."""
        seen = self._world.auditor.seen
        wanted = sorted(task_id for task_id in seen if seen[task_id].state is state and self._chances.random() < 0.5)
        return self._chances.choice(wanted or sorted(seen) or [0])

    async def _cancel(self, process: Process) -> None:
        await process.cancel(self._some_task(State.RUNNING))

    async def _retry(self, process: Process) -> None:
        await process.retry(self._some_task())

    async def _delete(self, process: Process) -> None:
        await process.delete(self._some_task())

    async def _reschedule(self, process: Process) -> None:
        delay_seconds = self._chances.choice((0.0, 1.0, 3.0))
        await process.reschedule(self._some_task(), delay_seconds)

    async def _set_priority(self, process: Process) -> None:
        await process.set_priority(self._some_task(), self._chances.randrange(9))

    async def _pause(self, process: Process) -> None:
        await process.pause(self._chances.choice(QUEUES))

    async def _resume(self, process: Process) -> None:
        await process.resume(self._chances.choice(QUEUES))
