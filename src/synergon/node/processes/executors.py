"""The port to what runs code: threads, child processes, and whether another process of this host lives."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
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
"""What a child that has imported an application may well take."""


class Keeper(Protocol):
    """A loop that runs beside everything else."""

    async def stop(self) -> None:
        """End it, and wait for that."""


class Executor(Protocol):
    """Where bodies run that do not run on the node's loop."""

    @property
    def identity(self) -> ProcessIdentity:
        """This process."""

    def is_gone(self, process: ProcessIdentity) -> bool:
        """Whether that process is certainly dead."""

    async def resources(self) -> dict[str, int]:
        """What the machine has that tasks can use (`demands`)."""

    async def run_in_thread(self, function: Callable[[], Any], *, is_command: bool = False) -> Any:
        """What `function` returns; it must not raise. Commands have threads of their own."""

    def start_child(self, job: bytes, on_message: Callable[[bytes], Any], *, fresh: bool) -> ChildRun:
        """Run a job in a child process."""

    def room_for_children(self, most: int) -> int:
        """For how many children there is memory, up to `most`."""

    def kill_children(self) -> None:
        """Now, from any thread."""

    def start_keeper(self, keep: Callable[[asyncio.Event], Awaitable[None]]) -> Keeper:
        """Run `keep` where user code cannot hold it up; its event is set when it should end."""

    def exit_process(self, code: int) -> None:
        """End this process now, whatever it does."""

    async def close(self) -> None:
        """End the children; threads that still run are left alone."""


class LocalExecutor:
    """The real one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._bodies: ThreadPoolExecutor | None = None
        self._commands: ThreadPoolExecutor | None = None
        self._children: ChildPool | None = None
        self.identity = this_process()

    def is_gone(self, process: ProcessIdentity) -> bool:
        """Whether that process is certainly dead."""
        return is_gone(process)

    async def resources(self) -> dict[str, int]:
        """What the machine has that tasks can use."""
        return dict(await asyncio.to_thread(machine.resources))

    async def run_in_thread(self, function: Callable[[], Any], *, is_command: bool = False) -> Any:
        """What `function` returns. Commands have as many threads as places, so that a full node still obeys."""
        pool = self._command_threads() if is_command else self._body_threads()
        return await asyncio.get_running_loop().run_in_executor(pool, function)

    def _body_threads(self) -> ThreadPoolExecutor:
        if self._bodies is None:
            self._bodies = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="synergon-body")
        return self._bodies

    def _command_threads(self) -> ThreadPoolExecutor:
        if self._commands is None:
            self._commands = ThreadPoolExecutor(COMMANDS_AT_ONCE, thread_name_prefix="synergon-command")
        return self._commands

    def room_for_children(self, most: int) -> int:
        """For how many children there is memory, up to `most`."""
        try:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError):  # not every system tells
            return 0
        return min(most, free // CHILD_BYTES)

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
        """Now, from any thread."""
        if self._children is not None:
            self._children.kill_all()

    def start_keeper(self, keep: Callable[[asyncio.Event], Awaitable[None]]) -> Keeper:
        """Run `keep` on a thread with a loop of its own."""
        return ThreadKeeper(keep)

    def exit_process(self, code: int) -> None:
        """End this process now."""
        os._exit(code)

    async def close(self) -> None:
        """End the children."""
        if self._children is not None:
            await self._children.close()
        for pool in (self._bodies, self._commands):
            if pool is not None:
                pool.shutdown(wait=False)


class ThreadKeeper:
    """A thread with an event loop of its own."""

    def __init__(self, keep: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        self._keep = keep
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="synergon-lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End it, and wait for that."""
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._end.set)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._keep(self._end))
        finally:
            self._loop.close()
