"""What goes wrong: processes die, stand still and are stopped, clocks step, statements get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.network import CALM, Weather

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

UNTIL: Final = 25.0
CUT: Final = Weather(is_cut=True)

Fault = Callable[["Process"], None]


class Chaos:
    """One fault after the other; some worlds see many, some see none."""

    after_seconds = 12.0
    """How long the last fault may last."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chances = world.chances
        self._rate_seconds = self._chances.choice((1.0, 2.0, 4.0, 100.0))
        self._faults = [fault for fault in self.possible() if self._chances.random() < 0.6]

    def possible(self) -> tuple[Fault, ...]:
        """What may go wrong in this world."""
        return (self._crash, self._pause, self._step_clock, self._storm, self._cut, self._outage, self._stop)

    async def run(self) -> None:
        """Do harm until the time is over, then let everything heal."""
        loop, chances = self._world.loop, self._chances
        while self._faults and loop.time() < UNTIL:
            await asyncio.sleep(min(chances.expovariate(1 / self._rate_seconds), UNTIL))
            if self._world.processes and loop.time() < UNTIL:
                chances.choice(self._faults)(chances.choice(self._world.processes))
        await asyncio.sleep(max(UNTIL - loop.time(), 0) + self.after_seconds)
        self.heal()

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        for process in self._world.processes:
            process.connection.weather = CALM

    def _crash(self, process: Process) -> None:
        process.die("is killed")

    def _stop(self, process: Process) -> None:
        if not process.is_stopping:
            self._world.log(f"{process} is told to stop")
            process.start(process.stop(self._chances.choice((0.0, 0.5, 3.0))))

    def _pause(self, process: Process) -> None:
        if process.is_paused:
            return
        seconds = self._chances.choice((0.5, 4.0, 7.0, 10.0))
        self._world.log(f"{process} stands still for {seconds} s")
        process.is_paused = True
        self._world.executions.excuse(process)
        self._world.loop.call_later(seconds, self._resume, process)

    def _resume(self, process: Process) -> None:
        if process.is_alive:
            self._world.log(f"{process} goes on")
            process.trouble()
            self._world.loop.resume(process)

    def _step_clock(self, process: Process) -> None:
        seconds = self._chances.choice((-5.0, -1.0, 1.0, 5.0, 20.0))
        self._world.log(f"the store's clock steps by {seconds} s")
        self._world.clock.stepped_seconds += seconds
        self._world.clock_stepped_at = self._world.loop.time()
        for each in self._world.processes:
            each.trouble(abs(seconds))

    def _storm(self, process: Process) -> None:
        weather = Weather(
            slow=self._chances.choice((0.0, 0.1, 0.3)),
            lost=self._chances.choice((0.0, 0.1, 0.5)),
            answer_lost=self._chances.choice((0.0, 0.1, 0.3)),
            slowest_seconds=self._chances.choice((0.5, 3.0, 9.0)),
        )
        self._change(process, weather, self._chances.uniform(0.5, 8))

    def _cut(self, process: Process) -> None:
        self._change(process, CUT, self._chances.choice((1.0, 4.0, 7.0, 10.0)))

    def _outage(self, process: Process) -> None:
        seconds = self._chances.choice((0.5, 3.0, 8.0))
        for each in self._world.processes:
            self._change(each, CUT, seconds)

    def _change(self, process: Process, weather: Weather, seconds: float) -> None:
        self._world.log(f"{process} has {weather} for {seconds:.1f} s")
        process.connection.weather = weather
        self._world.loop.call_later(seconds, self._calm, process, weather)

    def _calm(self, process: Process, weather: Weather) -> None:
        if process.connection.weather is weather:
            process.connection.weather = CALM
            process.trouble()
