"""What sort of world it is: what may go wrong in it, and how soon tasks start all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.simulation.chaos import Chaos, Fault
from tests.simulation.wire import address_of
from tests.simulation.workload import Workload

from synergon.peering.outbox import MAX_RETRY_SECONDS
from synergon.peering.pipe import NetworkFaults

if TYPE_CHECKING:
    from tests.simulation.network_world import NetworkWorld
    from tests.simulation.process import Process

SOON_SECONDS: Final = 0.25
"""When a task has started at the latest whose hints arrive: some milliseconds, and a fifth of a second for the look
into the node table after somebody who has only just come."""
HEALED_AT: Final = 14.0


@dataclass(frozen=True, slots=True)
class Climate:
    """A sort of world."""

    name: str
    sweep_choices: tuple[float, ...]
    is_prompt_from: float | None = None
    """From when on hints arrive, and tasks start soon."""
    soon_seconds: float = SOON_SECONDS
    is_deadly: bool = False
    """Processes die."""
    quiet_at: float = 26.0
    """When nothing comes any more of what went wrong."""


CALM: Final = Climate("calm", (300.0,), is_prompt_from=1.0)
"""Nothing goes wrong but that processes are stopped: with a sweep that never comes, only hints can start a task."""
MORTAL: Final = Climate("mortal", (20.0,), is_prompt_from=1.0, is_deadly=True)
"""Processes are killed, and hints with them; the network is sound."""
HEALING: Final = Climate("healing", (300.0,), is_prompt_from=HEALED_AT + MAX_RETRY_SECONDS + 2.0)
"""Peers do not reach each other, and know it. When that is over, everything is told that was to be told."""
DEAF: Final = Climate("deaf", (2.0, 3.0), is_prompt_from=1.0, soon_seconds=3.0 + SOON_SECONDS)
"""Not one hint arrives: the sweep finds every task."""
STORMY: Final = Climate("stormy", (1.0, 3.0), is_deadly=True, quiet_at=Workload.quiet_at)
"""Everything goes wrong that can."""

CLIMATES: Final = (CALM, CALM, MORTAL, HEALING, HEALING, DEAF, STORMY, STORMY, STORMY)


class NetworkChaos(Chaos):
    """The faults of a climate, those of the network among them."""

    def __init__(self, world: NetworkWorld) -> None:
        self._climate = world.climate
        self._network = world.network
        super().__init__(world)
        if self._climate is not STORMY:
            self.after_seconds = 0.0
        if self._climate is DEAF:
            self._network.faults = self._chances.choice((NetworkFaults(drop=1.0), NetworkFaults(fail=1.0)))

    def possible(self) -> tuple[Fault, ...]:
        loud = (self._break, self._cut_off, self._cut_one_way, self._refuse)
        if self._climate is CALM:
            return (self._stop,)
        if self._climate is MORTAL:
            return (self._stop, self._crash)
        if self._climate is HEALING:
            return loud
        if self._climate is DEAF:
            return ()
        return (*super().possible(), *loud, self._make_foul)

    def heal(self) -> None:
        super().heal()
        if self._climate is not DEAF:
            self._mend()

    # ------------------------------------------------------------ the network

    def _break(self, process: Process) -> None:
        """Nobody reaches it."""
        self._network.broken.add(address_of(process.pid))
        self._later(f"nobody reaches {process}")

    def _cut_off(self, process: Process) -> None:
        """It neither reaches nor hears anybody."""
        for other in self._others(process):
            self._network.cut |= {(other, address_of(process.pid)), (address_of(process.pid), other)}
        self._later(f"{process} is cut off")

    def _cut_one_way(self, process: Process) -> None:
        """What it says does not arrive, answers included."""
        self._network.cut |= {(address_of(process.pid), other) for other in self._others(process)}
        self._later(f"nobody hears {process}")

    def _refuse(self, process: Process) -> None:
        """Some messages do not get through, and the sender knows."""
        self._network.faults = NetworkFaults(fail=self._chances.choice((0.3, 0.7, 1.0)))
        self._later(f"the network has {self._network.faults}")

    def _make_foul(self, process: Process) -> None:
        """Hints are lost, doubled, late, and overtake each other."""
        self._network.faults = NetworkFaults(
            drop=self._chances.choice((0.0, 0.3, 1.0)),
            fail=self._chances.choice((0.0, 0.3)),
            duplicate=self._chances.choice((0.0, 0.5, 1.0)),
            longest_delay=self._chances.choice((0.0, 0.05, 2.0, 20.0)),
        )
        self._later(f"the network has {self._network.faults}")

    def _others(self, process: Process) -> list[str]:
        return [address_of(other.pid) for other in self._world.processes if other is not process]

    def _later(self, what: str) -> None:
        """It is over after a while; in a healing world all at the same moment."""
        now = self._world.loop.time()
        over_at = HEALED_AT if self._climate is HEALING else now + self._chances.uniform(0.5, 10)
        if over_at <= now:
            self._mend()
            return
        self._world.log(f"{what} until {over_at:.1f}")
        self._world.loop.call_at(over_at, self._mend)

    def _mend(self) -> None:
        self._world.log("the network is sound again")
        self._network.faults = NetworkFaults()
        self._network.broken.clear()
        self._network.cut.clear()
