"""Processes of a system: started, told, listened to, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.postgres.app import TALLY
from benchmarks.postgres.systems import HERE, System

PATIENCE_SECONDS: Final = 60.0
"""For the next word of a process, and for its end."""
LONGEST_LINE: Final = 1 << 20


class SystemProcess:
    """A process that does one thing for its system, and what it says about that."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def hear(self, about: str) -> dict[str, Any]:
        """The next thing that it says about this."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while about not in (said := await self._next()):
                pass
            return said

    async def _next(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark has ended: exit code {await self._process.wait()}")
        return msgspec.json.decode(line, type=dict[str, Any])

    async def say(self, number: int) -> None:
        """Give it a number."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % number)
        await self._process.stdin.drain()

    async def ended(self) -> None:
        """Return when it has done what it was started for, or raise."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            code = await self._process.wait()
        if code:
            raise RuntimeError(f"a process of the benchmark has failed: exit code {code}")


@contextlib.asynccontextmanager
async def started(system: System, url: str, *what: object, tally: Path | None = None) -> AsyncIterator[SystemProcess]:
    """A process of the system; killed at the end, because nothing it holds is wanted any more."""
    marks = {} if tally is None else {TALLY: str(tally)}
    process = await asyncio.create_subprocess_exec(
        system.python,
        *("-m", "benchmarks.postgres", system.name, url, *map(str, what)),
        env={**os.environ, **marks, "PYTHONPATH": os.pathsep.join([str(HERE / "src"), str(HERE)])},
        stdin=PIPE,
        stdout=PIPE,
        limit=LONGEST_LINE,
        start_new_session=True,
    )
    try:
        yield SystemProcess(process)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def done(system: System, url: str, *what: object, about: str) -> dict[str, Any]:
    """What a process that does one thing says about it when it has done it."""
    async with started(system, url, *what) as process:
        said = await process.hear(about)
        await process.ended()
        return said
