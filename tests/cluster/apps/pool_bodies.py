"""Bodies on one server with two places, for the tests of limits over processes."""

from __future__ import annotations

import asyncio

from tests.cluster.apps.faults_bodies import is_open, write_down

from synergon import Context, Engine, Server, injected

engine = Engine()
pool = engine.provider("pool", servers={"http://only": 2}, health=None)


@pool.task
async def occupy(ctx: Context, label: str, first: float = 0.0, gated: bool = False, server: Server = injected) -> int:
    """Be there for a while; when claimed again, until the gate is opened if there is one."""
    write_down("begins", label, ctx)
    await asyncio.sleep(first if ctx.claim_no == 1 else 0)
    while gated and ctx.claim_no > 1 and not is_open(label):  # noqa: ASYNC110  the event is in another process
        await asyncio.sleep(0.01)
    write_down("ends", label, ctx)
    return server.slot


@pool.command
async def obey(label: str, ctx: Context) -> None:
    """A command that takes long."""
    write_down("begins", label, ctx)
    await asyncio.sleep(60)
