"""A node for the tests of peers: `peers_worker.py URL KIND...`; $SYNERGON_SWEEP says how rarely it sweeps."""

from __future__ import annotations

import sys
import time

from synergon import Context, Engine

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


for kind in sys.argv[2:]:
    engine.task(name=kind)(globals()[kind])

if __name__ == "__main__":
    engine.run_sync()
