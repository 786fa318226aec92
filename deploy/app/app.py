"""An application to try the files of this folder with. Put your own in its place."""

from __future__ import annotations

import asyncio

from synergon import Context, Engine

engine = Engine()  # the database is in $SYNERGON_URL


@engine.task(queue="mail")
async def send_mail(ctx: Context, to: str) -> str:
    for step in range(10):
        ctx.progress(step / 10, f"sending to {to}")
        await asyncio.sleep(0.1)
    return f"sent to {to}"
