"""A door before a node's address: peers who call there meet the node, or silence, or nonsense."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum
from typing import Final

CHUNK_BYTES: Final = 65536
UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"
GARBAGE: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n\xff\x00{]none]}"


class Manner(StrEnum):
    """How callers are met."""

    OPEN = "lets everybody in"
    BLACK_HOLE = "accepts and never answers"
    UNAVAILABLE = "answers 503"
    GARBAGE = "answers garbage"


class Door:
    """Listens at a port of its own. Whoever changes its manner has all open calls cut."""

    def __init__(self) -> None:
        self.calls = 0
        """How many were met in another manner than they expected."""
        self._manner = Manner.OPEN
        self._target: int | None = None
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", 0)

    @property
    def address(self) -> str:
        """What a node behind it advertises."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def lead_to(self, port: int) -> None:
        """The node behind it listens there."""
        self._target = port

    def become(self, manner: Manner) -> None:
        """From now on meet callers like this."""
        self._manner = manner
        for call in self._calls:
            call.cancel()

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side has hung up, or the door changed its manner
        finally:
            self._calls.discard(call)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._manner is Manner.OPEN:
            await self._let_in(reader, writer)
            return
        await reader.read(CHUNK_BYTES)
        self.calls += 1
        if self._manner is Manner.BLACK_HOLE:
            await asyncio.Event().wait()
        writer.write(UNAVAILABLE if self._manner is Manner.UNAVAILABLE else GARBAGE)
        await writer.drain()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            ways = [
                asyncio.ensure_future(_carry(reader, inner_writer)),
                asyncio.ensure_future(_carry(inner_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            inner_writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
