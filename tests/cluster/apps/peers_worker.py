"""A node for the tests of peers: `peers_worker.py URL KIND...`; $SYNERGON_SWEEP says how rarely it sweeps."""

from __future__ import annotations

import asyncio
import sys
import time

from synergon import Context, Discard, Engine

engine = Engine(sys.argv[1])


async def stamp() -> float:
    """When the body ran."""
    return time.time()


async def first(ctx: Context) -> None:
    ctx.enqueue(engine.call("second"))


async def second(ctx: Context) -> None:
    ctx.enqueue(engine.call("third"))


async def third() -> float:
    return time.time()


async def fail() -> None:
    raise Discard("it never works")


async def hold() -> None:
    """Goes on for as long as its process lives."""
    await asyncio.Event().wait()


for kind in sys.argv[2:]:
    engine.task(name=kind)(globals()[kind])

if __name__ == "__main__":
    engine.run_sync()
