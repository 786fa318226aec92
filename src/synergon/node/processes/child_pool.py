"""Child processes for bodies that need a core of their own, or that may take their process down.

A job given to the pool has exactly one outcome: an answer, or one of four failures that say whose fault it was. A
child's death is held against a job only if the child had accepted it; a job that was sent to a dead child runs on
another. Nothing a job does harms the pool, delays other children or blocks the event loop. What a job has started in
its child's process group ends with the child, and no child outlives this process.

Not done here: a limit on the number of children (whoever starts jobs has one), and any understanding of what is said.

Children are plain `python -c` processes at the other end of a socket pair, because `multiprocessing` runs the parent's
script again in each child, and `pebble`, which is built on it, cannot talk to a job while it runs. POSIX only.
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
from synergon.node.processes.child_main import Frame, Kind
from synergon.node.processes.child_process import ChildProcess, describe_end, name_signal

OnMessage = Callable[[bytes], bytes | Awaitable[bytes | None] | None]

MOST_STARTS: Final = 3
"""A job goes to a new child when one dies before it accepts, but not for ever: importing may be what kills it."""

logger = logging.getLogger("synergon.node.processes.child_pool")


class ChildFailure(SynergonError):
    """A job has no answer."""


class ChildDied(ChildFailure):
    """The process died by itself under the job it had accepted."""

    def __init__(self, pid: int | None, exit_code: int) -> None:
        self.pid = pid
        self.exit_code = exit_code if exit_code >= 0 else None
        self.signal_name = name_signal(-exit_code) if exit_code < 0 else None
        self.description = describe_end(exit_code)
        super().__init__(f"child process {pid} in the middle of its job {self.description}")


class ChildKilled(ChildFailure):
    """We killed the process, and it is gone."""


class ChildError(ChildFailure):
    """The entry function raised or could not be imported; the child had no other trouble."""

    def __init__(self, traceback: str) -> None:
        super().__init__(traceback.strip().rpartition("\n")[2])
        self.traceback = traceback


class ChildNotStarted(ChildFailure):
    """No child came as far as to accept the job: it has not run, and is not to blame."""


class ChildRun:
    """One job on its way to its outcome. Belongs to the event loop."""

    def __init__(self, job: bytes, *, on_message: OnMessage | None, is_fresh: bool) -> None:
        self.is_fresh = is_fresh
        self.is_accepted = False
        self.is_kill_requested = False
        self.starts = 0
        self._to_send = [Frame(Kind.JOB, payload=job)]
        self._on_message = on_message
        self._callbacks: set[asyncio.Future[None]] = set()
        self._child: ChildProcess | None = None
        self._outcome: asyncio.Future[bytes | ChildFailure] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        """The process that does the job; None if it is not started yet, or the job has ended."""
        return self._child.pid if self._child else None

    async def result(self) -> bytes:
        """The answer, or the `ChildFailure`. May be awaited often; who gives up waiting leaves the job alone."""
        outcome = await asyncio.shield(self._outcome)
        if isinstance(outcome, ChildFailure):
            raise outcome
        return outcome

    def notify(self, note: bytes) -> None:
        """Tell the job something. Without effect when it has ended."""
        frame = Frame(Kind.NOTE, payload=note)
        self._send(frame)
        if not self.is_accepted:
            self._to_send.append(frame)  # a child that dies before it accepts takes the note with it

    def kill(self) -> None:
        """End the process now. Without effect when the job has ended."""
        self.is_kill_requested = True
        if self._child is not None:
            self._child.kill()

    def give_to(self, child: ChildProcess) -> None:
        """Send the job, and what it was told so far."""
        self._child = child
        self.starts += 1
        for frame in self._to_send:
            child.send(frame)

    def take_message(self, frame: Frame) -> None:
        """Pass on what the job says, and the answer back."""
        try:
            answer = self._on_message(frame.payload) if self._on_message else None
        except Exception as error:  # noqa: BLE001  the callback is not ours, and the pool must live on
            self._refuse(frame, error)
            return
        if inspect.isawaitable(answer):
            self._await_answer(frame, answer)
        else:
            self._answer(frame, answer)

    def finish(self, outcome: bytes | ChildFailure) -> None:
        """The job has ended. Callbacks that are still at work may finish, but nobody waits for their answers."""
        self._child = None
        self._to_send.clear()
        self._outcome.set_result(outcome)

    def _await_answer(self, frame: Frame, answer: Awaitable[bytes | None]) -> None:
        async def answer_later() -> None:
            try:
                self._answer(frame, await answer)
            except Exception as error:  # noqa: BLE001  as above
                self._refuse(frame, error)

        callback = asyncio.ensure_future(answer_later())  # kept here, as the event loop does not
        self._callbacks.add(callback)
        callback.add_done_callback(self._callbacks.discard)

    def _answer(self, request: Frame, answer: bytes | None) -> None:
        if request.kind is Kind.REQUEST:
            self._send(Frame(Kind.ANSWER, request.number, answer or b""))

    def _refuse(self, request: Frame, error: Exception) -> None:
        logger.error("a message from child process %s could not be handled", self.pid, exc_info=error)
        if request.kind is Kind.REQUEST:
            self._send(Frame(Kind.REFUSAL, request.number, f"{type(error).__name__}: {error}".encode()))

    def _send(self, frame: Frame) -> None:
        if self._child is not None:
            self._child.send(frame)


class ChildPool:
    """Gives each job to a child: to an idle one if there is one, else to a new one.

    `entry` names what does a job, as `"module:function"`: `def entry(job: bytes, channel: ChildChannel) -> bytes`.
    It is imported in the child, after the modules of `preload`. A child is replaced after `recycle_after` jobs, and
    when a job leaves it with more than `memory_limit_bytes` of resident memory.
    """

    def __init__(
        self,
        *,
        entry: str,
        recycle_after: int = 1000,
        memory_limit_bytes: int | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        self._entry = _check_entry(entry)
        self._recycle_after = _check_positive("recycle_after", recycle_after)
        self._memory_limit_bytes = memory_limit_bytes
        if memory_limit_bytes is not None:
            _check_positive("memory_limit_bytes", memory_limit_bytes)
        self._preload = tuple(preload)
        self._idle: list[ChildProcess] = []
        self._working: dict[ChildProcess, ChildRun] = {}
        self._closing: asyncio.Future[None] | None = None
        # kill_all() looks at these from other threads.
        self._lock = threading.Lock()
        self._runs: set[ChildRun] = set()
        self._children: set[ChildProcess] = set()

    @property
    def idle(self) -> int:
        """How many children wait for a job."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """How many jobs have not ended."""
        return len(self._runs)

    def start(self, job: bytes, *, on_message: OnMessage | None = None, fresh: bool = False) -> ChildRun:
        """Have the job done. `on_message` gets what it says; what that returns, or awaits, answers its requests.

        A `fresh` job has a new process for itself alone.
        """
        if self._closing is not None:
            raise NotConnected("the pool of child processes is closed: jobs can be started only before that")
        run = ChildRun(job, on_message=on_message, is_fresh=fresh)
        with self._lock:
            self._runs.add(run)
        if self._idle and not fresh:
            self._give(run, self._idle.pop())
        else:
            self._give_to_new_child(run)
        return run

    def kill_all(self, *, timeout_seconds: float = 5.0) -> bool:
        """Kill every child, and wait until each is gone; False if one is not by then. Any thread may call this.

        Nothing is needed from the event loop, which may be blocked. Jobs that are started later get new children.
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
        """Kill what runs, let the idle children end, and return when every process is gone. May be called often."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for run in list(self._runs):
            run.kill()
        while self._idle:
            self._idle.pop().retire()
        while self._children:
            await next(iter(self._children)).is_settled.wait()

    # ------------------------------------------------------------ the way of a job

    def _give_to_new_child(self, run: ChildRun) -> None:
        try:
            child = ChildProcess(
                entry=self._entry, preload=self._preload, on_frame=self._take, on_gone=self._replace_or_settle
            )
        except (OSError, RuntimeError) as error:  # no more file descriptors, or no more threads
            self._finish(run, ChildNotStarted(f"a child process could not be started: {error}"))
            return
        with self._lock:
            self._children.add(child)
        self._give(run, child)

    def _give(self, run: ChildRun, child: ChildProcess) -> None:
        self._working[child] = run
        if run.is_kill_requested:
            child.kill()  # kill_all() came between, and may have looked before this child was there
        else:
            run.give_to(child)

    def _take(self, child: ChildProcess, frame: Frame) -> None:
        run = self._working.get(child)
        if run is None or run.is_kill_requested:
            return
        match frame.kind:
            case Kind.ACCEPTED:
                run.is_accepted = True
            case Kind.MESSAGE | Kind.REQUEST:
                run.take_message(frame)
            case Kind.RESULT:
                self._release(child, is_usable=not run.is_fresh)
                self._finish(run, frame.payload)
            case Kind.ERROR | Kind.UNUSABLE:
                self._release(child, is_usable=not run.is_fresh and frame.kind is Kind.ERROR)
                self._finish(run, ChildError(frame.payload.decode(errors="replace")))

    def _release(self, child: ChildProcess, *, is_usable: bool) -> None:
        del self._working[child]
        child.jobs_done += 1
        if is_usable and not self._is_worn(child):
            self._idle.append(child)
        else:
            child.retire()

    def _is_worn(self, child: ChildProcess) -> bool:
        if child.jobs_done >= self._recycle_after:
            return True
        return self._memory_limit_bytes is not None and child.resident_bytes() > self._memory_limit_bytes

    def _replace_or_settle(self, child: ChildProcess) -> None:
        """The child is gone. If it had a job, that is given to another, or ends here."""
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
        elif run.starts < MOST_STARTS:
            self._give_to_new_child(run)
        else:
            self._finish(run, ChildNotStarted(f"no child process took the job; the last one {child.fate}"))

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
