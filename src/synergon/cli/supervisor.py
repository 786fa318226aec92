"""Keeps worker processes alive.

A worker that dies is started again, after a pause that grows while it keeps failing; one that was told to restart, at
once; one that has drained, or ended in order because somebody told it to, is done. A mistake that keeps the first
workers from starting ends the supervisor too. With `--reload`, what could not start waits for a change of the code.
SIGINT and SIGTERM are passed on, and the supervisor ends when the last worker has. A second signal is passed on, too:
the workers end at once, and those that do not are killed. Workers are not in the terminal's process group, so that
Ctrl-C reaches them once and through here. If the supervisor itself is killed, they notice and stop in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from synergon.cli import logs
from synergon.cli.exit_codes import OK, RESTART, UNAVAILABLE, USAGE
from synergon.cli.reload import check_watchfiles, watch
from synergon.cli.supervisor_link import Lifeline, lifeline
from synergon.node.processes.child_process import describe_end

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 30.0
HEALTHY_SECONDS: Final = 30.0
"""A worker that lived this long has not failed to start; the next pause is a short one again."""

KILL_SECONDS: Final = 2.0
"""How long a worker may take to end at the second signal."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
DEAF_CODES: Final = frozenset(code for number in SIGNALS for code in (-number, 128 + number))
"""How a worker ends that is told to stop before it can listen. It had not begun, so nothing is lost."""

MISTAKES: Final = frozenset({USAGE, UNAVAILABLE})
"""How a worker ends that would end in the same way if it were started again."""

logger = logging.getLogger("synergon.cli")


def supervise(
    arguments: Sequence[str], processes: int, level: logs.Level, *, name: str | None, drain: bool, reload: bool
) -> int:
    """Keep `processes` workers with these arguments alive until a signal, or until all have drained: the exit code."""
    if reload:
        check_watchfiles()
    logs.configure(level, "supervisor")
    return asyncio.run(_supervise(arguments, processes, name, drain=drain, reload=reload))


async def _supervise(arguments: Sequence[str], processes: int, name: str | None, *, drain: bool, reload: bool) -> int:
    keepers = [
        Keeper(number, _command(arguments, name, number), drain=drain, reload=reload)
        for number in range(1, processes + 1)
    ]
    return await Supervisor(keepers, reload=reload).run()


def _command(arguments: Sequence[str], name: str | None, number: int) -> list[str]:
    names = [] if name is None else [f"--name={name}-{number}"]
    return [sys.executable, "-m", "synergon", "worker", *arguments, *names]


class Supervisor:
    """Passes signals and changes of the code on to the keepers, and waits for them."""

    def __init__(self, keepers: Sequence[Keeper], *, reload: bool) -> None:
        self._keepers = keepers
        self._reload = reload
        self._first_signal: signal.Signals | None = None
        self._was_killed_by: signal.Signals | None = None

    async def run(self) -> int:
        """Until the last worker has ended; the worst of their exit codes."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        watching = asyncio.ensure_future(self._watch()) if self._reload else None
        try:
            codes = await asyncio.gather(*(self._keep(keeper) for keeper in self._keepers))
        finally:
            if watching is not None:
                watching.cancel()
        if self._was_killed_by is not None:
            return 128 + self._was_killed_by
        return max(code if code >= 0 else 128 - code for code in codes)

    async def _keep(self, keeper: Keeper) -> int:
        code = await keeper.run(lambda: any(one.has_started for one in self._keepers))
        if keeper.has_given_up:
            for other in self._keepers:
                other.stop(signal.SIGTERM)
        return code

    async def _watch(self) -> None:
        try:
            await watch(self._on_change)
        except (OSError, RuntimeError) as error:  # too many files for the kernel, for instance
            logger.error("the files cannot be watched, so changes go unnoticed: %s", error)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._first_signal is None:
            self._first_signal = number
            logger.info("%s: waits for the workers; a second signal ends them at once", number.name)
            for keeper in self._keepers:
                keeper.stop(number)
        else:
            self._was_killed_by = number
            for keeper in self._keepers:
                keeper.end_at_once(number)

    def _on_change(self, files: Sequence[str]) -> None:
        logger.info("%s changed: starts anew", ", ".join(files))
        for keeper in self._keepers:
            keeper.restart()


class Keeper:
    """One worker process after the other."""

    def __init__(self, number: int, command: Sequence[str], *, drain: bool, reload: bool) -> None:
        self._label = f"worker {number}"
        self._command = command
        self._drain = drain
        self._reload = reload
        self._process: asyncio.subprocess.Process | None = None
        self._line: Lifeline | None = None
        self._has_one_started = False
        self.has_given_up = False
        self._was_told = False
        self._is_stopping = False
        self._news = asyncio.Event()
        """The code has changed, or it is time to stop: no reason to wait any longer."""

    @property
    def has_started(self) -> bool:
        """Whether its worker has, or one before."""
        return self._has_one_started or self._has_last_started

    @property
    def _has_last_started(self) -> bool:
        return self._line is not None and self._line.has_started

    async def run(self, has_anyone_started: Callable[[], bool]) -> int:
        """Until told to stop, drained, or hopeless; the exit code of the last worker."""
        failures = 0
        while True:
            self._news.clear()
            started_at = time.monotonic()
            code = await self._run_once()
            if self._is_stopping:
                return OK if code in DEAF_CODES or code == RESTART else code
            if code == RESTART:
                logger.info("%s was told to restart", self._label)
                continue
            if code == OK and not self._reload:
                if not self._drain:
                    logger.info("%s has ended as it was told", self._label)
                return code
            if code in MISTAKES and not self._reload and not has_anyone_started():
                logger.error("%s %s before any had started: gives up", self._label, describe_end(code))
                self.has_given_up = True
                return code
            failures = 0 if time.monotonic() - started_at > HEALTHY_SECONDS else failures + 1
            await self._rest(code, failures)
            if self._is_stopping:
                return OK

    async def _run_once(self) -> int:
        with lifeline() as (self._line, theirs):
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    *("--supervisor-line", str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:  # no memory, no more processes: that may pass
                logger.error("%s could not be started: %s", self._label, error)
                return 1
            theirs.close()
            logger.info("%s is process %d", self._label, process.pid)
            self._process, self._was_told = process, False
            if self._news.is_set():  # it came while the process was being made
                self._ask(signal.SIGTERM)
            try:
                return await process.wait()
            finally:
                self._process = None
                self._has_one_started = self.has_started  # now, since the line is about to be closed

    async def _rest(self, code: int, failures: int) -> None:
        """Wait before the next start, unless there is news."""
        if self._news.is_set():
            return
        end = describe_end(code)
        if self._reload and (code in {OK, *MISTAKES} or not self._has_last_started):
            logger.error("%s %s; waits for a change", self._label, end)
            await self._news.wait()
            return
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(max(failures - 1, 0), 16), LONGEST_PAUSE_SECONDS)
        logger.error("%s %s; starts again in %.1f s", self._label, end, pause)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), pause)

    def stop(self, number: signal.Signals) -> None:
        """Pass the signal on, and start nothing any more."""
        self._is_stopping = True
        self._ask(number)

    def restart(self) -> None:
        """Let it stop in order, and start it again."""
        self._ask(signal.SIGTERM)

    def end_at_once(self, number: signal.Signals) -> None:
        """Pass the second signal on, and kill what it does not end. It is not killed at once: its row has to say first
        that it was told to stop, and the first signal may have come a moment ago."""
        self._send(number)
        asyncio.get_running_loop().call_later(KILL_SECONDS, self._send, signal.SIGKILL)

    def _ask(self, number: signal.Signals) -> None:
        """Once for each process: a worker takes a second signal as a wish that it ends at once."""
        self._news.set()
        if not self._was_told:
            self._send(number)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._was_told = True
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
