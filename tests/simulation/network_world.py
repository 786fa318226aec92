"""A world whose processes talk to each other over a PipeNetwork, all of it from one seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, cast

from tests.simulation import task_functions as bodies
from tests.simulation.network_faults import CLIMATES, NetworkChaos
from tests.simulation.process import HostClock, Process
from tests.simulation.simulated_engine import Citizen
from tests.simulation.start_latency_auditor import Promptness
from tests.simulation.waiting_auditor import Patience
from tests.simulation.wire import address_of
from tests.simulation.workload import QUEUES, Workload
from tests.simulation.world import World

from synergon.errors import StoreUnavailable, SynergonError
from synergon.model.lifecycle import State
from synergon.peering.pipe import PipeNetwork
from synergon.task import AnyTask

NOTHING: Final[Mapping[str, AnyTask]] = {}
"""What a producer runs."""


class NetworkWorld(World):
    """One worker for everything, some for a part, and producers that run nothing and wait for results elsewhere."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"network {seed}"))
        self.climate = self.chances.choice(CLIMATES)
        self.network = PipeNetwork(self.chances.randrange(2**32), clock=HostClock(self.loop))
        self.wire_chances = random.Random(self.chances.random())
        self.sweep_seconds = self.chances.choice(self.climate.sweep_choices)
        self.deaths: list[float] = []
        self.log(f"a {self.climate.name} world, swept every {self.sweep_seconds:g} s")

    @property
    def citizens(self) -> list[Citizen]:
        """Its processes."""
        return cast("list[Citizen]", self.processes)

    def populate(self) -> None:
        self._start(self.kinds)
        for _ in range(self.chances.choice((0, 1, 2))):
            self._start(self._some_kinds())
        for _ in range(self.chances.choice((0, 1, 1, 2))):
            self._start(NOTHING)

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        life = self.live_through(NetworkChaos(self), NetworkWorkload(self))
        return [Patience(self).run(), Promptness(self).run(), life]

    def _some_kinds(self) -> Mapping[str, AnyTask]:
        if self.chances.random() < 0.5:
            return self.kinds
        return {kind: self.kinds[kind] for kind in sorted(self.kinds) if self.chances.random() < 0.5}

    def _start(self, kinds: Mapping[str, AnyTask]) -> None:
        pid = self.next_pid()
        settings = replace(
            bodies.engine.settings,
            name=f"node-{pid}",
            concurrency=self.chances.choice((1, 2, 3, 4)),
            child_processes=4,
            lease=6.0,
            sweep=self.sweep_seconds,
        )
        self.log(f"process {pid} runs {', '.join(kinds) or 'nothing'}")
        self.processes.append(Citizen(self, pid, settings, random.Random(self.chances.random()), kinds))

    def apply(self, process: Process, name: str, args: tuple[Any, ...]) -> tuple[Any, Exception | None]:
        """What a process had asked for that has stopped since is not done: nobody would be left to tell of it."""
        if not process.is_alive and not self.climate.is_deadly:
            return None, StoreUnavailable("nobody waits for it")
        return super().apply(process, name, args)

    def process_died(self, process: Process, how: str) -> None:
        if "stopped" not in how:
            self.deaths.append(self.loop.time())
        super().process_died(process, how)

    def start_process(self) -> None:
        self._start(self.kinds)

    def replace_process(self, dead: Process) -> None:
        self._start(dead.kinds)

    def is_listening(self, address: str) -> bool:
        """Whether a process is there, be it unreachable or still."""
        return any(address_of(process.pid) == address for process in self.processes)


class NetworkWorkload(Workload):
    """The same work and the same operators, through engines alone; and more that goes from one process to another."""

    def __init__(self, world: NetworkWorld) -> None:
        super().__init__(world)
        self.quiet_at = world.climate.quiet_at
        if not world.climate.is_deadly:
            self._poison = 0.0
        self._operations += (self._cancel, self._start_over, self._lie)

    async def _start_over(self, process: Process) -> None:
        """Cancel what runs, and run it again: what is still under way about the first does not harm the second."""
        task_id = self._some_task(State.RUNNING)
        await process.cancel(task_id)
        await asyncio.sleep(self._chances.choice((0.1, 1.0)))
        await process.retry(task_id)

    async def _lie(self, process: Process) -> None:
        """Say that somebody wants a task cancelled which nobody does; a hint decides nothing."""
        task_id = self._some_task(State.RUNNING)
        peers = cast("Citizen", process).engine.peers
        if peers is None:
            return
        for other in self._world.processes:
            if other.node is not None and other is not process:
                peers.send_cancel(other.node.id, task_id)

    async def open_queues(self, process: Process) -> None:
        await asyncio.wait([process.start(self._resume_all(process))])

    @staticmethod
    async def _resume_all(process: Process) -> None:
        for queue in QUEUES:
            with suppress(SynergonError):
                await process.resume(queue)
