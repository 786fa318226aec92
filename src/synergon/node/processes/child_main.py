"""What runs inside a child process: it does the jobs its parent sends, one at a time, until it is told to end.

It never outlives its parent, whatever the job is doing. Where the system can, the kernel itself kills it and
everything the job has started (in the child's own process group) the moment the parent is gone: a job that holds the
interpreter's lock in C code, a regular expression for instance, keeps every thread from noticing. Elsewhere the thread
that reads from the parent does it.

Both sides talk in frames over one stream; the parent's half is in `children.py`. This module is imported before any
job, so it imports nothing that is slow to load.
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

CHUNK_BYTES: Final = 256 * 1024
HEADER: Final = struct.Struct("!BIQ")  # kind, request number, length of what follows


class Kind(IntEnum):
    """What a frame says."""

    # from the parent
    JOB = 1
    NOTE = 2
    ANSWER = 3
    REFUSAL = 4
    """There is no answer, and the text says why."""
    END = 5
    """No more jobs: end as a program does that has come to its last line."""

    # from the child
    ACCEPTED = 11
    """The body is about to run: from here on the child's death is the job's."""
    MESSAGE = 12
    REQUEST = 13
    RESULT = 14
    ERROR = 15
    """The entry function raised; the text is the traceback."""
    UNUSABLE = 16
    """What the child should have imported could not be; the text is the traceback."""


KIND_CODES: Final = frozenset(Kind)


class Frame(NamedTuple):
    """One piece of talk. `number` pairs an answer with its request and is 0 otherwise."""

    kind: Kind
    number: int = 0
    payload: bytes = b""

    def encode(self) -> bytes:
        """The frame as bytes."""
        return HEADER.pack(self.kind, self.number, len(self.payload)) + self.payload


class BadFrame(ValueError):
    """These bytes are no frame: somebody else has written into the stream."""


class FrameReader:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now, and `BadFrame` only after the good ones before it."""
        self._unread += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if len(self._unread) < HEADER.size:
            return None
        code, number, length = HEADER.unpack_from(self._unread)
        if code not in KIND_CODES:  # asked before the length is believed
            raise BadFrame(f"a frame cannot begin with {code}")
        frame_end = HEADER.size + length
        if len(self._unread) < frame_end:
            return None
        with memoryview(self._unread) as view:
            frame = Frame(Kind(code), number, bytes(view[HEADER.size : frame_end]))
        del self._unread[:frame_end]
        return frame


# ---------------------------------------------------------------- what a job sees


class ChannelClosed(RuntimeError):
    """The job has ended; a thread that it left behind has nobody to talk to any more."""


class RequestRefused(RuntimeError):
    """The parent could not answer the request."""


class ChildChannel:
    """A job's line to its parent. Every thread of the job may use it until the job ends."""

    _request_numbers = count(1)  # of the process, so that a late answer finds no request of a later job

    def __init__(self, fd: int) -> None:
        self.noted = threading.Event()
        """Set with the first note from the parent."""
        self._fd = fd
        self._lock = threading.Lock()
        self._is_open = True
        self._notes: list[bytes] = []
        self._waiting: dict[int, SimpleQueue[Frame | None]] = {}

    @property
    def notes(self) -> tuple[bytes, ...]:
        """What the parent has said so far, oldest first."""
        return tuple(self._notes)

    def send(self, message: bytes) -> None:
        """Tell the parent something. Waits only while the parent is behind with reading."""
        with self._lock:
            self._write(Frame(Kind.MESSAGE, payload=message))

    def request(self, message: bytes) -> bytes:
        """Ask the parent something and wait for its answer; `RequestRefused` if it has none."""
        answers: SimpleQueue[Frame | None] = SimpleQueue()
        number = next(self._request_numbers)
        with self._lock:
            self._waiting[number] = answers
            self._write(Frame(Kind.REQUEST, number, message))
        match answers.get():
            case Frame(kind=Kind.ANSWER, payload=answer):
                return answer
            case Frame(payload=text):
                raise RequestRefused(text.decode())
            case None:
                raise ChannelClosed("the job ended before the parent answered")

    def finish(self, last: Frame) -> None:
        """Send the job's last frame. Nothing follows it, so the next job's talk is its own."""
        with self._lock:
            self._write(last)
            self._is_open = False
            for answers in list(self._waiting.values()):  # the receiving thread may take one out meanwhile
                answers.put(None)

    def take_note(self, note: bytes) -> None:
        """Called with what the parent says."""
        self._notes.append(note)
        self.noted.set()

    def take_answer(self, frame: Frame) -> None:
        """Called with the parent's answer or refusal."""
        if (answers := self._waiting.pop(frame.number, None)) is not None:
            answers.put(frame)

    def accept(self) -> None:
        """Tell the parent that the body is about to run."""
        with self._lock:
            self._write(Frame(Kind.ACCEPTED))

    def _write(self, frame: Frame) -> None:
        if not self._is_open:
            raise ChannelClosed("the job has ended and its channel takes no more messages")
        data = memoryview(frame.encode())
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BaseException:  # noqa: BLE001
            # Half a frame may be out, from a signal handler that raised for instance: the parent could make
            # nothing of what followed.
            end_at_once()


Entry = Callable[[bytes, ChildChannel], bytes]

# ---------------------------------------------------------------- the process


def main(channel_fd: int, lifeline_fd: int, entry_name: str, preload: list[str]) -> None:
    """The whole life of a child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd in (channel_fd, lifeline_fd):
        os.set_inheritable(fd, False)
    _tie_to(lifeline_fd)
    try:
        _Child(channel_fd).work(entry_name, preload)
    except BaseException:  # noqa: BLE001  a signal handler that a job left behind may raise anything
        _give_up()


class _Child:
    """Takes jobs in one thread, and does them in the main thread as a script would."""

    def __init__(self, channel_fd: int) -> None:
        self._fd = channel_fd
        self._pid = os.getpid()
        self._channel = ChildChannel(channel_fd)
        self._jobs: SimpleQueue[tuple[bytes, ChildChannel] | None] = SimpleQueue()

    def work(self, entry_name: str, preload: list[str]) -> None:
        """Do jobs until there are no more."""
        threading.Thread(target=self._receive, name="synergon-parent", daemon=True).start()
        entry = _load(entry_name, preload)
        while (job := self._jobs.get()) is not None:
            payload, channel = job
            channel.accept()
            channel.finish(entry if isinstance(entry, Frame) else self._do(entry, payload, channel))

    def _do(self, entry: Entry, payload: bytes, channel: ChildChannel) -> Frame:
        try:
            last = Frame(Kind.RESULT, payload=_check_answer(entry(payload, channel)))
        except BaseException as error:  # noqa: BLE001  whatever a body raises is its outcome, and the child lives on
            last = Frame(Kind.ERROR, payload=_describe(error))
        if os.getpid() != self._pid:
            os._exit(0)  # a fork of the body that came back out of it: the job is not its own
        _flush_output()
        return last

    def _receive(self) -> None:
        reader = FrameReader()
        try:
            while data := os.read(self._fd, CHUNK_BYTES):
                for frame in reader.feed(data):
                    self._take(frame)
        finally:
            end_at_once()  # the parent is gone, or cannot be understood any more

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.JOB:
                # Made here and not where the job is done, so that a note that follows the job finds its channel.
                self._channel = ChildChannel(self._fd)
                self._jobs.put((frame.payload, self._channel))
            case Kind.NOTE:
                self._channel.take_note(frame.payload)
            case Kind.END:
                self._jobs.put(None)
            case _:
                self._channel.take_answer(frame)


def end_at_once() -> NoReturn:
    """End this process and whatever its job has started."""
    try:
        os.killpg(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)


def _tie_to(lifeline_fd: int) -> None:
    """Let the kernel kill this process group when the parent's end of the lifeline closes."""
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, os.O_ASYNC)
    is_cut_already, _, _ = select.select([lifeline_fd], [], [], 0)
    if is_cut_already:
        end_at_once()


def _load(entry_name: str, preload: list[str]) -> Entry | Frame:
    """The entry function, or what to say to every job because there is none."""
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
    """Show what the job has printed: the next job may be hours away, and a kill would lose it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed by the job, or gone
            stream.flush()


def _describe(error: BaseException) -> bytes:
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  an exception may break whoever looks at it
        text = f"{type(error).__name__}: its traceback cannot be shown"
    return text.encode(errors="backslashreplace")


def _give_up() -> NoReturn:
    """Say why, and end. At once, because a thread that a job left behind would keep half a child alive."""
    try:
        traceback.print_exc()
    finally:
        os._exit(1)
