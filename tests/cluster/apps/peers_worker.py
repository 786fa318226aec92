"""A node for the tests of peers: `peers_worker URL KIND...`; $SYNERGON_SWEEP says how rarely it sweeps.

If $PEERS_TRACE names a file, every statement that SQLite runs in this process is written there, one per line.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from synergon import Context, Discard, Engine

engine = Engine(sys.argv[1])


async def stamp() -> float:
    """When the body ran."""
    return time.time()


_numbers = itertools.count(1)


async def count() -> int:
    """How many of these have run in this process."""
    return next(_numbers)


async def first(ctx: Context) -> None:
    ctx.enqueue(engine.call("second"))


async def second(ctx: Context) -> None:
    ctx.enqueue(engine.call("third"))


async def third() -> float:
    return time.time()


async def nothing() -> None: ...


async def fail() -> None:
    raise Discard("it never works")


async def hold() -> None:
    """Goes on for as long as its process lives."""
    await asyncio.Event().wait()


async def mark(number: int, seconds: float = 0) -> None:
    """Leave the number in a file of this process in the folder $PEERS_MARKS, and stay for so long."""
    os.write(marks_file(), b"%d\n" % number)
    if seconds:
        await asyncio.sleep(seconds)


@cache
def marks_file() -> int:
    return os.open(f"{os.environ['PEERS_MARKS']}/{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


async def stay(ctx: Context, *, is_stubborn: bool = False) -> tuple[int, int]:
    """Claimed for the first time: stay until there is a file `go` in $PEERS_MARKS, or, if told to end and stubborn,
    until another claim has begun. Which claim speaks, and where."""
    marks = Path(os.environ["PEERS_MARKS"])
    (marks / f"{ctx.task_id}-{ctx.claim_no}").write_text(str(os.getpid()))
    try:
        while ctx.claim_no == 1 and not (marks / "go").exists():  # noqa: ASYNC110  another process says so
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        if not is_stubborn:
            raise
        while not (marks / f"{ctx.task_id}-2").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return ctx.claim_no, os.getpid()


async def travel(way: list[str]) -> list[tuple[int, float]]:
    """Where and when each stage ran: this one, then those of the kinds that are named, each enqueued by the one before,
    which waits for it. What any kind does whose function is not above."""
    here = (os.getpid(), time.time())
    if not way:
        return [here]
    (handle,) = await engine.enqueue([engine.call(way[0], way=way[1:])])
    return [here, *await handle.result(timeout=30)]


def trace_statements(path: str) -> None:
    """Write down whatever SQLite is asked from now on."""
    file = Path(path).open("a", buffering=1)  # noqa: SIM115  it is open as long as the process lives
    connect = sqlite3.connect

    def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(lambda sql: file.write(" ".join(sql.split()) + "\n"))
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]  # put in its place


def main() -> None:
    for kind in sys.argv[2:]:
        engine.task(name=kind)(globals().get(kind, travel))
    if "PEERS_TRACE" in os.environ:
        trace_statements(os.environ["PEERS_TRACE"])
    engine.run_sync()


if __name__ == "__main__":
    main()
