"""Real worker processes on one real file: start them, hear them, hurt them, and leave nothing of them behind."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import psutil
import pytest
from tests.support import pause_seconds
from tests.warm_process import WarmProcess

from synergon import Call, Engine, Handle, Reason, State, TaskRecord
from synergon.policies import CRASH_LIMIT, OWNER_DEATH_LIMIT

REPOSITORY: Final = Path(__file__).parents[2]
PATIENCE_SECONDS: Final = 40.0
"""Far more than anything here takes on a machine that is busy with other things."""
LOOK_SECONDS: Final = 0.01
IS_LONG_RUN: Final = bool(os.environ.get("SYNERGON_LONG"))
"""Somebody has time for tests that take a minute."""


async def until(
    what: str, has_happened: Callable[[], bool | Awaitable[bool]], patience: float = PATIENCE_SECONDS
) -> None:
    """Return as soon as it has happened. Other processes cannot be awaited, so this looks again and again."""
    try:
        began = time.monotonic()
        async with asyncio.timeout(patience):
            while not await _truth(has_happened()):  # noqa: ASYNC110  the event is in another process
                await asyncio.sleep(max(LOOK_SECONDS, pause_seconds(time.monotonic() - began)))
    except TimeoutError:
        raise AssertionError(f"waited {patience:g} s in vain: {what}") from None


async def _truth(answer: bool | Awaitable[bool]) -> bool:
    return await answer if inspect.isawaitable(answer) else answer


def is_alive(pid: int) -> bool:
    """Whether the process can still do anything."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# ------------------------------------------------------------ what bodies wrote down


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal."""

    event: str
    label: str
    claim_no: int
    pid: int
    parent_pid: int
    at: float


class Journal:
    """What the bodies of all processes wrote down, in the order in which they did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def entries(self, event: str, label: str | None = None) -> list[Entry]:
        """The lines about this event; of one task, if its label is given."""
        return [entry for entry in self._all() if entry.event == event and label in (None, entry.label)]

    def labels(self, event: str) -> list[str]:
        """Who was written down with this event, as often as it was."""
        return [entry.label for entry in self.entries(event)]

    async def wait_for(self, event: str, *labels: str, times: int = 1) -> list[Entry]:
        """The latest line of each label, once each has been written down so often."""

        def are_there() -> bool:
            written = self.labels(event)
            return all(written.count(label) >= times for label in labels)

        await until(f"{event} {', '.join(labels)}", are_there)
        return [self.entries(event, label)[-1] for label in labels]

    def _all(self) -> Iterable[Entry]:
        # The last line of a process that was killed is whole or not there: it was one write.
        for line in self.path.read_text().splitlines():
            event, label, claim_no, pid, parent_pid, at = line.split()
            yield Entry(event, label, int(claim_no), int(pid), int(parent_pid), float(at))


# ------------------------------------------------------------ worker processes


class WorkerProcess:
    """`engine.run()` in a process of its own."""

    def __init__(self, program: str, log: Path, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._log = log
        its_input, our_end = os.pipe()
        self._input = os.fdopen(our_end, "wb")  # it ends when we do
        module = f"tests.cluster.apps.{program}"
        with log.open("wb") as file:
            if "LD_PRELOAD" in environment:
                self._process: subprocess.Popen[bytes] | WarmProcess = subprocess.Popen(
                    [sys.executable, "-m", module, json.dumps(options)],
                    cwd=REPOSITORY,
                    env={**os.environ, **environment},
                    stdin=its_input,
                    stdout=file,
                    stderr=file,
                )
            else:
                self._process = WarmProcess(
                    module,
                    json.dumps(options),
                    folder=REPOSITORY,
                    environment={**os.environ, **environment},
                    streams=(its_input, file.fileno(), file.fileno()),
                )
        os.close(its_input)
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    async def says(self, text: str) -> None:
        """Return when it has said this."""
        await until(f"worker {self.pid} says {text!r}", lambda: text in self.log)

    async def ends(self) -> int:
        """Its exit code, once it has ended."""
        await until(f"worker {self.pid} ends", lambda: not self.is_running)
        return self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def freeze(self) -> None:
        """Stop it where it is."""
        self.send(signal.SIGSTOP)
        await until(
            f"worker {self.pid} stands still", lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        )

    def thaw(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a word, and see that it is gone."""
        self._process.kill()
        self._process.wait()

    def clear_up(self) -> None:
        """Whatever became of it, nothing is left afterwards."""
        self.kill()
        self._input.close()


class Cluster:
    """Worker processes that share one file with a producer in the test's own process."""

    program = "faults_worker"

    def __init__(self, folder: Path, database: Path | None = None) -> None:
        self.folder = folder
        self.database = database or folder / "tasks.db"
        self.journal = Journal(folder / "journal")
        self.engine = Engine(f"sqlite:///{self.database}", sweep=0.05)
        self.workers: list[WorkerProcess] = []

    async def __aenter__(self) -> Self:
        await self.engine.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.clear_up()
        await self.engine.close()
        for worker in self.workers:  # shown when the test has failed
            print(f"\n--- worker {worker.pid}\n{worker.log}")

    def launch(self, environment: Mapping[str, str] | None = None, **options: Any) -> WorkerProcess:
        """Start a worker and do not wait for it. Options are those of `engine.run()`."""
        worker = WorkerProcess(
            self.program,
            self.folder / f"worker-{len(self.workers)}.log",
            {"sweep": 0.1, **options},
            {"SYNERGON_URL": self.engine.settings.url, "FAULTS_JOURNAL": str(self.journal.path), **(environment or {})},
        )
        self.workers.append(worker)
        return worker

    async def start(self, environment: Mapping[str, str] | None = None, **options: Any) -> WorkerProcess:
        """Start a worker, and return when it is a node."""
        worker = self.launch(environment, **options)
        await self.joined(worker)
        return worker

    async def joined(self, worker: WorkerProcess) -> None:
        """Return when the worker is a node."""

        async def is_node() -> bool:
            assert worker.is_running, f"the worker could not start:\n{worker.log}"
            return worker.pid in {node.process.pid for node in await self.engine.nodes()}

        await until(f"worker {worker.pid} joins", is_node)

    def open_gate(self, label: str | None = None) -> None:
        """Let gated bodies end, all of them or this one."""
        self.journal.path.with_name("journal.go" if label is None else f"journal.go.{label}").touch()

    async def freeze(self, *workers: WorkerProcess) -> None:
        """Stop workers where they are, but not with the file's write lock in their hands: all others would stop too."""
        for worker in workers:
            await worker.freeze()
            while not self._may_be_written():
                worker.thaw()
                await asyncio.sleep(LOOK_SECONDS)
                await worker.freeze()

    @asynccontextmanager
    async def file_locked(self) -> AsyncIterator[None]:
        """Somebody else holds the file's write lock meanwhile."""
        database = sqlite3.connect(self.database, isolation_level=None, timeout=30, check_same_thread=False)
        try:
            await asyncio.to_thread(database.execute, "BEGIN EXCLUSIVE")
            yield
            database.execute("ROLLBACK")
        finally:
            database.close()

    def _may_be_written(self) -> bool:
        database = sqlite3.connect(self.database, timeout=1, isolation_level=None)
        try:
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        finally:
            database.close()
        return True

    async def node_id_of(self, worker: WorkerProcess) -> str:
        """The id that the worker has now."""
        return next(node.id for node in await self.engine.nodes() if node.process.pid == worker.pid)

    async def enqueue(self, *calls: Call[Any]) -> list[Handle[Any]]:
        """Store these, as a process that runs nothing."""
        return await self.engine.enqueue(calls)

    async def end_of(self, handle: Handle[Any]) -> TaskRecord:
        """The task once it has ended."""
        return await self.engine.wait(handle.id, timeout=PATIENCE_SECONDS)

    async def ends_of(self, handles: Iterable[Handle[Any]]) -> list[TaskRecord]:
        """The tasks once they all have ended."""
        return [await self.end_of(handle) for handle in handles]

    async def all_is_over(self) -> bool:
        """Whether every task has ended."""
        counts = await self.engine.counts()
        return not any(count for state, count in counts.items() if not state.is_final)

    async def check_that_each_ended_once(self, handles: Iterable[Handle[Any]]) -> dict[str, TaskRecord]:
        """What must hold whatever was done to the workers. The ended tasks by label, for further questions."""
        records = {record.arguments["label"]: record for record in await self.ends_of(handles)}
        begun = Counter((entry.label, entry.claim_no) for entry in self.journal.entries("begins"))
        ended = Counter((entry.label, entry.claim_no) for entry in self.journal.entries("ends"))
        assert set(begun.values()) == set(ended.values()) == {1}, "a claim began or ended twice"
        for label, record in records.items():
            if record.state is State.SUCCEEDED:
                assert record.attempts == 1, record
                assert ended[label, record.claim_no] == 1, f"the outcome that counts is the last claim's: {record}"
            else:
                assert (record.reason, record.attempts) == (Reason.CRASHED, 0), record
                assert record.crashes == CRASH_LIMIT or record.owner_deaths == OWNER_DEATH_LIMIT, record
        return records


@pytest.fixture(name="cluster")
async def cluster_fixture(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A file, and no worker yet."""
    async with Cluster(tmp_path) as cluster:
        yield cluster
