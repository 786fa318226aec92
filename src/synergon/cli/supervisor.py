"""Supervisor: keeps worker processes running.

A worker that dies is started again with exponential back-off. A worker that exits for a restart is started again at
once. A worker that has drained or stopped gracefully is not started again. If a configuration error keeps the first
workers from starting, the supervisor gives up. With `--reload`, a worker that could not start is started again after a
change of the code.

The supervisor forwards SIGINT and SIGTERM, and ends after its last worker. It forwards a second signal, too: the
workers then stop at once, and those that do not are killed. Workers are not in the terminal's process group, so Ctrl-C
reaches them once, through the supervisor. If the supervisor is killed, the workers notice it and stop gracefully.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from synergon.cli import logs
from synergon.cli.exit_codes import OK, RESTART, UNAVAILABLE, USAGE
from synergon.cli.reload import check_watchfiles, watch
from synergon.cli.supervisor_link import WorkerLink, open_link
from synergon.model.printable import printing
from synergon.node.health.systemd import (
    ALIVE,
    READY,
    STOPPING,
    SystemdNotifier,
    notifier_of,
)
from synergon.node.health.systemd import VARIABLES as SYSTEMD_VARIABLES
from synergon.node.processes.child_process import describe_end

FIRST_PAUSE_SECONDS: Final = 0.2
MAX_PAUSE_SECONDS: Final = 30.0
HEALTHY_SECONDS: Final = 30.0
"""If a worker has lived this many seconds, the next back-off starts again from the first pause."""

KILL_SECONDS: Final = 2.0
"""How many seconds a worker may take to end after the second signal."""

START_CHECK_SECONDS: Final = 0.1
"""How often to check whether all workers have started, for systemd."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
SIGNAL_CODES: Final = frozenset(code for number in SIGNALS for code in (-number, 128 + number))
"""Exit codes of a worker that got a signal before it had installed its handlers. It had no tasks yet."""

PERMANENT_CODES: Final = frozenset({USAGE, UNAVAILABLE})
"""Exit codes for errors that a restart would not fix."""

logger: Final = logging.getLogger("synergon.cli")
printing(logger)


def supervise(
    arguments: Sequence[str],
    processes: int,
    level: logs.Level,
    log_format: logs.Format,
    *,
    name: str | None,
    health_listen: str | None,
    drain: bool,
    reload: bool,
) -> int:
    """Keep `processes` workers running until a signal, or until all have drained. Returns the exit code.

    The supervisor answers probes for all workers at `health_listen`, and each worker for itself at one of the next
    ports. A single worker answers at `health_listen` itself.
    """
    if reload:
        check_watchfiles()
    logs.configure(level, "supervisor", log_format)
    numbers = range(1, processes + 1)
    addresses = [health_address(health_listen, number, processes) for number in numbers]
    commands = [_command(arguments, name, *own) for own in zip(addresses, numbers, strict=True)]
    answered_for = dict(zip(map(str, numbers), addresses, strict=True))
    has_own_address = health_listen is not None and health_listen not in addresses
    return asyncio.run(
        _supervise(commands, health_listen if has_own_address else None, answered_for, drain=drain, reload=reload)
    )


async def _supervise(
    commands: Sequence[Sequence[str]],
    health_listen: str | None,
    addresses: Mapping[str, str | None],
    *,
    drain: bool,
    reload: bool,
) -> int:
    workers = [
        WorkerKeeper(number, command, drain=drain, reload=reload) for number, command in enumerate(commands, start=1)
    ]
    server = None
    if health_listen is not None:
        from synergon.cli.supervisor_health import serve  # heavy, and seldom needed

        server = serve(health_listen, {number: address for number, address in addresses.items() if address})
        logger.info("health of all workers is served on http://%s", health_listen)
    try:
        return await Supervisor(workers, notifier_of(os.environ), reload=reload).run()
    finally:
        if server is not None:
            await server.close()


def _command(arguments: Sequence[str], name: str | None, health_listen: str | None, number: int) -> list[str]:
    own = [] if name is None else [f"--name={name}-{number}"]
    if health_listen is not None:
        own.append(f"--health-listen={health_listen}")
    return [sys.executable, "-m", "synergon", "worker", *arguments, *own]


def health_address(health_listen: str | None, number: int, processes: int) -> str | None:
    """The address at which a worker answers probes. `number` counts from 1. It is `health_listen` itself for a single
    worker or with port 0, otherwise one of the next ports."""
    if health_listen is None or processes == 1:
        return health_listen
    host, separator, port = health_listen.rpartition(":")
    is_any = not separator or port == "0"
    return health_listen if is_any else f"{host}:{int(port) + number}"


class Supervisor:
    """Forwards signals and code changes to the workers, and waits for their end."""

    def __init__(self, workers: Sequence[WorkerKeeper], notifier: SystemdNotifier | None, *, reload: bool) -> None:
        self._workers = workers
        self._notifier = notifier
        self._reload = reload
        self._first_signal: signal.Signals | None = None
        self._was_killed_by: signal.Signals | None = None

    async def run(self) -> int:
        """Run until the last worker has ended. Returns the highest exit code of the workers."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        beside = [asyncio.ensure_future(self._watch())] if self._reload else []
        if self._notifier is not None:
            beside.append(asyncio.ensure_future(self._notify(self._notifier)))
        try:
            codes = await asyncio.gather(*(self._keep(worker) for worker in self._workers))
        finally:
            for task in beside:
                task.cancel()
        if self._was_killed_by is not None:
            return 128 + self._was_killed_by
        return max(code if code >= 0 else 128 - code for code in codes)

    async def _keep(self, worker: WorkerKeeper) -> int:
        code = await worker.run(lambda: any(one.has_started for one in self._workers))
        if worker.has_given_up:
            for other in self._workers:
                other.stop(signal.SIGTERM)
        return code

    async def _notify(self, notifier: SystemdNotifier) -> None:
        """Tell systemd when all workers have started, and from then on that the supervisor lives."""
        while not all(worker.has_started for worker in self._workers):  # noqa: ASYNC110  a socket tells, when it is read
            await asyncio.sleep(START_CHECK_SECONDS)
        notifier.send(READY)
        while notifier.interval_seconds is not None:
            notifier.send(ALIVE)
            await asyncio.sleep(notifier.interval_seconds)

    async def _watch(self) -> None:
        try:
            await watch(self._on_change)
        except (OSError, RuntimeError) as error:  # too many files for the kernel, for instance
            logger.error("cannot watch the files, so --reload has no effect: %s", error)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._first_signal is None:
            self._first_signal = number
            if self._notifier is not None:
                self._notifier.send(STOPPING)
            logger.info("%s: waiting for the workers; a second signal stops them at once", number.name)
            for worker in self._workers:
                worker.stop(number)
        else:
            self._was_killed_by = number
            for worker in self._workers:
                worker.stop_at_once(number)

    def _on_change(self, files: Sequence[str]) -> None:
        logger.info("%s changed; restarting", ", ".join(files))
        for worker in self._workers:
            worker.restart()


class WorkerKeeper:
    """Runs a worker process, and starts the next one when it has died."""

    def __init__(self, number: int, command: Sequence[str], *, drain: bool, reload: bool) -> None:
        self._label = f"worker {number}"
        self._command = command
        self._drain = drain
        self._reload = reload
        self._process: asyncio.subprocess.Process | None = None
        self._link: WorkerLink | None = None
        self._has_ever_started = False
        self.has_given_up: bool = False
        self._was_signalled = False
        self._is_stopping = False
        self._wake = asyncio.Event()
        """Set to end a pause: the code has changed, or the supervisor stops."""

    @property
    def has_started(self) -> bool:
        """Whether the current worker process, or an earlier one, has started to run tasks."""
        return self._has_ever_started or self._has_last_started

    @property
    def _has_last_started(self) -> bool:
        return self._link is not None and self._link.has_started

    async def run(self, has_any_started: Callable[[], bool]) -> int:
        """Run worker processes until stopped, drained or given up. Returns the exit code of the last process."""
        failures = 0
        while True:
            self._wake.clear()
            started_at = time.monotonic()
            code = await self._run_once()
            if self._is_stopping:
                return OK if code in SIGNAL_CODES or code == RESTART else code
            if code == RESTART:
                logger.info("%s was told to restart", self._label)
                continue
            if code == OK and not self._reload:
                if not self._drain:
                    logger.info("%s has stopped gracefully", self._label)
                return code
            if code in PERMANENT_CODES and not self._reload and not has_any_started():
                logger.error("%s %s before any worker had started; giving up", self._label, describe_end(code))
                self.has_given_up = True
                return code
            failures = 0 if time.monotonic() - started_at > HEALTHY_SECONDS else failures + 1
            await self._pause(code, failures)
            if self._is_stopping:
                return OK

    async def _run_once(self) -> int:
        with open_link() as (self._link, theirs):
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    *("--supervisor-fd", str(theirs.fileno())),
                    env={name: value for name, value in os.environ.items() if name not in SYSTEMD_VARIABLES},
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:  # out of memory or processes: this may pass
                logger.error("cannot start %s: %s", self._label, error)
                return 1
            theirs.close()
            logger.info("%s is process %d", self._label, process.pid)
            self._process, self._was_signalled = process, False
            if self._wake.is_set():  # a stop or restart came while the process was being created
                self._signal_once(signal.SIGTERM)
            try:
                return await process.wait()
            finally:
                self._process = None
                self._has_ever_started = self.has_started  # read before the link is closed

    async def _pause(self, code: int, failures: int) -> None:
        """Wait before the next start. Ends early when `_wake` is set."""
        if self._wake.is_set():
            return
        end = describe_end(code)
        if self._reload and (code in {OK, *PERMANENT_CODES} or not self._has_last_started):
            logger.error("%s %s; waiting for a change of the code", self._label, end)
            await self._wake.wait()
            return
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(max(failures - 1, 0), 16), MAX_PAUSE_SECONDS)
        logger.error("%s %s; restarting in %.1f s", self._label, end, pause)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), pause)

    def stop(self, number: signal.Signals) -> None:
        """Forward the signal, and start no more processes."""
        self._is_stopping = True
        self._signal_once(number)

    def restart(self) -> None:
        """Stop the process gracefully. The next one starts after it."""
        self._signal_once(signal.SIGTERM)

    def stop_at_once(self, number: signal.Signals) -> None:
        """Forward the second signal, and kill the process after KILL_SECONDS. In that time the worker can mark its row
        as stopping, even if the first signal came only a moment ago."""
        self._send(number)
        asyncio.get_running_loop().call_later(KILL_SECONDS, self._send, signal.SIGKILL)

    def _signal_once(self, number: signal.Signals) -> None:
        """End a pause, and signal the process unless it was signalled before: a second signal would stop the worker at
        once."""
        self._wake.set()
        if not self._was_signalled:
            self._send(number)

    def _send(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None:
            self._was_signalled = True
            # Not send_signal(): it reaps a process that has just ended, and asyncio then reports 255 as its exit code.
            with contextlib.suppress(ProcessLookupError):
                if process.returncode is None:
                    os.kill(process.pid, number)
