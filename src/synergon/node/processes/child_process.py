"""One child process, seen from its parent: from before its start until it has been waited for.

It is gone when this says so, and not before. What it said before it died is heard first. Everything it has started in
its process group dies with it, and it dies with this process, even if that is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from synergon.node.processes.child_main import CHUNK_BYTES, BadFrame, Frame, FrameReader, Kind

ENDING_SECONDS: Final = 5.0
"""How long a child may take to end by itself; a thread that a job left behind could keep it for ever."""
BOOTSTRAP: Final = (
    "import sys; fds, entry, preload, sys.path[:] = sys.argv[1:3], sys.argv[3], sys.argv[4].split(), sys.argv[5:]; "
    "del sys.argv[1:]; from synergon.node.processes.child_main import main; main(*map(int, fds), entry, preload)"
)

_lifelines: set[int] = set()


def _drop_lifelines() -> None:
    """In a fork of this process: it must not keep alive what should die with its original."""
    for fd in _lifelines:
        os.close(fd)


os.register_at_fork(after_in_child=_drop_lifelines)


class ChildProcess:
    """A process that does jobs, and the line to it.

    The line belongs to the event loop. Life and death belong to a thread: starting takes too long for the loop, and
    killing and waiting must work while the loop is blocked. `kill` and `wait` may be called from any thread.
    """

    def __init__(
        self,
        *,
        entry: str,
        preload: Sequence[str],
        on_frame: Callable[[ChildProcess, Frame], None],
        on_gone: Callable[[ChildProcess], None],
    ) -> None:
        self.jobs_done = 0
        self.pid: int | None = None
        self.exit_code = 0
        self.start_error: Exception | None = None
        self.is_kill_requested = False
        self.is_settled = asyncio.Event()
        """Set on the event loop after `on_gone` was called."""
        self._arguments = (entry, " ".join(preload), *sys.path)
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._ending: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._begin()

    def _begin(self) -> None:
        with ExitStack() as undo:
            self._socket, their_socket = socket.socketpair()
            undo.callback(self._socket.close)
            undo.callback(their_socket.close)
            their_lifeline, self._lifeline = os.pipe()
            undo.callback(os.close, their_lifeline)
            undo.callback(os.close, self._lifeline)
            self._thread = threading.Thread(
                target=self._live, args=(their_socket, their_lifeline), name="synergon-child", daemon=True
            )
            self._thread.start()
            undo.pop_all()
        _lifelines.add(self._lifeline)
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._read)

    # ------------------------------------------------------------ talk, on the event loop

    def send(self, frame: Frame) -> None:
        """Send without waiting. What a dying child does not read is lost; `on_gone` follows."""
        self._unsent += frame.encode()
        self._write()

    def retire(self) -> None:
        """Let it end by itself, but not for ever."""
        self.send(Frame(Kind.END))
        self._ending = self._loop.call_later(ENDING_SECONDS, self.kill)

    def resident_bytes(self) -> int:
        """How much memory it has now; 0 if it is gone."""
        import psutil  # slow to import, and only needed where memory is limited

        try:
            resident: int = psutil.Process(self.pid).memory_info().rss
        except psutil.Error:
            return 0
        return resident

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if self._unsent:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> bool:
        """Hear what there is, up to one chunk, so that no child holds up the others. False: there was nothing."""
        try:
            data = self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._break_off()
            return False
        self._hear(data)
        return True

    def _hear(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._on_frame(self, frame)
        except BadFrame:
            self._break_off()

    def _break_off(self) -> None:
        """It cannot be understood, or will not say anything more: most often it is dying already."""
        self._loop.remove_reader(self._socket)
        self._kill_group()

    def _settle(self) -> None:
        while self._read():
            pass
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        _lifelines.discard(self._lifeline)
        os.close(self._lifeline)
        if self._ending is not None:
            self._ending.cancel()
        self._thread.join()
        self._on_gone(self)
        self.is_settled.set()

    # ------------------------------------------------------------ life and death, on any thread

    @property
    def fate(self) -> str:
        """How it ended, to follow a name."""
        if self.start_error is not None:
            return f"could not be started: {self.start_error}"
        return describe_end(self.exit_code)

    def kill(self) -> None:
        """End it now, or as soon as it is started."""
        self.is_kill_requested = True
        self._kill_group()

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it is gone, at the latest after this time."""
        self._thread.join(max(timeout_seconds, 0))
        return not self._thread.is_alive()

    def _live(self, their_socket: socket.socket, their_lifeline: int) -> None:
        """The child's whole life, as its thread sees it."""
        try:
            process = self._start(their_socket.fileno(), their_lifeline)
        except Exception as error:  # noqa: BLE001  an odd sys.path too; the job must hear of it
            self.start_error = error
        finally:
            their_socket.close()
            os.close(their_lifeline)
        if self.start_error is None:
            self._outlive(process)
        with suppress(RuntimeError):  # the event loop was closed before the pool: nobody wants to know
            self._loop.call_soon_threadsafe(self._settle)

    def _start(self, channel_fd: int, lifeline_fd: int) -> subprocess.Popen[bytes]:
        # The flags of this interpreter (-O, -W, -X, ...), as multiprocessing hands them over.
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", BOOTSTRAP, str(channel_fd), str(lifeline_fd), *self._arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=(channel_fd, lifeline_fd),
            # A group of its own: what the terminal or a supervisor sends to ours is for us to act upon, and what a
            # body starts can be killed together with it. A session, so that a body cannot stop to ask the terminal.
            start_new_session=True,
        )
        with self._lock:
            self._process, self.pid = process, process.pid
        if self.is_kill_requested:
            self._kill_group()
        return process

    def _outlive(self, process: subprocess.Popen[bytes]) -> None:
        _wait_without_reaping(process)
        self._kill_group()
        with self._lock:
            self.exit_code = process.wait()
            self._process = None

    def _kill_group(self) -> None:
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if self._process is not None:
                os.killpg(self._process.pid, signal.SIGKILL)


def _wait_without_reaping(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end, but leave its pid taken, so that a kill cannot hit a process that got the same one."""
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):  # somebody else has reaped it
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def describe_end(exit_code: int) -> str:
    """How a process ended, in words."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    hint = ", from outside or for lack of memory" if exit_code == -signal.SIGKILL else ""
    return f"was ended by {name_signal(-exit_code)}{hint}"


def name_signal(number: int) -> str:
    """Its name, as `kill` knows it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
