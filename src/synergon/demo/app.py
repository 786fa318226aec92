"""The app that the demo's workers run. It has several kinds of tasks. Each task function logs its start and end."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import threading
from typing import Final

from synergon.context import Context
from synergon.demo.task_log import log_run
from synergon.engine import Engine
from synergon.policies import Retry

URL_VARIABLE: Final = "SYNERGON_DEMO_URL"
ENCODERS: Final = 6
ENCODE_SECONDS: Final = 1.5

engine: Final = Engine(
    os.environ.get(URL_VARIABLE, "memory://"),
    concurrency=32,
    child_processes=2,
    # The demo's own process enqueues without peering; a short sweep makes the workers see its tasks soon.
    sweep="50ms",
)


@engine.task(priority=100)
async def alert(ctx: Context, number: int) -> int:
    """A task with a high priority that takes no time."""
    with log_run(ctx):
        return number


@engine.task(priority=10, retry=Retry(attempts=4, first=0.5))
async def charge(ctx: Context, order: int) -> int:
    """A task that waits for a bank. Every tenth charge fails at its first attempt."""
    with log_run(ctx):
        await asyncio.sleep(0.01)
        if order % 10 == 0 and ctx.attempt == 1:
            raise ConnectionError("the bank does not answer")
        return order


@engine.task
async def mail(ctx: Context, number: int) -> int:
    """A task that waits for a mail server."""
    with log_run(ctx):
        await asyncio.sleep(0.02)
        return number


@engine.task
def thumbnail(ctx: Context, number: int) -> str:
    """A task that computes for some milliseconds in a thread."""
    with log_run(ctx):
        return hashlib.pbkdf2_hmac("sha256", b"picture", str(number).encode(), 4_000).hex()


@engine.task(runs_in="process", priority=-10)
def archive(ctx: Context, number: int) -> int:
    """A task in pure Python that would block the event loop. It runs in a child process."""
    with log_run(ctx):
        return sum(digit * digit for digit in range(400_000)) + number


@engine.task(priority=20)
async def remind(ctx: Context, number: int) -> int:
    """A task that is scheduled for a given time."""
    with log_run(ctx):
        return number


@engine.task(priority=20, max_running=ENCODERS)
async def encode(ctx: Context, number: int) -> int:
    """A task that takes so long that its worker can be killed meanwhile."""
    with log_run(ctx):
        await asyncio.sleep(ENCODE_SECONDS)
        return number


@engine.task(priority=20)
async def export(ctx: Context) -> None:
    """A task that takes so long that it is cancelled."""
    with log_run(ctx):
        await asyncio.sleep(600)


def run_worker() -> None:
    """Run a worker in this process. It ends with the process that started it, even if that was killed."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    engine.run_sync()


def _exit_with_parent() -> None:
    sys.stdin.read()  # returns when the parent has closed its end, at the latest by exiting
    os._exit(1)
