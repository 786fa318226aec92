"""Executor: the port to threads, child processes and the operating system, and its implementation LocalExecutor."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Protocol

from synergon.model.nodes import ProcessIdentity
from synergon.model.process_identity import is_gone, this_process
from synergon.node.capacity import machine
from synergon.node.claims.ledger import COMMANDS_AT_ONCE
from synergon.node.processes.child_pool import ChildPool, ChildRun
from synergon.options.settings import Settings

CHILD_BYTES: Final = 128 * 1024 * 1024
"""Assumed memory of a child that has imported an application."""


class BackgroundRun(Protocol):
    """A coroutine that runs where task functions cannot block it."""

    async def stop(self) -> None:
        """Ask it to end and wait for that."""


class BackgroundLoop(Protocol):
    """What runs in the background: the lease of a node."""

    async def run(self, end: asyncio.Event) -> None:
        """Go on until `end` is set."""


class Executor(Protocol):
    """Runs task functions that do not run on the node's event loop."""

    @property
    def identity(self) -> ProcessIdentity:
        """The identity of this process."""

    def is_gone(self, process: ProcessIdentity) -> bool:
        """Whether that process is certainly dead."""

    async def resources(self) -> dict[str, int]:
        """The machine's resources, in the units of requirements."""

    async def run_in_thread(self, function: Callable[[], Any], *, is_command: bool = False) -> Any:
        """Run `function`, which must not raise, and return its value. Commands have threads of their own."""

    def start_child(self, job: bytes, on_message: Callable[[bytes], Any], *, fresh: bool) -> ChildRun:
        """Run a job in a child process."""

    def children_that_fit(self, limit: int) -> int:
        """How many children fit into the free memory, at most `limit`."""

    def kill_children(self) -> None:
        """Kill all children now. Thread-safe."""

    def start_in_background(self, loop: BackgroundLoop) -> BackgroundRun:
        """Run `loop.run` where task functions cannot block it; its event is set when it should end."""

    def exit_process(self, code: int) -> None:
        """End this process at once."""

    async def close(self) -> None:
        """End the children; threads that still run are abandoned."""


class LocalExecutor:
    """Runs task functions in threads and child processes of this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._task_threads: ThreadPoolExecutor | None = None
        self._command_threads: ThreadPoolExecutor | None = None
        self._children: ChildPool | None = None
        self.identity = this_process()

    def is_gone(self, process: ProcessIdentity) -> bool:
        """Whether that process is certainly dead."""
        return is_gone(process)

    async def resources(self) -> dict[str, int]:
        """The machine's resources, in the units of requirements."""
        return dict(await asyncio.to_thread(machine.resources))

    async def run_in_thread(self, function: Callable[[], Any], *, is_command: bool = False) -> Any:
        """Run `function` and return its value. Commands have threads of their own, so a full node still runs them."""
        pool = self._threads_for_commands() if is_command else self._threads_for_tasks()
        return await asyncio.get_running_loop().run_in_executor(pool, function)

    def _threads_for_tasks(self) -> ThreadPoolExecutor:
        if self._task_threads is None:
            self._task_threads = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="synergon-task")
        return self._task_threads

    def _threads_for_commands(self) -> ThreadPoolExecutor:
        if self._command_threads is None:
            self._command_threads = ThreadPoolExecutor(COMMANDS_AT_ONCE, thread_name_prefix="synergon-command")
        return self._command_threads

    def children_that_fit(self, limit: int) -> int:
        """How many children fit into the free memory, at most `limit`; 0 if the system does not say."""
        try:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError):
            return 0
        return min(limit, free // CHILD_BYTES)

    def start_child(self, job: bytes, on_message: Callable[[bytes], Any], *, fresh: bool) -> ChildRun:
        """Run a job in a child process."""
        if self._children is None:
            self._children = ChildPool(
                entry="synergon.node.processes.child_job:run_attempt",
                recycle_after=self._settings.child_tasks,
                memory_limit_bytes=self._settings.child_memory,
            )
        return self._children.start(job, on_message=on_message, fresh=fresh)

    def kill_children(self) -> None:
        """Kill all children now. Thread-safe."""
        if self._children is not None:
            self._children.kill_all()

    def start_in_background(self, loop: BackgroundLoop) -> BackgroundRun:
        """Run `loop.run` on a thread with its own event loop."""
        return LoopThread(loop)

    def exit_process(self, code: int) -> None:
        """End this process at once."""
        os._exit(code)

    async def close(self) -> None:
        """End the children; threads that still run are abandoned."""
        if self._children is not None:
            await self._children.close()
        for pool in (self._task_threads, self._command_threads):
            if pool is not None:
                pool.shutdown(wait=False)


class LoopThread:
    """Runs a coroutine on a thread with its own event loop."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._background_loop = loop
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="synergon-lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Ask the coroutine to end and wait for the thread."""
        with suppress(RuntimeError):  # the loop is closed: the coroutine has ended by itself
            self._loop.call_soon_threadsafe(self._end.set)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._background_loop.run(self._end))
        finally:
            self._loop.close()
