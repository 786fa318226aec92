"""Hearing of tasks that came by way of somebody's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from synergon.errors import StoreUnavailable
from synergon.stores.postgres.address import Address
from synergon.stores.postgres.caller_transaction import kinds_of
from synergon.stores.postgres.connection import connect
from synergon.stores.postgres.errors import translated

PROBE_SECONDS: Final = 60.0
"""How often a silent connection is asked whether it is still one."""


async def listen(address: Address, on_kinds: Callable[[Iterable[str] | None], None]) -> None:
    """Tell kinds as they come, None for any, until cancelled. Raises when the connection is lost.

    The first word is None: what came before this began to listen was heard by nobody.
    """
    connection = await connect(address)
    is_lost = asyncio.Event()
    try:
        with translated(address):
            connection.add_termination_listener(lambda _: is_lost.set())
            await connection.add_listener(address.channel, lambda *event: on_kinds(kinds_of(str(event[-1]))))
            on_kinds(None)
            await _until(is_lost, connection)
    finally:
        connection.terminate()
    raise StoreUnavailable(f"the connection to {address.location} that listens for wake-ups was lost")


async def _until(is_lost: asyncio.Event, connection: Any) -> None:
    while not is_lost.is_set():
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await is_lost.wait()
        except TimeoutError:
            await connection.execute("SELECT 1")
