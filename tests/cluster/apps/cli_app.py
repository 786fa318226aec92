"""What the tests of the command line run: a task that works, one that fails, and one that waits to be let go."""

from __future__ import annotations

import time
from pathlib import Path

from synergon import Context, Engine, Retry

engine = Engine("sqlite:///app.db")

GO = Path("go")
"""As long as this file is missing, `hold` goes on."""


@engine.task
async def greet(name: str) -> str:
    return f"hello {name}"


@engine.task(queue="mail", timeout=30, retry=Retry(attempts=2, first=0, jitter=0))
def send(to: str) -> None:
    raise ValueError(f"[bold]{to}[/bold] is nobody")


@engine.task
def hold(ctx: Context) -> str:
    print("hold has begun", flush=True)
    deadline = time.monotonic() + 300  # a test gives several commands meanwhile, and the machine may be busy
    while not GO.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return "let go"
