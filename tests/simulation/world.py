"""One world: a store, some processes on it, their workload, and what goes wrong, all of it from one seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.simulation import task_functions as bodies
from tests.simulation.auditor import Auditor
from tests.simulation.chaos import Chaos
from tests.simulation.executions import Executions
from tests.simulation.process import HostClock, Process
from tests.simulation.statistics_auditor import StatisticsAuditor
from tests.simulation.virtual_loop import OUTSIDE, VirtualLoop
from tests.simulation.waiting_auditor import Patience
from tests.simulation.workload import Workload

from synergon.errors import SynergonError
from synergon.model.clock import Clock
from synergon.model.lifecycle import FINAL
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.model.schedules import NewSchedule
from synergon.stores.memory import MemoryStore
from synergon.stores.memory.session import Session
from synergon.stores.memory.tables import Tables
from synergon.task import AnyTask

STANDSTILL_SECONDS: Final = 30.0
"""How long nothing may move, once nothing goes wrong any more, while tasks have not ended."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a world."""

    seed: int
    broken: str | None
    """The first promise that was not kept."""
    events: list[str]
    tasks: int
    statements: int


class WatchedStore(MemoryStore):
    """Tells when the first half of an exchange is done, which is looked at as a statement by itself."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.on_finished: Callable[[list[Verdict]], None] = lambda _: None

    async def _finish(self, session: Session, outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        verdicts = await super()._finish(session, outcomes)
        self.on_finished(verdicts)
        return verdicts


class World:
    """Lives for about two virtual minutes, or until a promise is broken."""

    def __init__(self, seed: int, chances: random.Random | None = None) -> None:
        self.seed = seed
        self.loop = VirtualLoop()
        self.chances = chances or random.Random(seed)
        self.kinds: Mapping[str, AnyTask] = bodies.engine.kinds
        self.clock = HostClock(self.loop, self.chances)
        self.processes: list[Process] = []
        self.can_see_deaths = self.chances.random() < 0.5
        """One host, whose processes see each other die; else each is on a host of its own."""
        self.clock_stepped_at = -1000.0
        self.events: list[str] = []
        self.statements = 0
        self._next_pid = 1
        self._dead: set[int] = set()
        self._broken: str | None = None
        self._over = asyncio.Event()
        self.store = WatchedStore(self.clock)
        self.executions = Executions(self)
        self.statistics = StatisticsAuditor(self)

    # ------------------------------------------------------------ from the beginning to the end

    def run(self) -> Report:
        """Let it live."""
        self.loop.run(self._live())
        for complaint in self.loop.complaints:
            self.fail(complaint)
        tasks = len(self.auditor.seen)
        return Report(self.seed, self._broken, self.events, tasks, self.statements)

    async def _live(self) -> None:
        await self.store.open()
        self.auditor = self.make_auditor()
        self.populate()
        for part in self.parts():
            self.loop.create_task(part).add_done_callback(self._check_part)
        await self._over.wait()

    @property
    def tables(self) -> Tables:
        """What the store holds."""
        assert self.store._tables is not None
        return self.store._tables

    def make_auditor(self) -> Auditor:
        """Who looks at every statement."""
        return Auditor(self, self.tables)

    def populate(self) -> None:
        """The first processes."""
        for _ in range(self.chances.choice((1, 2, 2, 3, 3))):
            self.start_process()

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        """Who is at work in this world, beside its processes."""
        return [Patience(self).run(), self.live_through(Chaos(self), Workload(self))]

    def _check_part(self, part: asyncio.Task[None]) -> None:
        if not part.cancelled() and part.exception() is not None:
            self.fail(f"the simulator itself is broken: {part.exception()!r}")

    async def live_through(self, chaos: Chaos, workload: Workload) -> None:
        """Let things happen, then heal, then see that everything ends."""
        await asyncio.gather(chaos.run(), workload.run())
        while left := [task_id for task_id, seen in self.auditor.seen.items() if seen.state not in FINAL]:
            await asyncio.sleep(1)
            if self.loop.time() - max(self.auditor.moved_at.values()) > STANDSTILL_SECONDS:
                told = (f"{task_id} ({self.auditor.seen[task_id].state})" for task_id in left)
                self.fail(f"tasks that never ended: {', '.join(told)}")
                return
        await self._stop_all()
        self.statistics.check()
        self._over.set()

    async def _stop_all(self) -> None:
        """A node that stops in order leaves nothing behind."""
        for process in list(self.processes):
            row_id = process.row_id
            await asyncio.wait([process.start(process.stop(1.0))], timeout=60)
            left = {record.id for record in await self.store.nodes()}
            if row_id is not None and (process.is_alive or row_id in left):
                self.fail(f"{process} was to stop, and its row is still there")

    def fail(self, what: str) -> None:
        """A promise was broken: the world ends here."""
        if self._broken is None:
            self._broken = what
            self.log(f"BROKEN: {what}")
            self._over.set()

    def log(self, event: str) -> None:
        """Remember what happened."""
        self.events.append(f"{self.loop.time():9.4f}  {event}")

    # ------------------------------------------------------------ processes

    def next_pid(self) -> int:
        """The number of the process that starts now."""
        pid, self._next_pid = self._next_pid, self._next_pid + 1
        self.log(f"process {pid} starts")
        return pid

    def start_process(self) -> None:
        """Another process with a node."""
        pid = self.next_pid()
        settings = replace(
            bodies.engine.settings,
            name=f"node-{pid}",
            concurrency=self.chances.choice((1, 2, 3, 4)),
            threads=1 + pid % 3,
            child_processes=4,
            lease=6.0,
        )
        self.processes.append(Process(self, pid, settings, random.Random(self.chances.random())))

    def schedules_of(self, process: Process) -> Mapping[str, NewSchedule]:
        """What the code of this process declares."""
        return {}

    def process_died(self, process: Process, how: str) -> None:
        """Somebody starts another one soon."""
        self.log(f"{process} {how}")
        self.statistics.ended(process, how)
        self.executions.end_all_of(process)
        self.processes.remove(process)
        self._dead.add(process.pid)
        self.loop.call_later(2 * self.chances.random(), self.replace_process, process, context=OUTSIDE.copy())

    def replace_process(self, dead: Process) -> None:
        """Start another one in place of this."""
        self.start_process()

    def is_gone(self, pid: int) -> bool:
        """Whether a process can see that this one is dead."""
        return self.can_see_deaths and pid in self._dead

    # ------------------------------------------------------------ the store

    def apply(self, process: Process, name: str, args: tuple[Any, ...]) -> tuple[Any, Exception | None]:
        """Execute a statement, and have it looked at."""
        self.statements += 1
        if name == "exchange":
            self.store.on_finished = lambda verdicts: self._applied(process, "finish", args[:1], verdicts)
        try:
            answer = at_once(self._call(name, args))
        except SynergonError as error:
            self.auditor.applied(process, name, args, None, is_done=False)
            return None, error
        finally:
            self.store.on_finished = lambda _: None
        if name == "exchange":
            self._applied(process, "claim", args[1:], answer[1])
        else:
            self._applied(process, name, args, answer)
        return answer, None

    def _applied(self, process: Process, name: str, args: tuple[Any, ...], answer: Any) -> None:
        self.auditor.applied(process, name, args, answer, is_done=True)

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "renew":
            return self._renew(*args)
        if name == "dependencies":
            return self.store.dependencies(args[0], with_results=args[1])
        if name == "declare_retention":
            return self.store.declare_retention(*args[:2], is_default=args[2])
        return getattr(self.store, name)(*args)

    async def _renew(self, node_id: str, lease: int, published: bytes | None) -> bool:
        return await (await self.store.keeper()).renew(node_id, lease, published)


def at_once(statement: Any) -> Any:
    """What a statement of the memory store returns, which never waits for anything."""
    try:
        statement.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the memory store has waited for something")
