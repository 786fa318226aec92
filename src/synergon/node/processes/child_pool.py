"""ChildPool: child processes for task functions that need a core of their own or may crash their process.

A job has exactly one outcome: an answer, or one of four failures that say what caused it. A child's death counts
against a job only if the child had accepted the job; a job that was sent to a dead child runs in another one. A job
cannot harm the pool, delay other children or block the event loop. Processes that a job starts in its child's process
group end with the child, and no child outlives this process.

The pool neither limits the number of children (the caller does) nor interprets jobs and messages.

Children are plain `python -c` processes, connected by a socket pair: `multiprocessing` runs the parent's script again
in each child, and `pebble`, which is built on it, cannot exchange messages with a running job. POSIX only.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from synergon.errors import NotConnected, OptionError, SynergonError
from synergon.model.printable import printing
from synergon.node.processes.child_main import Frame, Kind
from synergon.node.processes.child_process import ChildProcess, describe_end, name_signal

OnMessage = Callable[[bytes], bytes | Awaitable[bytes | None] | None]

MAX_STARTS: Final = 3
"""The maximum number of children that are started for a job, if they die before they accept it: an import may kill
them."""

logger: Final = logging.getLogger("synergon.node.processes.child_pool")
printing(logger)


class ChildFailure(SynergonError):
    """The job ended without an answer."""


class ChildDied(ChildFailure):
    """The child process died by itself while it ran the job."""

    def __init__(self, pid: int | None, exit_code: int) -> None:
        self.pid = pid
        self.exit_code: Final = exit_code if exit_code >= 0 else None
        self.signal_name: Final = name_signal(-exit_code) if exit_code < 0 else None
        self.description: Final = describe_end(exit_code)
        super().__init__(f"child process {pid} {self.description} while it ran the task")


class ChildKilled(ChildFailure):
    """The parent killed the child process, which has ended."""


class ChildError(ChildFailure):
    """The entry function raised or could not be imported."""

    def __init__(self, traceback: str) -> None:
        super().__init__(traceback.strip().rpartition("\n")[2])
        self.traceback = traceback


class ChildNotStarted(ChildFailure):
    """No child accepted the job, so the job has not run."""


class ChildRun:
    """One job, from its start to its outcome. Used on the event loop only."""

    def __init__(self, job: bytes, *, on_message: OnMessage | None, is_fresh: bool) -> None:
        self.is_fresh = is_fresh
        self.is_accepted = False
        self.is_kill_requested: bool = False
        self.starts: int = 0
        self._to_send = [Frame(Kind.JOB, payload=job)]
        self._on_message = on_message
        self._callbacks: set[asyncio.Future[None]] = set()
        self._child: ChildProcess | None = None
        self._outcome: asyncio.Future[bytes | ChildFailure] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        """The process that runs the job. None before the process has started, and after the job has ended."""
        return self._child.pid if self._child else None

    async def result(self) -> bytes:
        """Return the answer, or raise the ChildFailure. May be called again. Cancelling the wait does not stop the
        job."""
        outcome = await asyncio.shield(self._outcome)
        if isinstance(outcome, ChildFailure):
            raise outcome
        return outcome

    def notify(self, note: bytes) -> None:
        """Send a note to the job. Has no effect after the end of the job."""
        frame = Frame(Kind.NOTE, payload=note)
        self._send(frame)
        if not self.is_accepted:
            self._to_send.append(frame)  # a child that dies before it accepts takes the note with it

    def kill(self) -> None:
        """Kill the process now. Has no effect after the end of the job."""
        self.is_kill_requested = True
        if self._child is not None:
            self._child.kill()

    def send_to(self, child: ChildProcess) -> None:
        """Send a child the job, and the notes that were sent before the job was accepted."""
        self._child = child
        self.starts += 1
        for frame in self._to_send:
            child.send(frame)

    def handle_message(self, frame: Frame) -> None:
        """Call `on_message`. If the message is a request, send what it returns to the job as the answer."""
        try:
            answer = self._on_message(frame.payload) if self._on_message else None
        except Exception as error:  # noqa: BLE001  an error of the callback must not break the pool
            self._reject(frame, error)
            return
        if inspect.isawaitable(answer):
            self._await_answer(frame, answer)
        else:
            self._answer(frame, answer)

    def finish(self, outcome: bytes | ChildFailure) -> None:
        """Set the outcome. Callbacks that still run may finish, but their answers are dropped."""
        self._child = None
        self._to_send.clear()
        self._outcome.set_result(outcome)

    def _await_answer(self, frame: Frame, answer: Awaitable[bytes | None]) -> None:
        async def answer_later() -> None:
            try:
                self._answer(frame, await answer)
            except Exception as error:  # noqa: BLE001  as above
                self._reject(frame, error)

        callback = asyncio.ensure_future(answer_later())
        self._callbacks.add(callback)  # the event loop keeps only a weak reference
        callback.add_done_callback(self._callbacks.discard)

    def _answer(self, request: Frame, answer: bytes | None) -> None:
        if request.kind is Kind.REQUEST:
            self._send(Frame(Kind.ANSWER, request.number, answer or b""))

    def _reject(self, request: Frame, error: Exception) -> None:
        logger.error("cannot handle a message from child process %s", self.pid, exc_info=error)
        if request.kind is Kind.REQUEST:
            self._send(Frame(Kind.REJECTION, request.number, f"{type(error).__name__}: {error}".encode()))

    def _send(self, frame: Frame) -> None:
        if self._child is not None:
            self._child.send(frame)


class ChildPool:
    """Runs each job in an idle child if there is one, otherwise in a new one.

    `entry` is the function that runs a job, as `"module:function"`: `def entry(job: bytes, channel: ChildChannel) ->
    bytes`. The child imports it after the modules of `preload`. A child is replaced after `recycle_after` jobs, and
    when it has more than `memory_limit_bytes` of resident memory after a job. `on_log` gets the log records of
    children.
    """

    def __init__(
        self,
        *,
        entry: str,
        recycle_after: int = 1000,
        memory_limit_bytes: int | None = None,
        preload: Sequence[str] = (),
        on_log: Callable[[bytes], None] | None = None,
    ) -> None:
        self._entry = _check_entry(entry)
        self._recycle_after = _check_positive("recycle_after", recycle_after)
        self._memory_limit_bytes = memory_limit_bytes
        if memory_limit_bytes is not None:
            _check_positive("memory_limit_bytes", memory_limit_bytes)
        self._preload = tuple(preload)
        self._on_log = on_log
        self._idle: list[ChildProcess] = []
        self._working: dict[ChildProcess, ChildRun] = {}
        self._closing: asyncio.Future[None] | None = None
        # kill_all() reads these from other threads.
        self._lock = threading.Lock()
        self._runs: set[ChildRun] = set()
        self._children: set[ChildProcess] = set()

    @property
    def idle(self) -> int:
        """The number of children without a job."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """The number of jobs that have not ended."""
        return len(self._runs)

    def start(self, job: bytes, *, on_message: OnMessage | None = None, fresh: bool = False) -> ChildRun:
        """Start a job. `on_message` is called with its messages. For a request, the value that it returns (awaited, if
        awaitable) is the answer.

        A `fresh` job gets a new process that runs no other job.
        """
        if self._closing is not None:
            raise NotConnected("the pool of child processes is closed; start jobs before close()")
        run = ChildRun(job, on_message=on_message, is_fresh=fresh)
        with self._lock:
            self._runs.add(run)
        if self._idle and not fresh:
            self._assign(run, self._idle.pop())
        else:
            self._assign_to_new_child(run)
        return run

    def kill_all(self, *, timeout_seconds: float = 5.0) -> bool:
        """Kill every child, and wait until all have ended. Returns False if one has not ended within the timeout.
        Thread-safe.

        Does not depend on the event loop, which may be blocked. Jobs that are started later get new children.
        """
        with self._lock:
            children = list(self._children)
            for run in self._runs:
                run.is_kill_requested = True
        for child in children:
            child.kill()
        deadline = time.monotonic() + timeout_seconds
        return all(child.wait(deadline - time.monotonic()) for child in children)

    async def close(self) -> None:
        """Kill working children, let idle ones exit, and return when every process has ended. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for run in list(self._runs):
            run.kill()
        while self._idle:
            self._idle.pop().retire()
        while self._children:
            await next(iter(self._children)).is_over.wait()

    # ------------------------------------------------------------ jobs and children

    def _assign_to_new_child(self, run: ChildRun) -> None:
        try:
            child = ChildProcess(entry=self._entry, preload=self._preload, pool=self)
        except (OSError, RuntimeError) as error:  # no more file descriptors, or no more threads
            self._finish(run, ChildNotStarted(f"cannot start a child process: {error}"))
            return
        with self._lock:
            self._children.add(child)
        self._assign(run, child)

    def _assign(self, run: ChildRun, child: ChildProcess) -> None:
        self._working[child] = run
        if run.is_kill_requested:
            child.kill()  # kill_all() may have listed the children before this one was added
        else:
            run.send_to(child)

    def handle_frame(self, child: ChildProcess, frame: Frame) -> None:
        """Act on a frame that a child has sent."""
        if frame.kind is Kind.LOG:
            self._log(frame.payload)
            return
        run = self._working.get(child)
        if run is None or run.is_kill_requested:
            return
        match frame.kind:
            case Kind.ACCEPTED:
                run.is_accepted = True
            case Kind.MESSAGE | Kind.REQUEST:
                run.handle_message(frame)
            case Kind.RESULT:
                self._release(child, is_usable=not run.is_fresh)
                self._finish(run, frame.payload)
            case Kind.ERROR | Kind.UNUSABLE:
                self._release(child, is_usable=not run.is_fresh and frame.kind is Kind.ERROR)
                self._finish(run, ChildError(frame.payload.decode(errors="replace")))

    def _log(self, line: bytes) -> None:
        if self._on_log is None:
            return
        try:
            self._on_log(line)
        except Exception as error:
            logger.error("cannot read a log record of a child process", exc_info=error)

    def _release(self, child: ChildProcess, *, is_usable: bool) -> None:
        del self._working[child]
        child.jobs_done += 1
        if is_usable and not self._must_recycle(child):
            self._idle.append(child)
        else:
            child.retire()

    def _must_recycle(self, child: ChildProcess) -> bool:
        if child.jobs_done >= self._recycle_after:
            return True
        return self._memory_limit_bytes is not None and child.resident_bytes() > self._memory_limit_bytes

    def handle_gone(self, child: ChildProcess) -> None:
        """Remove a child that has ended. If it had a job, the job goes to another child or is finished."""
        with self._lock:
            self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        run = self._working.pop(child, None)
        if run is None:
            return
        if run.is_kill_requested or (child.is_kill_requested and run.is_accepted):
            self._finish(run, ChildKilled(f"child process {child.pid} was killed"))
        elif run.is_accepted:
            self._finish(run, ChildDied(child.pid, child.exit_code))
        elif run.starts < MAX_STARTS:
            self._assign_to_new_child(run)
        else:
            self._finish(run, ChildNotStarted(f"no child process accepted the task; the last one {child.how_it_ended}"))

    def _finish(self, run: ChildRun, outcome: bytes | ChildFailure) -> None:
        with self._lock:
            self._runs.discard(run)
        run.finish(outcome)


def _check_entry(entry: str) -> str:
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", entry):
        raise OptionError(f'entry must be written as "module:function", got {entry!r}')
    return entry


def _check_positive(option: str, value: int) -> int:
    if value < 1:
        raise OptionError(f"{option} must be at least 1, got {value}")
    return value
