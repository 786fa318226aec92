"""HttpClient: POSTs messages to peers over persistent connections.

A hint precedes the start of every task on another node, so its latency counts, and a general-purpose client takes
longer to build a request than the request takes to arrive. This client writes each request in one piece, and parses
answers with the parser that the server uses. It sends only to the given address: no redirects, no proxies, no cookies.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple, cast
from urllib.parse import quote, unquote, urlsplit

from synergon.peering.transport import SendError
from synergon.peering.wire import PATH, SIZE_LIMIT

CONNECT_SECONDS: Final = 1.0
KEEP_SECONDS: Final = 20.0
"""How many seconds an unused connection is kept open."""

MAX_ANSWER_BYTES: Final = 2 * SIZE_LIMIT
"""The maximum size of an answer, headers included."""

PATH_CHARACTERS: Final = "/%:@!$&'()*+,;=~"
"""Characters besides letters and digits that need no quoting in a path."""


class Endpoint(NamedTuple):
    """The host and port to connect to, and the first lines of every request that is sent there."""

    host: str
    port: int
    is_secure: bool
    head: bytes


class Answer(NamedTuple):
    """The status and body of a response."""

    status: int
    body: bytes


class HttpClient:
    """Sends requests to peers. A connection carries one request at a time, and is reused after the answer."""

    def __init__(self) -> None:
        self._idle: dict[Endpoint, list[Connection]] = {}
        self._ssl_context: ssl.SSLContext | None = None
        self._is_closed = False

    async def post(self, address: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        """POST the body, and return the answer within `seconds`. Raises OSError, TimeoutError or SendError if there is
        none."""
        try:
            return await self._post(address, headers, body, seconds)
        except ValueError as error:
            if isinstance(error, OSError):  # a certificate that does not fit is both
                raise
            raise _invalid(address, error) from error

    async def _post(self, address: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        endpoint = endpoint_of(address)
        request = _request(endpoint, headers, body)
        connection = self._take_idle(endpoint)
        try:
            if connection is not None:
                answered = connection.send(request)  # before anything else, the timeout included: latency counts
                async with asyncio.timeout(seconds):
                    answer = await answered
            else:
                async with asyncio.timeout(seconds):
                    connection = await self._connect(endpoint)
                    answer = await connection.send(request)
        except BaseException:
            if connection is not None:
                connection.abort()  # a late answer must not be taken for that of the next request
            raise
        self._keep(endpoint, connection)
        return answer

    def _take_idle(self, endpoint: Endpoint) -> Connection | None:
        """An idle connection that can be reused. None if there is none."""
        idle = self._idle.get(endpoint, [])
        while idle:
            connection = idle.pop()
            if connection.is_reusable:
                return connection
            connection.close()
        return None

    async def _connect(self, endpoint: Endpoint) -> Connection:
        """Connect to the first of the host's addresses that answers. Each address but the last gets an equal share of
        the timeout."""
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            *others, last = dict.fromkeys(str(entry[4][0]) for entry in found)
            for address in others:
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(CONNECT_SECONDS / (len(others) + 1)):
                        return await self._connect_to(endpoint, address)
            return await self._connect_to(endpoint, last)

    async def _connect_to(self, endpoint: Endpoint, address: str) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self, endpoint),
            address,
            endpoint.port,
            ssl=await self._load_ssl_context() if endpoint.is_secure else None,
            server_hostname=endpoint.host if endpoint.is_secure else None,
        )
        return connection

    async def _load_ssl_context(self) -> ssl.SSLContext:
        """The trusted certificate authorities ($SSL_CERT_FILE if set). They are read once, on a thread, because the
        file is large."""
        if self._ssl_context is None:
            self._ssl_context = await asyncio.to_thread(ssl.create_default_context)
        return self._ssl_context

    def _keep(self, endpoint: Endpoint, connection: Connection) -> None:
        if self._is_closed or not connection.is_reusable:
            connection.close()
            return
        self._idle.setdefault(endpoint, []).append(connection)
        connection.close_after(KEEP_SECONDS)

    def remove(self, endpoint: Endpoint, lost: Connection) -> None:
        """Remove a connection that has ended from the idle ones."""
        idle = self._idle.get(endpoint, [])
        if lost in idle:
            idle.remove(lost)
        if not idle:
            self._idle.pop(endpoint, None)

    async def close(self) -> None:
        """Close the idle connections now, and each other connection after its answer."""
        self._is_closed = True
        for connection in [connection for idle in self._idle.values() for connection in idle]:
            connection.close()
        await asyncio.sleep(0)  # asyncio closes the sockets in the next loop iteration


class Connection(asyncio.Protocol):
    """A connection with one request at a time. When it ends, it calls `HttpClient.remove`."""

    def __init__(self, client: HttpClient, endpoint: Endpoint) -> None:
        from httptools import HttpResponseParser  # imported late: an engine without peers does not need it

        self._client = client
        self._endpoint = endpoint
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.WriteTransport | None = None
        self._answered: asyncio.Future[Answer] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._has_headers = False
        self._has_length = False
        """Whether the headers define where the answer ends."""
        self._keeps_alive = False

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """Write the request now. The returned future gets the answer."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._parts, self._size = [], 0
        self._has_headers = self._has_length = self._keeps_alive = False
        self._answered = asyncio.get_running_loop().create_future()
        assert self._transport is not None, "send is called after connection_made"
        self._transport.write(request)
        return self._answered

    @property
    def is_reusable(self) -> bool:
        """Whether another request can be sent on this connection."""
        return self._keeps_alive and self._transport is not None and not self._transport.is_closing()

    def close_after(self, seconds: float) -> None:
        """Close the connection unless it is used again within `seconds`."""
        self._idle_timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def close(self) -> None:
        """Close the connection after pending writes."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the new connection."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse a part of the answer. Aborts the connection if the answer is not valid, too large or unexpected."""
        from httptools import HttpParserError, HttpParserUpgrade

        self._size += len(data)
        try:
            if not self._is_waiting:
                raise SendError("sent data without a request")
            if self._size > MAX_ANSWER_BYTES:
                raise SendError(f"answered with more than {MAX_ANSWER_BYTES} bytes")
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade, SendError) as error:
            self._fail(SendError(f"the answer is not valid HTTP: {error}"))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Finish or fail the answer. An answer without a length ends with the connection; any other was cut off."""
        if self._has_headers and not self._has_length and error is None:
            self._finish()
        self._fail(error or SendError("closed the connection without an answer"))
        self._client.remove(self._endpoint, self)

    @property
    def _is_waiting(self) -> bool:
        return self._answered is not None and not self._answered.done()

    def _fail(self, error: Exception) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)

    def _finish(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(Answer(self._parser.get_status_code(), b"".join(self._parts)))

    # ------------------------------------------------------------ callbacks of the parser

    def on_message_begin(self) -> None:
        """Prevent the reuse of a connection on which a second answer begins: it would be taken for the answer to the
        next request."""
        if not self._is_waiting:
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002  the name is enough
        """Note whether the headers define where the answer ends."""
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """Note that the headers of the final answer have arrived."""
        self._has_headers = self._parser.get_status_code() >= 200  # 1xx only announces the answer

    def on_body(self, body: bytes) -> None:
        """Store a part of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Finish the answer, and note whether the connection may be reused."""
        if self._has_headers and self._is_waiting:
            self._keeps_alive = self._parser.should_keep_alive()  # the parser answers this only in this callback
            self._finish()


def _request(endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return b"%bContent-Length: %d\r\n%b\r\n%b" % (endpoint.head, len(body), lines.encode("latin-1"), body)


@lru_cache(maxsize=1000)
def endpoint_of(address: str) -> Endpoint:
    """Parse the address of a peer. Raises SendError if it is invalid."""
    try:
        return _parsed(address)
    except ValueError as error:
        raise _invalid(address, error) from error


def _invalid(address: str, error: ValueError) -> SendError:
    return SendError(f"{address!r} is not a valid address: {error}")


def _parsed(address: str) -> Endpoint:
    parts = urlsplit(address)
    is_secure, host = parts.scheme == "https", (parts.hostname or "").encode("idna").decode()
    port = parts.port or (443 if is_secure else 80)
    shown = f"[{host}]" if ":" in host else host
    lines = [
        f"POST {quote(parts.path.rstrip('/'), safe=PATH_CHARACTERS)}{PATH} HTTP/1.1",
        f"Host: {shown}" if parts.port is None else f"Host: {shown}:{port}",
    ]
    if parts.username is not None:
        name = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        lines.append(f"Authorization: Basic {b64encode(name.encode()).decode()}")
    return Endpoint(host, port, is_secure, "".join(f"{line}\r\n" for line in lines).encode("ascii"))
