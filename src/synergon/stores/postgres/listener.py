"""Listens for the notifications that callers' own transactions send when they have inserted tasks."""

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
"""The interval in seconds at which a statement checks that the connection is alive."""


async def listen(address: Address, on_kinds: Callable[[Iterable[str] | None], None]) -> None:
    """Call `on_kinds` with the kinds of each notification; None means any kind. Runs until it is cancelled. Raises
    `StoreUnavailable` when the connection is lost.

    The first call is `on_kinds(None)`, because notifications from before the start were missed.
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
