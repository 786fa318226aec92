"""POSTs to peers over connections that are kept: the client's side of HTTP, as far as peers need it.

It is on the way of every task that another process starts, and a client for all purposes takes longer to make a request
than the request takes to arrive. What is asked is written at once; the answers are read by the parser that serves
requests, too. What goes out goes to the address that was given and nowhere else: no redirects, no proxies, no cookies.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple, cast
from urllib.parse import quote, unquote, urlsplit

from synergon.peering.transport import SendError
from synergon.peering.wire import PATH, SIZE_LIMIT

CONNECT_SECONDS: Final = 1.0
KEEP_SECONDS: Final = 20.0
"""For how long a connection is kept that nobody uses."""

MOST_BYTES: Final = 2 * SIZE_LIMIT
"""Of an answer, with all that is around it."""

IN_PATHS: Final = "/%:@!$&'()*+,;=~"
"""What a path may have in it besides letters and digits."""


class Endpoint(NamedTuple):
    """Where to connect to, and how a request to it begins."""

    host: str
    port: int
    is_secure: bool
    head: bytes


class Answer(NamedTuple):
    """What the peer has said."""

    status: int
    body: bytes


class HttpClient:
    """Asks peers, each question on a connection of its own for as long as it takes; they are used again then."""

    def __init__(self) -> None:
        self._kept: dict[Endpoint, list[Connection]] = {}
        self._trust: ssl.SSLContext | None = None
        self._is_closed = False

    async def post(self, address: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        """The answer, within so many seconds; OSError, TimeoutError or SendError if there is none."""
        place = endpoint_of(address)
        request = _request(place, headers, body)
        connection = self._take(place)
        try:
            if connection is not None:
                asked = connection.ask(request)  # nothing goes before it, not even the watch
                async with asyncio.timeout(seconds):
                    answer = await asked
            else:
                async with asyncio.timeout(seconds):
                    connection = await self._connect(place)
                    answer = await connection.ask(request)
        except BaseException:
            if connection is not None:
                connection.abort()  # an answer to this question is not one to the next
            raise
        self._keep(place, connection)
        return answer

    def _take(self, place: Endpoint) -> Connection | None:
        """A connection that can be asked."""
        kept = self._kept.get(place, [])
        while kept:
            connection = kept.pop()
            if connection.may_stay:
                return connection
            connection.close()
        return None

    async def _connect(self, place: Endpoint) -> Connection:
        """To the first of the host's addresses that answers: one that is mute has only its part of the time."""
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
            *others, last = dict.fromkeys(str(entry[4][0]) for entry in found)
            for address in others:
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(CONNECT_SECONDS / (len(others) + 1)):
                        return await self._connect_to(place, address)
            return await self._connect_to(place, last)

    async def _connect_to(self, place: Endpoint, address: str) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(lambda lost: self._forget(place, lost)),
            address,
            place.port,
            ssl=await self._trusted() if place.is_secure else None,
            server_hostname=place.host if place.is_secure else None,
        )
        return connection

    async def _trusted(self) -> ssl.SSLContext:
        """Who may say that a peer is the one that it should be: whom the whole process trusts, those in $SSL_CERT_FILE
        if that is set. There are many of them, and they are read once."""
        if self._trust is None:
            self._trust = await asyncio.to_thread(ssl.create_default_context)
        return self._trust

    def _keep(self, place: Endpoint, connection: Connection) -> None:
        if self._is_closed or not connection.may_stay:
            connection.close()
            return
        self._kept.setdefault(place, []).append(connection)
        connection.rest(KEEP_SECONDS)

    def _forget(self, place: Endpoint, lost: Connection) -> None:
        kept = self._kept.get(place, [])
        if lost in kept:
            kept.remove(lost)
        if not kept:
            self._kept.pop(place, None)

    async def close(self) -> None:
        """Keep no connection any more."""
        self._is_closed = True
        for connection in [connection for kept in self._kept.values() for connection in kept]:
            connection.close()
        await asyncio.sleep(0)  # which is when they are really closed


class Connection(asyncio.Protocol):
    """A connection with one question at a time. `on_lost` hears of its end."""

    def __init__(self, on_lost: Callable[[Connection], None]) -> None:
        from httptools import HttpResponseParser  # only those who have peers need it

        self._on_lost = on_lost
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.WriteTransport | None = None
        self._asked: asyncio.Future[Answer] | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._has_headers = False
        self._is_measured = False
        """It is said where the answer ends."""
        self._may_stay = False

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send it now, and return what will have the answer."""
        if self._resting is not None:
            self._resting.cancel()
        self._parts, self._size = [], 0
        self._has_headers = self._is_measured = self._may_stay = False
        self._asked = asyncio.get_running_loop().create_future()
        assert self._transport is not None, "who asks is connected"
        self._transport.write(request)
        return self._asked

    @property
    def may_stay(self) -> bool:
        """Whether it can be asked again."""
        return self._may_stay and self._transport is not None and not self._transport.is_closing()

    def rest(self, seconds: float) -> None:
        """Nobody asks; close it, unless somebody does before the time is up."""
        self._resting = asyncio.get_running_loop().call_later(seconds, self.close)

    def close(self) -> None:
        """End in peace."""
        if self._resting is not None:
            self._resting.cancel()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It can be asked."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """A piece of the answer."""
        from httptools import HttpParserError, HttpParserUpgrade

        self._size += len(data)
        try:
            if self._is_unasked:
                raise SendError("said something that it was not asked for")
            if self._size > MOST_BYTES:
                raise SendError(f"answered with more than {MOST_BYTES} bytes")
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade, SendError) as error:
            self._fail(SendError(f"answered what is not HTTP: {error}"))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing comes any more; an answer without a length ends so, and any other was cut off."""
        if self._has_headers and not self._is_measured and error is None:
            self._answer()
        self._fail(error or SendError("closed the connection without an answer"))
        self._on_lost(self)

    @property
    def _is_unasked(self) -> bool:
        return self._asked is None or self._asked.done()

    def _fail(self, error: Exception) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(error)

    def _answer(self) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(Answer(self._parser.get_status_code(), b"".join(self._parts)))

    # ------------------------------------------------------------ what the parser calls

    def on_message_begin(self) -> None:
        """Something is said; what comes behind the answer is for nobody, and nobody can be sure of the next one."""
        if self._is_unasked:
            self._may_stay = False

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002  that it is there says enough
        """One of them."""
        self._is_measured |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """The status is known."""
        self._has_headers = self._parser.get_status_code() >= 200  # before that it says only that more will come

    def on_body(self, body: bytes) -> None:
        """A piece of it."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """That was all."""
        if self._has_headers and not self._is_unasked:
            self._may_stay = self._parser.should_keep_alive()  # which it knows no longer when it has returned from here
            self._answer()


def _request(place: Endpoint, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return b"%bContent-Length: %d\r\n%b\r\n%b" % (place.head, len(body), lines.encode("latin-1"), body)


@lru_cache(maxsize=1000)
def endpoint_of(address: str) -> Endpoint:
    """Where messages for this address go; SendError if it makes no sense."""
    try:
        parts = urlsplit(address)
        is_secure, host = parts.scheme == "https", (parts.hostname or "").encode("idna").decode()
        port = parts.port or (443 if is_secure else 80)
    except ValueError as error:
        raise SendError(f"{address} is no address: {error}") from error
    shown = f"[{host}]" if ":" in host else host
    lines = [
        f"POST {quote(parts.path.rstrip('/'), safe=IN_PATHS)}{PATH} HTTP/1.1",
        f"Host: {shown}" if parts.port is None else f"Host: {shown}:{port}",
    ]
    if parts.username is not None:
        name = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        lines.append(f"Authorization: Basic {b64encode(name.encode()).decode()}")
    return Endpoint(host, port, is_secure, "".join(f"{line}\r\n" for line in lines).encode("ascii"))
