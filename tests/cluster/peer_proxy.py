"""A real proxy before a node's door: it counts what peers send, and can turn them away or swallow what they say."""

from __future__ import annotations

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from typing import Final, Literal, Self

from tests.support import until

Mood = Literal["open", "ill", "silent"]

QUIET_SECONDS: Final = 1.0
"""Longer than an engine takes to look around after it has come."""


class Door:
    """Advertise `address` and listen on `behind`. Messages go through while it is open; an ill one answers 503, and a
    silent one never answers."""

    def __init__(self, mood: Mood = "open") -> None:
        self.mood: Mood = mood
        self.let_in = 0
        """How many messages the node has answered."""
        self.turned_away = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port_behind: int = probe.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """What peers are told."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def settings(self) -> dict[str, str]:
        """What a node behind this door is started with."""
        return {"SYNERGON_LISTEN": f"127.0.0.1:{self._port_behind}", "SYNERGON_ADVERTISE": self.address}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._visited, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for visit in self._visits:
            visit.cancel()
        if self._visits:
            await asyncio.wait(self._visits)

    async def until_let_in(self, count: int) -> None:
        """Return when so many were let in. What a message leads to may be seen before the answer has gone out."""
        await until(lambda: self.let_in >= count)

    async def until_quiet(self) -> None:
        """Return when nobody has come for a while: whoever is new here has met everybody."""
        seen = -1
        while seen != self.let_in:
            seen = self.let_in
            await asyncio.sleep(QUIET_SECONDS)

    def _visited(self, reader: StreamReader, writer: StreamWriter) -> None:
        visit = asyncio.ensure_future(self._serve(reader, writer))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        inner: StreamWriter | None = None
        try:
            while True:
                request = await _one_message(reader)
                assert request.startswith(b"POST /peer/v1 "), request
                if self.mood == "open":
                    if inner is None:
                        answers, inner = await asyncio.open_connection("127.0.0.1", self._port_behind)
                    inner.write(request)
                    writer.write(await _one_message(answers))
                    self.let_in += 1
                else:
                    self.turned_away += 1
                    if self.mood == "silent":
                        await asyncio.Event().wait()
                    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        except (OSError, EOFError):
            pass  # one of the two has left
        finally:
            writer.close()
            if inner is not None:
                inner.close()


async def _one_message(reader: StreamReader) -> bytes:
    """A request or an answer, whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(lengths[0].partition(b":")[2]))
