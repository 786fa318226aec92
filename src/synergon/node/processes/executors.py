"""Executor: the port to threads, child processes and the operating system, and its implementation LocalExecutor."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, Protocol

from synergon.model.nodes import ProcessIdentity
from synergon.model.process_identity import is_gone, this_process
from synergon.node.capacity import machine
from synergon.node.claims.ledger import COMMANDS_AT_ONCE
from synergon.node.processes.child_logs import log_line
from synergon.node.processes.child_pool import ChildPool, ChildRun
from synergon.options.settings import Settings


class BackgroundRun(Protocol):
    """A running coroutine that task functions cannot block."""

    async def stop(self) -> None:
        """Request the end of the coroutine, and wait for it."""


class BackgroundLoop(Protocol):
    """A loop that runs in the background, such as the renewal of a node's lease."""

    async def run(self, end: asyncio.Event) -> None:
        """Run until `end` is set."""


class Executor(Protocol):
    """Runs task functions that do not run on the node's event loop, and gives access to the operating system."""

    @property
    def identity(self) -> ProcessIdentity:
        """The identity of this process."""

    def is_gone(self, process: ProcessIdentity) -> bool:
        """Whether the process is certainly dead."""

    async def resources(self) -> dict[str, int]:
        """The amount of each resource of the machine, in the units of requirements."""

    async def run_in_thread(self, function: Callable[[], Any], *, is_command: bool = False) -> Any:
        """Run `function`, which must not raise, and return its value. Commands have threads of their own."""

    def start_child(self, job: bytes, on_message: Callable[[bytes], Any], *, fresh: bool) -> ChildRun:
        """Run a job in a child process."""

    def kill_children(self) -> None:
        """Kill all children now. Thread-safe."""

    def start_in_background(self, loop: BackgroundLoop) -> BackgroundRun:
        """Run `loop.run` where task functions cannot block it. `BackgroundRun.stop` sets its event."""

    def exit_process(self, code: int) -> None:
        """End this process at once."""

    async def close(self) -> None:
        """End the children. Threads that still run are abandoned."""


class LocalExecutor:
    """Runs task functions in threads and child processes of this process."""

    child_entry: ClassVar[str] = "synergon.node.processes.child_job:run_attempt"
    """The function that a child calls with each job."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._task_threads: ThreadPoolExecutor | None = None
        self._command_threads: ThreadPoolExecutor | None = None
        self._children: ChildPool | None = None
        self.identity: Final = this_process()

    def is_gone(self, process: ProcessIdentity) -> bool:
        """Whether the process is certainly dead."""
        return is_gone(process)

    async def resources(self) -> dict[str, int]:
        """The amount of each resource of the machine, in the units of requirements."""
        return dict(await asyncio.to_thread(machine.resources))

    async def run_in_thread(self, function: Callable[[], Any], *, is_command: bool = False) -> Any:
        """Run `function`, and return its value. Commands have threads of their own, so that a full node can run
        them."""
        pool = self._threads_for_commands() if is_command else self._threads_for_tasks()
        return await asyncio.get_running_loop().run_in_executor(pool, function)

    def _threads_for_tasks(self) -> ThreadPoolExecutor:
        if self._task_threads is None:
            self._task_threads = ThreadPoolExecutor(self._settings.threads, thread_name_prefix="synergon-task")
        return self._task_threads

    def _threads_for_commands(self) -> ThreadPoolExecutor:
        if self._command_threads is None:
            self._command_threads = ThreadPoolExecutor(COMMANDS_AT_ONCE, thread_name_prefix="synergon-command")
        return self._command_threads

    def start_child(self, job: bytes, on_message: Callable[[bytes], Any], *, fresh: bool) -> ChildRun:
        """Run a job in a child process."""
        if self._children is None:
            self._children = ChildPool(
                entry=self.child_entry,
                recycle_after=self._settings.child_tasks,
                memory_limit_bytes=self._settings.child_memory,
                on_log=partial(log_line, node=self._settings.name),
            )
        return self._children.start(job, on_message=on_message, fresh=fresh)

    def kill_children(self) -> None:
        """Kill all children now. Thread-safe."""
        if self._children is not None:
            self._children.kill_all()

    def start_in_background(self, loop: BackgroundLoop) -> BackgroundRun:
        """Run `loop.run` on a thread with its own event loop."""
        return LoopThread(loop, "synergon-lease")

    def exit_process(self, code: int) -> None:
        """End this process at once."""
        os._exit(code)

    async def close(self) -> None:
        """End the children. Threads that still run are abandoned."""
        if self._children is not None:
            await self._children.close()
        for pool in (self._task_threads, self._command_threads):
            if pool is not None:
                pool.shutdown(wait=False)


class LoopThread:
    """Runs a coroutine on a thread with its own event loop."""

    def __init__(self, loop: BackgroundLoop, name: str) -> None:
        self._background_loop = loop
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Request the end of the coroutine, and wait for the thread."""
        with suppress(RuntimeError):  # the loop is closed: the coroutine has ended by itself
            self._loop.call_soon_threadsafe(self._end.set)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._background_loop.run(self._end))
        finally:
            self._loop.close()
