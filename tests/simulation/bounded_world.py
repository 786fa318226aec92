"""A world whose nodes bound their queues and a provider: each node has bounds of its own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final

from tests.simulation.auditor import Auditor
from tests.simulation.chaos import Chaos
from tests.simulation.executions import Execution, Executions
from tests.simulation.process import Process
from tests.simulation.task_functions import RETRY, Script, perform
from tests.simulation.waiting_auditor import Patience
from tests.simulation.workload import QUEUES, Workload
from tests.simulation.world import World, at_once

from synergon import Context, Engine
from synergon.call import Call
from synergon.model.claims import ClaimRequest
from synergon.model.requirements import UNIT, provider_bound, queue_bound

SLOTS: Final = 2

engine: Final = Engine("memory://", name="bounded")
pool: Final = engine.provider("pool", servers=["any"], capacity=None, slots=SLOTS, health=None)


@engine.task(retry=RETRY, timeout=4)
async def polite(script: Script, ctx: Context) -> int:
    """Bounded by its queue alone."""
    return await perform(script, ctx)


@pool.task(retry=RETRY, timeout=4)
async def served(script: Script, ctx: Context) -> int:
    """Bounded by its queue and its provider."""
    return await perform(script, ctx)


@pool.task(retry=RETRY, timeout=4)
async def drawn(script: Script, ctx: Context) -> int:
    """Of the provider, too."""
    return await perform(script, ctx)


class BoundedWorld(World):
    """The faults of every world, and bounds that hold through all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"bounded {seed}"))
        self.kinds = engine.kinds
        self.executions = BoundedExecutions(self)

    def make_auditor(self) -> Auditor:
        return BoundAuditor(self, self.tables)

    def populate(self) -> None:
        at_once(self.store.declare(*engine._registry.declarations()))
        super().populate()

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [BoundPatience(self).run(), self.live_through(Chaos(self), BoundWorkload(self))]

    def start_process(self) -> None:
        pid = self.next_pid()
        settings = replace(
            engine.settings,
            name=f"node-{pid}",
            concurrency=self.chances.choice((2, 3, 6)),
            queues={queue: self.chances.choice((1, 2, None)) for queue in QUEUES},
            child_processes=6,
            lease=6.0,
        )
        self.processes.append(Process(self, pid, settings, random.Random(self.chances.random())))

    def queue(self, task_id: int) -> str:
        """The queue of a task."""
        return self.auditor.row(task_id).task.queue

    def bounds(self, process: Process, kind: str, queue: str) -> dict[str, int]:
        """How many may run there at once, by what they are counted under."""
        of_queue = (process.settings.queues or {}).get(queue)
        found = {} if of_queue is None else {queue_bound(queue): of_queue}
        return found if self.kinds[kind].provider is None else found | {provider_bound("pool"): SLOTS}

    def in_use(self, process: Process) -> Counter[str]:
        """How many bodies run there, by what bounds them."""
        return Counter(
            name
            for execution in self.executions.live
            if execution.process is process
            for name in self.bounds(process, execution.kind, self.queue(execution.task_id))
        )


class BoundedExecutions(Executions):
    """No body begins beyond a bound of its node."""

    _world: BoundedWorld

    def _check(self, new: Execution) -> None:
        super()._check(new)
        in_use = self._world.in_use(new.process)
        for name, bound in self._world.bounds(new.process, new.kind, self._world.queue(new.task_id)).items():
            if in_use[name] >= bound:
                self._world.fail(f"{new} is one too many for the bound on {name}, which is {bound}")


class BoundWorkload(Workload):
    """Tasks of all kinds in both queues."""

    def _new_call(self) -> Call[Any]:
        kind = self._chances.choice(sorted(engine.kinds))
        options = {**self._options(), "queue": self._chances.choice(QUEUES)}
        return engine.call(kind, script=self._script()).with_options(**options)


class BoundAuditor(Auditor):
    """A claim takes the first tasks in order that no bound of its node holds back."""

    _world: BoundedWorld

    def _first_of(self, eligible: list[int], request: ClaimRequest) -> list[int]:
        process = self.owners[request.node_id]
        free = Counter({name: amount // UNIT for name, amount in request.free.items()})
        kind_requests = {kind_request.kind: kind_request.count for kind_request in request.kinds}
        taken: list[int] = []
        for task_id in eligible:
            task = self.row(task_id).task
            bounds = self._world.bounds(process, task.kind, task.queue)
            if all(free[name] > 0 for name in bounds) and kind_requests.get(task.kind, 0) > 0:
                if len(taken) == request.limit:
                    break
                kind_requests[task.kind] -= 1
                free.subtract(bounds.keys())
                taken.append(task_id)
        return taken

    def _note_leftovers(self, process: Process, request: ClaimRequest, left: set[int]) -> None:
        """Whether a node comes back for what a bound held back is looked at by the patience."""


class BoundPatience(Patience):
    """A task that a bound holds back on a node waits for something there."""

    _world: BoundedWorld

    def _who_is_free(self, task_id: int) -> Process | None:
        world, task = self._world, self._world.auditor.row(task_id).task
        if not world.auditor.is_open(world.auditor.row(task_id)):
            return None
        free = [
            process
            for process in world.processes
            if process.is_healthy
            and self._has_room(process, task.kind)
            and all(
                world.in_use(process)[name] < bound
                for name, bound in world.bounds(process, task.kind, task.queue).items()
            )
        ]
        return min(free, key=lambda process: process.troubled_until, default=None)
