"""The app that the demo's workers run: a little of everything, each body writing down when it starts and ends."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import threading
from typing import Final

from synergon.cli.demo_log import logged
from synergon.context import Context
from synergon.engine import Engine
from synergon.policies import Retry

URL_VARIABLE: Final = "SYNERGON_DEMO_URL"
ENCODERS: Final = 6
ENCODE_SECONDS: Final = 1.5

engine = Engine(
    os.environ.get(URL_VARIABLE, "memory://"),
    concurrency=32,
    child_processes=2,
    # The one who enqueues is a process of its own; workers that look this often see its tasks soon.
    sweep="50ms",
)


@engine.task(priority=100)
async def alert(ctx: Context, number: int) -> int:
    """Urgent, and quick."""
    with logged(ctx):
        return number


@engine.task(priority=10, retry=Retry(attempts=4, first=0.5))
async def charge(ctx: Context, order: int) -> int:
    """Waits for a bank that refuses every tenth customer at first."""
    with logged(ctx):
        await asyncio.sleep(0.01)
        if order % 10 == 0 and ctx.attempt == 1:
            raise ConnectionError("the bank does not answer")
        return order


@engine.task
async def mail(ctx: Context, number: int) -> int:
    """Waits for a mail server."""
    with logged(ctx):
        await asyncio.sleep(0.02)
        return number


@engine.task
def thumbnail(ctx: Context, number: int) -> str:
    """Some milliseconds of work in a thread."""
    with logged(ctx):
        return hashlib.pbkdf2_hmac("sha256", b"picture", str(number).encode(), 4_000).hex()


@engine.task(runs_in="process", priority=-10)
def archive(ctx: Context, number: int) -> int:
    """Pure Python that would block everybody else, in a child process."""
    with logged(ctx):
        return sum(digit * digit for digit in range(400_000)) + number


@engine.task(priority=20)
async def remind(ctx: Context, number: int) -> int:
    """To be started at a given moment."""
    with logged(ctx):
        return number


@engine.task(priority=20, max_running=ENCODERS)
async def encode(ctx: Context, number: int) -> int:
    """Takes long enough to be killed in the middle."""
    with logged(ctx):
        await asyncio.sleep(ENCODE_SECONDS)
        return number


@engine.task(priority=20)
async def export(ctx: Context) -> None:
    """Takes so long that somebody will lose patience."""
    with logged(ctx):
        await asyncio.sleep(600)


def work() -> None:
    """What a worker process does. It ends with whoever started it, even if that one was killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    engine.run_sync()


def _end_with_parent() -> None:
    sys.stdin.read()  # returns when the other end is closed
    os._exit(1)
