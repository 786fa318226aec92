"""An arena: one database, producers and nodes that are real processes, and a supervisor who replaces the fallen."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import psutil
from tests.chaos import journal
from tests.chaos.databases import Database
from tests.chaos.evidence import SOON_SECONDS, Event, Evidence, Fall, Outage, Pause
from tests.chaos.faulty_proxies import Door
from tests.chaos.probe import Probe
from tests.cluster.support import REPOSITORY, until
from tests.support import SOON, Pace, free_port

from synergon import Engine, ScheduleRecord

LOOK_SECONDS: Final = 0.05
DRAIN_SECONDS: Final = 120.0
EXPECTED_EXITS: Final = {-signal.SIGKILL, -signal.SIGTERM, 0, 3, 75}
"""Killed, told to end before it could listen, ended in order, no database at its start, lease lost."""
UNEXPECTED_WORDS: Final = (
    "failed and goes on",
    "rejected by the store",
    "cannot be stored",
    "was never retrieved",
    "never awaited",
)
"""What a node says when something happened that nobody thought of."""


class Program:
    """A process that ends when its standard input does."""

    def __init__(self, module: str, log: Path, options: dict[str, Any], environment: dict[str, str]) -> None:
        self.log_path = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(options)],
                cwd=REPOSITORY,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
            )
        self.pid = self._process.pid
        self.killed_at: float | None = None

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self.log_path.read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """To this process."""
        self._process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """To this process and all that it has started, as one who stops a container does."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            for one in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(number)

    def kill(self) -> None:
        """End it without a word, and see that it is gone."""
        self.killed_at = time.monotonic()
        self._process.kill()
        self._process.wait()

    async def end(self) -> int:
        """Ask it to end by closing its standard input; its exit code."""
        self.close_input()
        await until(f"{self.pid} ends", lambda: self.exit_code is not None)
        return self._process.wait()

    def close_input(self) -> None:
        """A producer ends then; a node is gone at once."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def clear_up(self) -> None:
        """Whatever became of it, nothing is left afterwards."""
        if self.exit_code is None:
            self.send_all(signal.SIGCONT)
            self._process.kill()
        self._process.wait()
        self.close_input()


class Arena:
    """Nodes at numbered places. Whoever falls is written down, and replaced if `replaces`."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        *,
        lease: float = 3.0,
        replaces: bool = True,
        schedules: int = 0,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.database = database
        self.lease = lease
        self.nodes: list[Program] = []
        self.doors: list[Door] = []
        self.ports: dict[int, int] = {}
        """Where the node at each place listens, behind its door."""
        self.producers: list[Program] = []
        self.falls: list[Fall] = []
        self.pauses: list[Pause] = []
        self.outages: list[Outage] = []
        self._schedule_count = schedules
        """How many schedules fire twice a second, from the beginning to the end."""
        self._schedules: list[ScheduleRecord] = []
        self.exits: Counter[int] = Counter()
        self.starts = 0
        self.lies = 0
        """How many signed messages nodes have accepted that said what is not so."""
        self.secret = b""
        self._options = {"lease": lease, "sweep": 1, "concurrency": 8, "grace": 0.5, **options}
        self._replaces = replaces
        self._seen: set[int] = set()
        self._supervisor: asyncio.Task[None] | None = None
        self._probes: list[Probe] = []
        self._pace = Pace()
        self._environment = {journal.FOLDER_VARIABLE: str(folder)}

    async def __aenter__(self) -> Self:
        async with Engine(self.database.url) as engine:  # it makes the tables
            self.secret = await engine._store.secret()
            for number in range(self._schedule_count):
                await engine.schedules.create(
                    f"schedule-{number}", engine.call("quick"), every=0.5, overlap="queue", missed="all"
                )
        self.database.make_effects()
        self._pace.__enter__()
        self._probes = [Probe(ask) for ask in self.database.questions()]
        self._supervisor = asyncio.create_task(self._supervise())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._supervisor is not None
        self._supervisor.cancel()
        self._pace.__exit__()
        await self._end_probes()
        for program in [*self.nodes, *self.producers]:
            program.clear_up()
        for door in self.doors:
            await door.close()

    # ------------------------------------------------------------ processes

    async def start_nodes(self, number: int) -> None:
        """Fill so many places, and return when all are nodes."""
        for place in range(len(self.nodes), len(self.nodes) + number):
            self.doors.append(Door())
            await self.doors[place].open()
            self.nodes.append(self._start(place))
        for place in range(len(self.nodes)):
            await self.joined(place)

    async def joined(self, place: int) -> None:
        """Return when there is a node at that place."""
        await until(f"node {place} joins", lambda: self.nodes[place].pid in self.database.nodes().values())

    def _start(self, place: int) -> Program:
        self.ports[place] = port = free_port()
        self.doors[place].lead_to(port)
        self.starts += 1
        address = {"SYNERGON_LISTEN": f"127.0.0.1:{port}", "SYNERGON_ADVERTISE": self.doors[place].address}
        log = self.folder / f"node-{place}.log"
        return Program("tests.chaos.worker", log, self._options, {**self._way(place), **address})

    def start_producer(self, seed: int, **options: Any) -> Program:
        """One that enqueues on and on."""
        settings = {"seed": seed, "a_second": 60, "longest": 2.0, **options}
        number = len(self.producers)
        log = self.folder / f"producer-{number}.log"
        self.producers.append(Program("tests.chaos.producer", log, settings, self._way(number)))
        return self.producers[-1]

    def _way(self, number: int) -> dict[str, str]:
        """How a program gets to the database: the ways take turns."""
        urls = self.database.urls
        return {**self._environment, "SYNERGON_URL": urls[number % len(urls)]}

    async def _supervise(self) -> None:
        while True:
            for place, node in enumerate(self.nodes):
                if node.exit_code is not None and node.pid not in self._seen:
                    self._bury(node)
                    if self._replaces:
                        self.nodes[place] = self._start(place)
            await asyncio.sleep(LOOK_SECONDS)

    def _bury(self, node: Program) -> None:
        assert node.exit_code is not None
        self._seen.add(node.pid)
        self.exits[node.exit_code] += 1
        self.falls.append(Fall(node.pid, node.killed_at or time.monotonic()))
        node.close_input()

    def is_busy(self, node_pid: int) -> bool:
        """Whether bodies run there that have not ended."""
        latest = {line.task_id: line for line in journal.executions(self.folder) if line.node_pid == node_pid}
        return any(line.event in (Event.BEGINS, Event.LIVES) for line in latest.values())

    def unexpected_words(self) -> list[str]:
        """What nodes have said that they should never say."""
        return [words for words in UNEXPECTED_WORDS if any(words in node.log for node in self.nodes)]

    # ------------------------------------------------------------ what is done to them

    def kill(self, place: int) -> None:
        """SIGKILL."""
        self.nodes[place].kill()

    @asynccontextmanager
    async def frozen(self, place: int) -> AsyncIterator[None]:
        """The node and its children stand still meanwhile; not with the lock of a whole file in their hands."""
        node, began = self.nodes[place], time.monotonic()
        node.send_all(signal.SIGSTOP)
        while not await asyncio.to_thread(self.database.may_be_written):
            node.send_all(signal.SIGCONT)
            await asyncio.sleep(LOOK_SECONDS)
            node.send_all(signal.SIGSTOP)
        try:
            yield
        finally:
            node.send_all(signal.SIGCONT)
            self.pauses.append(Pause(node.pid, began, time.monotonic()))

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """Something is done to the database meanwhile."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.outages.append(Outage(began, time.monotonic()))

    # ------------------------------------------------------------ the end

    async def drained(self, patience: float = DRAIN_SECONDS) -> None:
        """Return when every task has ended and the node table knows the living only; or when nothing has ended for so
        long, for the auditor will find what is missing."""
        for producer in self.producers:
            await producer.end()
        async with Engine(self.database.url) as engine:
            for number in range(self._schedule_count):
                await engine.schedules.pause(f"schedule-{number}")
        with suppress(AssertionError):
            while left := await asyncio.to_thread(self.database.unended):
                # mypy knows no lambda with a default.
                await until("a task ends", lambda left=left: asyncio.to_thread(self._has_fewer, left), patience)  # type: ignore[misc]
            await until("the dead are forgotten", lambda: not self._strange_nodes(), self.lease + 10)
        async with Engine(self.database.url) as engine:
            self._schedules = await engine.schedules.list()

    def _has_fewer(self, unended: int) -> bool:
        time.sleep(0.1)
        return self.database.unended() < unended

    def _strange_nodes(self) -> list[str]:
        living = {os.getpid(), *(node.pid for node in self.nodes if node.exit_code is None)}
        return [node_id for node_id, pid in self.database.nodes().items() if pid not in living]

    def evidence(self) -> Evidence:
        """All that is known."""
        self._pace.__exit__()
        return Evidence(
            lease_seconds=self.lease,
            accepted=journal.accepted(self.folder),
            rows=self.database.rows(),
            lines=list(journal.executions(self.folder)),
            effects=self.database.effects(),
            flows=self.database.flows(),
            retried=journal.retried(self.folder),
            batches=list(journal.batches(self.folder)),
            falls=self.falls,
            pauses=[*self.pauses, *journal.standstills(self.folder)],
            outages=[*self.outages, *(outage for probe in self._probes for outage in probe.outages)],
            soon_seconds=max(SOON_SECONDS, self._pace.seconds(SOON)),
            schedules=self._schedules,
            strange_nodes=self._strange_nodes(),
        )

    async def check_that_all_end_in_order(self) -> None:
        """The nodes, after whatever they have been through, can still be stopped as they should be."""
        for place in range(len(self.nodes)):
            await self.joined(place)  # who has not begun knows of no order yet
        self._replaces = False
        for node in self.nodes:
            node.send(signal.SIGTERM)
        for node in self.nodes:
            # mypy knows no lambda with a default.
            await until(f"node {node.pid} ends", lambda node=node: node.exit_code is not None)  # type: ignore[misc]
            assert node.exit_code == 0, f"node {node.pid} ended with code {node.exit_code}:\n{node.log}"
        assert not self.database.nodes(), "a node that was stopped has left its row"

    async def check_that_nothing_is_left(self) -> None:
        """Once the nodes have ended, one that drains finds nothing to do and ends by itself; no task, node, connection
        or process is left."""
        last = Program("tests.chaos.worker", self.folder / "drain.log", {**self._options, "drain": True}, self._way(0))
        try:
            await until("the last node has drained", lambda: last.exit_code is not None)
            assert last.exit_code == 0, last.log
        finally:
            last.clear_up()
        await self._end_probes()
        assert self.database.unended() == 0
        assert not self.database.nodes()
        await until("all connections are closed", lambda: not self.database.connections())
        await until("all processes have ended", lambda: not self._processes())

    async def _end_probes(self) -> None:
        for probe in self._probes:
            await asyncio.to_thread(probe.end)

    def _processes(self) -> list[psutil.Process]:
        """All that was started for this arena, also by those who are gone."""
        mark = {journal.FOLDER_VARIABLE: str(self.folder)}.items()
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if mark <= process.environ().items():
                    found.append(process)
        return found
