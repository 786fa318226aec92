"""The main program of a child process: runs the jobs that its parent sends, one at a time, until the parent sends END.

A child never outlives its parent, whatever its job does. On Linux the kernel kills the child's process group, including
everything that the job has started, as soon as the parent has ended. No thread could do that while a job holds the
interpreter lock in C code, for instance in a regular expression. On other systems the thread that reads from the parent
does it.

Both sides exchange frames over one stream; the parent's side is in `child_process.py`. This module is imported before
any job, so it imports nothing that is slow to load.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import select
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from itertools import count
from queue import SimpleQueue
from typing import Final, NamedTuple, NoReturn

# ---------------------------------------------------------------- frames, for both sides

CHUNK_BYTES: Final = 32 * 1024
LOG_SECONDS: Final = 5.0
"""How many seconds a log record waits for the stream."""
HEADER: Final = struct.Struct("!BIQ")  # kind, request number, length of what follows


class Kind(IntEnum):
    """The type of a frame."""

    # from the parent
    JOB = 1
    NOTE = 2
    ANSWER = 3
    REJECTION = 4
    """The request has no answer; the payload says why."""
    END = 5
    """No more jobs: exit normally."""

    # from the child
    ACCEPTED = 11
    """The job is about to run. If the child dies after this, the death counts against the job."""
    MESSAGE = 12
    REQUEST = 13
    RESULT = 14
    ERROR = 15
    """The entry function raised; the payload is the traceback."""
    UNUSABLE = 16
    """An import failed, so the child cannot run jobs; the payload is the traceback."""
    LOG = 17
    """A log record. It belongs to the child and not to its job, so it may come at any time."""


FRAME_TYPES: Final = frozenset(Kind)


class Frame(NamedTuple):
    """A message between parent and child. `number` pairs an answer with its request; it is 0 in other frames."""

    kind: Kind
    number: int = 0
    payload: bytes = b""

    def encode(self) -> bytes:
        """The frame as bytes."""
        return HEADER.pack(self.kind, self.number, len(self.payload)) + self.payload


class BadFrame(ValueError):
    """The bytes are not a frame: other code has written to the stream."""


class FrameReader:
    """Splits a stream into frames."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete now. After the valid frames, raises BadFrame if the following bytes are
        not a frame."""
        self._unread += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if len(self._unread) < HEADER.size:
            return None
        code, number, length = HEADER.unpack_from(self._unread)
        if code not in FRAME_TYPES:  # checked before the length, which would be garbage too
            raise BadFrame(f"a frame cannot begin with {code}")
        frame_end = HEADER.size + length
        if len(self._unread) < frame_end:
            return None
        with memoryview(self._unread) as view:
            frame = Frame(Kind(code), number, bytes(view[HEADER.size : frame_end]))
        del self._unread[:frame_end]
        return frame


# ---------------------------------------------------------------- the channel of a job


class ChannelClosed(RuntimeError):
    """The job has ended. Threads that it left running can no longer send."""


class RequestRejected(RuntimeError):
    """The parent could not answer the request."""


class ChildChannel:
    """Exchanges messages between a job and its parent. Thread-safe; closed when the job ends."""

    _lock = threading.Lock()  # one for all: a process has one stream
    _request_numbers = count(1)  # unique in the process, so a late answer never matches a request of a later job

    def __init__(self, fd: int) -> None:
        self.noted: Final = threading.Event()
        """Set when the parent has sent a note."""
        self._fd = fd
        self._is_open = True
        self._notes: list[bytes] = []
        self._waiting: dict[int, SimpleQueue[Frame | None]] = {}

    @property
    def notes(self) -> tuple[bytes, ...]:
        """The notes from the parent so far, oldest first."""
        return tuple(self._notes)

    def send(self, message: bytes) -> None:
        """Send a message to the parent. Blocks only while the socket's buffer is full."""
        with self._lock:
            self._write(Frame(Kind.MESSAGE, payload=message))

    def send_log(self, line: bytes) -> bool:
        """Send a log record to the parent, even after the end of the job. Returns False if the stream is not free in
        time, for instance if the caller is a signal handler that interrupted a write."""
        if not self._lock.acquire(timeout=LOG_SECONDS):
            return False
        try:
            self._write_out(Frame(Kind.LOG, payload=line))
        finally:
            self._lock.release()
        return True

    def request(self, message: bytes) -> bytes:
        """Send a request to the parent, and return its answer. Raises RequestRejected if the parent has no answer, and
        ChannelClosed if the job ends first."""
        answers: SimpleQueue[Frame | None] = SimpleQueue()
        number = next(self._request_numbers)
        with self._lock:
            self._waiting[number] = answers
            self._write(Frame(Kind.REQUEST, number, message))
        match answers.get():
            case Frame(kind=Kind.ANSWER, payload=answer):
                return answer
            case Frame(payload=text):
                raise RequestRejected(text.decode())
            case None:
                raise ChannelClosed("the job ended before the parent answered")

    def finish(self, last: Frame) -> None:
        """Send the job's last frame and close the channel, so that nothing of this job mixes with the next one."""
        with self._lock:
            self._write(last)
            self._is_open = False
            for answers in list(self._waiting.values()):  # a copy: the receiving thread may remove one meanwhile
                answers.put(None)

    def take_note(self, note: bytes) -> None:
        """Store a note from the parent."""
        self._notes.append(note)
        self.noted.set()

    def take_answer(self, frame: Frame) -> None:
        """Pass an answer or rejection from the parent to the thread that waits for it."""
        if (answers := self._waiting.pop(frame.number, None)) is not None:
            answers.put(frame)

    def accept(self) -> None:
        """Report to the parent that the job is about to run."""
        with self._lock:
            self._write(Frame(Kind.ACCEPTED))

    def _write(self, frame: Frame) -> None:
        if not self._is_open:
            raise ChannelClosed("the job has ended and its channel takes no more messages")
        self._write_out(frame)

    def _write_out(self, frame: Frame) -> None:
        data = memoryview(frame.encode())
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BaseException:  # noqa: BLE001
            # Half a frame may have been written, for instance if a signal handler raised; the parent could not parse
            # what followed.
            end_at_once()


Entry = Callable[[bytes, ChildChannel], bytes]

# ---------------------------------------------------------------- the process


def main(channel_fd: int, lifeline_fd: int, entry_name: str, preload: list[str]) -> None:
    """Run the child process: tie it to its parent, then run jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd in (channel_fd, lifeline_fd):
        os.set_inheritable(fd, False)
    _tie_to(lifeline_fd)
    try:
        _Child(channel_fd).work(entry_name, preload)
    except BaseException:  # noqa: BLE001  a signal handler installed by a job may raise anything
        _print_and_exit()


class _Child:
    """Receives jobs on one thread, and runs them on the main thread, as a script would run."""

    def __init__(self, channel_fd: int) -> None:
        self._fd = channel_fd
        self._pid = os.getpid()
        self._channel = ChildChannel(channel_fd)
        self._jobs: SimpleQueue[tuple[bytes, ChildChannel] | None] = SimpleQueue()

    def work(self, entry_name: str, preload: list[str]) -> None:
        """Run jobs until the parent sends END."""
        threading.Thread(target=self._receive, name="synergon-parent", daemon=True).start()
        entry = _load(entry_name, preload)
        while (job := self._jobs.get()) is not None:
            payload, channel = job
            channel.accept()
            channel.finish(entry if isinstance(entry, Frame) else self._run(entry, payload, channel))

    def _run(self, entry: Entry, payload: bytes, channel: ChildChannel) -> Frame:
        try:
            last = Frame(Kind.RESULT, payload=_check_answer(entry(payload, channel)))
        except BaseException as error:  # noqa: BLE001  whatever a job raises is its outcome; the child goes on
            last = Frame(Kind.ERROR, payload=_describe(error))
        if os.getpid() != self._pid:
            os._exit(0)  # the job forked and the fork returned here; only the original may answer
        _flush_output()
        return last

    def _receive(self) -> None:
        reader = FrameReader()
        try:
            while data := os.read(self._fd, CHUNK_BYTES):
                for frame in reader.feed(data):
                    self._handle(frame)
        finally:
            end_at_once()  # the parent is gone, or the stream is corrupt

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.JOB:
                # Made in this thread, not where the job runs, so that a note right after the job finds its channel.
                self._channel = ChildChannel(self._fd)
                self._jobs.put((frame.payload, self._channel))
            case Kind.NOTE:
                self._channel.take_note(frame.payload)
            case Kind.END:
                self._jobs.put(None)
            case _:
                self._channel.take_answer(frame)


def end_at_once() -> NoReturn:
    """Kill this process and all processes in its group."""
    try:
        os.killpg(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)


def _tie_to(lifeline_fd: int) -> None:
    """Make the kernel kill this process group when the parent's end of the lifeline pipe closes. Ends at once if it is
    closed already."""
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, os.O_ASYNC)
    is_cut_already, _, _ = select.select([lifeline_fd], [], [], 0)
    if is_cut_already:
        end_at_once()


def _load(entry_name: str, preload: list[str]) -> Entry | Frame:
    """The entry function, or, if it cannot be imported, the frame that answers every job."""
    entry_module, _, function_name = entry_name.partition(":")
    try:
        for module_name in preload:
            importlib.import_module(module_name)
        entry: Entry = getattr(importlib.import_module(entry_module), function_name)
    except BaseException as error:  # noqa: BLE001  a module may raise anything, SystemExit too
        return Frame(Kind.UNUSABLE, payload=_describe(error))
    return entry


def _check_answer(answer: object) -> bytes:
    if not isinstance(answer, bytes):
        raise TypeError(f"the entry function must return bytes, got {type(answer).__name__}")
    return answer


def _flush_output() -> None:
    """Flush what the job has printed: the next flush may be hours away, and a kill would lose the output."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed by the job, or gone
            stream.flush()


def _describe(error: BaseException) -> bytes:
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  formatting calls methods of the exception, which may raise anything
        text = f"{type(error).__name__}: its traceback cannot be shown"
    return text.encode(errors="backslashreplace")


def _print_and_exit() -> NoReturn:
    """Print the traceback and exit at once. A normal exit would wait for threads that a job left running."""
    try:
        traceback.print_exc()
    finally:
        os._exit(1)
