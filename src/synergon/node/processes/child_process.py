"""ChildProcess: a child process, seen from its parent. It calls `ChildPool.handle_gone` when the process has ended and
all its frames are read. The child's process group ends with the child. The child ends with the parent, even if the
parent is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from synergon.node.processes.child_main import CHUNK_BYTES, BadFrame, Frame, FrameReader, Kind

if TYPE_CHECKING:
    from synergon.node.processes.child_pool import ChildPool

EXIT_SECONDS: Final = 5.0
"""How many seconds a child may take to exit by itself. A thread that a job left running could keep it alive for
ever."""
BOOTSTRAP: Final = (
    "import sys; fds, entry, preload, sys.path[:] = sys.argv[1:3], sys.argv[3], sys.argv[4].split(), sys.argv[5:]; "
    "del sys.argv[1:]; from synergon.node.processes.child_main import main; main(*map(int, fds), entry, preload)"
)

_lifelines: set[int] = set()


def _drop_lifelines() -> None:
    """Close the lifelines in a fork of this process: children must end with the original process, not with the fork."""
    for fd in _lifelines:
        os.close(fd)


os.register_at_fork(after_in_child=_drop_lifelines)


class ChildProcess:
    """A process that runs jobs, and the socket to it.

    The socket is used on the event loop. A thread starts the process and waits for its end: starting takes too long for
    the loop, and killing and waiting must work while the loop is blocked. `kill` and `wait` are thread-safe.
    """

    def __init__(
        self,
        *,
        entry: str,
        preload: Sequence[str],
        pool: ChildPool,
    ) -> None:
        self.jobs_done = 0
        self.pid: int | None = None
        self.exit_code: int = 0
        self.start_error: Exception | None = None
        self.is_kill_requested: bool = False
        self.is_over: Final = asyncio.Event()
        """Set on the event loop after `ChildPool.handle_gone` was called."""
        self._arguments = (entry, " ".join(preload), *sys.path)
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._exit_timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._start_thread()

    def _start_thread(self) -> None:
        with ExitStack() as undo:
            self._socket, their_socket = socket.socketpair()
            undo.callback(self._socket.close)
            undo.callback(their_socket.close)
            their_lifeline, self._lifeline = os.pipe()
            undo.callback(os.close, their_lifeline)
            undo.callback(os.close, self._lifeline)
            self._thread = threading.Thread(
                target=self._run, args=(their_socket, their_lifeline), name="synergon-child", daemon=True
            )
            self._thread.start()
            undo.pop_all()
        _lifelines.add(self._lifeline)
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._read)

    # ------------------------------------------------------------ frames, on the event loop

    def send(self, frame: Frame) -> None:
        """Send a frame without waiting. A frame that a dying child does not read is lost."""
        self._unsent += frame.encode()
        self._write()

    def retire(self) -> None:
        """Ask the process to exit. Kill it if it has not done so after EXIT_SECONDS."""
        self.send(Frame(Kind.END))
        self._exit_timer = self._loop.call_later(EXIT_SECONDS, self.kill)

    def resident_bytes(self) -> int:
        """The resident memory of the process in bytes. 0 if the process has ended."""
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
        """Read at most one chunk, so that no child delays the others. Returns False if there was nothing to read."""
        try:
            data = self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._disconnect()
            return False
        self._handle_data(data)
        return True

    def _handle_data(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._pool.handle_frame(self, frame)
        except BadFrame:
            self._disconnect()

    def _disconnect(self) -> None:
        """Stop reading and kill the process: its stream is corrupt or closed. Most often the process is already
        dying."""
        self._loop.remove_reader(self._socket)
        self._kill_group()

    def _conclude(self) -> None:
        while self._read():
            pass
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        _lifelines.discard(self._lifeline)
        os.close(self._lifeline)
        if self._exit_timer is not None:
            self._exit_timer.cancel()
        self._thread.join()
        self._pool.handle_gone(self)
        self.is_over.set()

    # ------------------------------------------------------------ start and end, on any thread

    @property
    def how_it_ended(self) -> str:
        """How the process ended, as the predicate of a sentence."""
        if self.start_error is not None:
            return f"failed to start: {self.start_error}"
        return describe_end(self.exit_code)

    def kill(self) -> None:
        """Kill the process now, or as soon as it has started."""
        self.is_kill_requested = True
        self._kill_group()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the process has ended, for at most `timeout_seconds`. Returns whether it has ended."""
        self._thread.join(max(timeout_seconds, 0))
        return not self._thread.is_alive()

    def _run(self, their_socket: socket.socket, their_lifeline: int) -> None:
        """Start the process, and wait for its end. Runs on the thread."""
        try:
            process = self._start(their_socket.fileno(), their_lifeline)
        except Exception as error:  # noqa: BLE001  an odd sys.path too; the job must hear of it
            self.start_error = error
        finally:
            their_socket.close()
            os.close(their_lifeline)
        if self.start_error is None:
            self._wait_for_exit(process)
        with suppress(RuntimeError):  # the event loop was closed before the pool, which need not be told any more
            self._loop.call_soon_threadsafe(self._conclude)

    def _start(self, channel_fd: int, lifeline_fd: int) -> subprocess.Popen[bytes]:
        # The flags of this interpreter (-O, -W, -X, ...), as multiprocessing passes them on.
        # Private, but the only list of the flags that a child of this interpreter needs; multiprocessing uses it, too.
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", BOOTSTRAP, str(channel_fd), str(lifeline_fd), *self._arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=(channel_fd, lifeline_fd),
            # An own process group: signals that a terminal or supervisor sends to our group do not reach the child,
            # and processes that a job starts can be killed with it. An own session: a job has no terminal to wait for.
            start_new_session=True,
        )
        with self._lock:
            self._process, self.pid = process, process.pid
        if self.is_kill_requested:
            self._kill_group()
        return process

    def _wait_for_exit(self, process: subprocess.Popen[bytes]) -> None:
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
    """Wait for the exit but keep the pid reserved, so that a kill cannot hit another process with the same pid."""
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):  # other code in this process has reaped it
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def describe_end(exit_code: int) -> str:
    """How a process ended, as the predicate of a sentence."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    hint = " (by another process, or out of memory)" if exit_code == -signal.SIGKILL else ""
    return f"was killed by {name_signal(-exit_code)}{hint}"


def name_signal(number: int) -> str:
    """The name of a signal, as `kill -l` lists it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
