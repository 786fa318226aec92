"""A process that claims and finishes until nothing is left, when it is told to begin; prints what it took.

Run as `python -m tests.stores.drainer URL NODE_ID`.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.stores.actions import OUTCOMES, Worker, settlement_of

from synergon.stores import open_store


async def drain(url: str, node_id: str) -> list[int]:
    """The ids of all that it took."""
    store = open_store(url)
    await store.open()
    worker = await Worker.start(store, node_id)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    taken: list[int] = []
    while claims := await worker.claim(limit=20):
        verdicts = await store.finish([settlement_of(claim, OUTCOMES["succeeded"]) for claim in claims])
        assert all(verdict.state is not None for verdict in verdicts)
        taken += [claim.id for claim in claims]
    await store.close()
    return taken


if __name__ == "__main__":
    print(json.dumps(asyncio.run(drain(*sys.argv[1:]))))
