"""HttpServer: serves the routes of an HttpService on a port of its own: messages of peers, or health.

Any process that can reach the port may connect to it. So the server limits what a connection may cost before it parses
anything: bytes, headers, time, the number of connections, descriptors and log lines. A connection is a *stranger* until
one of its requests proves that it belongs to a peer. Only few strangers may be connected at once; a new one displaces
an older one, but never a peer. After any error the connection is closed, and nothing more is read from it.

Long, because the limits of a connection and those of the server refer to each other, and are best read together.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final, cast

from synergon.peering.http_service import TEXT, HttpAnswer, HttpService
from synergon.peering.rate_limited_log import RateLimitedLog
from synergon.peering.transport import Rejected

HEAD_LIMIT: Final = 16 * 1024
"""The maximum size of the request line and headers."""
URL_LIMIT: Final = 2 * 1024
MAX_HEADERS: Final = 64
"""The maximum number of headers of a request, including the trailers of a chunked body."""
FRAMING_PART: Final = 2
"""A body, with the framing of its chunks, may have this many times the bytes of the service's limit."""

REQUEST_SECONDS: Final = 5.0
"""The time for a whole request. For the first request of a connection it starts when the connection is accepted."""
IDLE_SECONDS: Final = 60.0
"""After how many seconds an idle connection is closed. The client closes it earlier (KEEP_SECONDS), so that the server
does not close a connection on which the client is sending."""
LINGER_SECONDS: Final = 1.0
"""How many seconds a connection stays open after an error was sent: closing a socket with unread data would discard the
error."""

MAX_CONNECTIONS: Final = 1024
MAX_UNVERIFIED: Final = 128
MAX_UNVERIFIED_PER_ADDRESS: Final = 64
DESCRIPTOR_SHARE: Final = 4
"""Connections use at most the number of descriptors that the process may open, divided by this number."""
BACKLOG: Final = 256
"""How many connections the kernel accepts in advance."""
ACCEPT_PAUSE_SECONDS: Final = 0.5
"""The pause after a connection could not be accepted for lack of descriptors or memory."""

REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    414: b"URI Too Long",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


class HttpServer:
    """Accepts connections on a bound socket, and passes complete requests to the service."""

    def __init__(self, bound: socket.socket, service: HttpService) -> None:
        self.service = service
        self.troubles: Final = RateLimitedLog()
        self._bound = bound
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._max_connections = min(MAX_CONNECTIONS, _max_descriptors() // DESCRIPTOR_SHARE)
        self._max_strangers = min(MAX_UNVERIFIED, self._max_connections // 2)
        # Dictionaries keep their order: the first stranger connected first, the first peer has been idle longest.
        self._unverified: dict[ServerConnection, None] = {}
        self._peers: dict[ServerConnection, None] = {}
        self._strangers_by_address: Counter[str] = Counter()

    def start(self) -> None:
        """Start to listen."""
        self._bound.listen(BACKLOG)
        self._loop.add_reader(self._bound, self._accept)

    async def close(self) -> None:
        """Stop listening, send the answers of delivered messages, and close all connections."""
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._bound)
        self._bound.close()
        if self._opening:
            await asyncio.wait(self._opening)
        await asyncio.sleep(0)  # messages that have been delivered are answered in this iteration of the loop
        for connection in [*self._unverified, *self._peers]:
            connection.close()
        await asyncio.sleep(0)
        for connection in [*self._unverified, *self._peers]:
            connection.abort()
        await asyncio.sleep(0)  # asyncio closes the sockets in the next iteration

    # ------------------------------------------------------------ accepting

    def _accept(self) -> None:
        """Accept one connection. The next one is accepted in another iteration of the event loop, so that asyncio tasks
        run in between."""
        try:
            accepted, _ = self._bound.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause(error)
            return  # any other error concerns a connection that is gone
        accepted.setblocking(False)
        opening = self._loop.create_task(self._open(accepted))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: ServerConnection(self), accepted)
        except OSError:
            accepted.close()

    def _pause(self, error: OSError) -> None:
        """Accept nothing for ACCEPT_PAUSE_SECONDS: the socket stays readable, and the event loop would do nothing
        else."""
        self.troubles.add("accept", f"cannot accept connections, trying again: {error.strerror}", logging.WARNING)
        self._loop.remove_reader(self._bound)
        self._resume = self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._loop.add_reader, self._bound, self._accept)

    # ------------------------------------------------------------ places for connections

    def add(self, stranger: ServerConnection) -> None:
        """Add a new connection as a stranger. If there are too many strangers, of this address or in total, the oldest
        is closed."""
        self._unverified[stranger] = None
        self._strangers_by_address[stranger.address] += 1
        if self._strangers_by_address[stranger.address] > min(MAX_UNVERIFIED_PER_ADDRESS, self._max_strangers // 2):
            self._close_oldest(next(other for other in self._unverified if other.address == stranger.address))
        elif len(self._unverified) > self._max_strangers:
            self._close_oldest(next(iter(self._unverified)))

    def _close_oldest(self, connection: ServerConnection) -> None:
        self.troubles.add("full", f"closed the connection of {connection.address}: too many others")
        self.remove(connection)
        connection.abort()

    def mark_verified(self, connection: ServerConnection) -> None:
        """Note that a request of this connection was accepted: it belongs to a peer. If there are too many such
        connections, the one that has been idle longest is closed."""
        self.remove(connection)
        self._peers[connection] = None
        if len(self._peers) > self._max_connections - self._max_strangers:
            longest_idle = next(iter(self._peers))
            self.remove(longest_idle)
            longest_idle.close()

    def remove(self, connection: ServerConnection) -> None:
        """Remove the connection from the strangers or the peers."""
        self._peers.pop(connection, None)
        if connection in self._unverified:
            del self._unverified[connection]
            self._strangers_by_address[connection.address] -= 1
            if not self._strangers_by_address[connection.address]:
                del self._strangers_by_address[connection.address]


def _max_descriptors() -> int:
    try:
        import resource
    except ImportError:  # a system without such a limit
        return MAX_CONNECTIONS * DESCRIPTOR_SHARE
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS * DESCRIPTOR_SHARE if limit == resource.RLIM_INFINITY else limit


class ServerConnection(asyncio.Protocol):
    """One connection, with one request at a time. The constants above limit each request."""

    def __init__(self, server: HttpServer) -> None:
        self.address: str = "unknown"
        self._server = server
        self._service = server.service
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rejection: Rejected | None = None
        self._making: asyncio.Task[None] | None = None
        """The asyncio task that makes the answer to the last request. None if the answer was made at once."""
        self._is_answering = False
        self._is_idle = False
        """Whether no request has begun since the last answer."""
        self._begin()

    def _begin(self) -> None:
        """Prepare for the next request."""
        from httptools import HttpRequestParser

        self._parser = HttpRequestParser(self)
        self._url = b""
        self._fields: dict[str, str] = {}
        self._headers = 0
        self._head_bytes = 0
        self._body_bytes = 0
        self._has_head = False
        self._body = bytearray()
        self._is_complete = False
        self._keeps_alive = False

    def close(self) -> None:
        """Close the connection after pending writes."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the server as a stranger, and wait for the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self.address = str((transport.get_extra_info("peername") or ("unknown",))[0])
        self._transport.set_write_buffer_limits(high=self._service.answer_limit)
        self._close_after(REQUEST_SECONDS)
        self._server.add(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  the reason does not matter
        """Remove the connection from the server."""
        if self._timer is not None:
            self._timer.cancel()
        if self._making is not None:
            self._making.cancel()
        self._transport = None
        self._server.remove(self)

    def pause_writing(self) -> None:
        """End the connection: the other end does not read its answers."""
        self.abort()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request. Pass it to the service when it is complete."""
        if self._rejection is not None:
            return  # arrived before reading was paused
        try:
            if self._is_answering:
                raise _too_early()
            self._read(data)
            if self._is_complete:
                self._pass_on()
        except Rejected as rejection:
            self._reject(rejection)

    def _read(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self._close_after(REQUEST_SECONDS)
        if not self._has_head:
            remaining = HEAD_LIMIT - self._head_bytes
            head, data = data[:remaining], data[remaining:]
            self._head_bytes += len(head)
            self._parse(head)
            if not self._has_head and self._head_bytes == HEAD_LIMIT:
                raise Rejected(431, f"a request has at most {HEAD_LIMIT} bytes of headers")
        if data:
            self._body_bytes += len(data)
            if self._body_bytes > FRAMING_PART * self._service.body_limit:
                raise self._too_large()
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        from httptools import HttpParserError, HttpParserUpgrade

        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if isinstance(error.__context__, Rejected):  # raised by a callback
                raise error.__context__ from None
            raise Rejected(400, "this is not a request of HTTP/1.1") from error

    def _pass_on(self) -> None:
        answer = self._service.answer(self._url.decode("latin-1"), self._fields, bytes(self._body))
        if self._service.is_verifying:
            self._server.mark_verified(self)
        self._is_answering = True
        if isinstance(answer, HttpAnswer):
            # In the next iteration: the tasks woken by the message run first, the answer is less urgent.
            self._loop.call_soon(self._answer, answer)
        else:
            self._making = self._loop.create_task(self._answer_later(answer))

    async def _answer_later(self, making: Coroutine[Any, Any, HttpAnswer]) -> None:
        try:
            answer = await making
        except Rejected as rejection:
            self._reject(rejection)
        except Exception as error:  # noqa: BLE001  whatever it is, the client gets an answer
            self._reject(Rejected(500, f"the answer could not be made: {error!r}"))
        else:
            self._answer(answer)

    def _answer(self, answer: HttpAnswer) -> None:
        self._is_answering = False
        if self._transport is None or self._rejection is not None:
            return
        self._write(answer, is_last=not self._keeps_alive)
        if not self._keeps_alive:
            self.close()
            self._close_after(REQUEST_SECONDS)
            return
        self._begin()
        self._is_idle = True
        self._close_after(IDLE_SECONDS)

    def _reject(self, rejection: Rejected) -> None:
        """Answer with the error, read nothing more, and close the connection after LINGER_SECONDS."""
        self._rejection = rejection
        self._body.clear()
        self._server.troubles.add(
            str(rejection.status), f"rejected a request from {self.address}: {rejection.status} {rejection}"
        )
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.pause_reading()
        self._write(HttpAnswer(str(rejection).encode(), TEXT, rejection.status), is_last=True)
        self._transport.write_eof()
        self._close_after(LINGER_SECONDS)

    def _write(self, answer: HttpAnswer, *, is_last: bool) -> None:
        assert self._transport is not None, "the caller has checked this"
        status, body = answer.status, answer.body
        more = b"Allow: %b\r\n" % self._service.method.encode() if status == 405 else b""
        more += b"Connection: close\r\n" if is_last else b""
        self._transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n%b"
            % (status, REASONS.get(status, b"Error"), answer.media_type, len(body), more, body)
        )

    def _close_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        """End the connection because its time is over: with an error if a request is incomplete, and at once if the
        other end does not read its answer."""
        if self._transport is None:
            return
        if self._rejection is not None or self._transport.is_closing() or self._transport.get_write_buffer_size():
            self.abort()
        elif self._is_idle:
            self.close()
        else:
            self._reject(Rejected(408, f"a request must be complete within {REQUEST_SECONDS:g} seconds"))

    # ------------------------------------------------------------ callbacks of the parser

    def on_message_begin(self) -> None:
        """Reject a request that begins before the last one was answered."""
        if self._is_complete:
            raise _too_early()

    def on_url(self, part: bytes) -> None:
        """Store a part of the URL."""
        self._url += part
        if len(self._url) > URL_LIMIT:
            raise Rejected(414, f"a URL has at most {URL_LIMIT} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store the header if the service needs it. If a header occurs twice, the first one counts."""
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise Rejected(431, f"a request has at most {MAX_HEADERS} headers")
        field = self._service.headers.get(name.lower())
        if field is not None:
            self._fields.setdefault(field, value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """Reject a request that the service does not serve before its body is read."""
        self._has_head = True
        method = self._parser.get_method().decode("latin-1")
        self._service.check(method, self._url.decode("latin-1"), self._fields)

    def on_body(self, body: bytes) -> None:
        """Store a part of the body."""
        if len(self._body) + len(body) > self._service.body_limit:
            raise self._too_large()
        self._body += body  # not a list of parts: a client that sends many small ones would fill the memory

    def on_message_complete(self) -> None:
        """Note that the request is complete, and whether the connection stays open after it."""
        self._is_complete = True
        self._keeps_alive = self._parser.should_keep_alive()  # the parser answers this only in this callback

    def _too_large(self) -> Rejected:
        return Rejected(413, f"the body of a request here has at most {self._service.body_limit} bytes")


def _too_early() -> Rejected:
    return Rejected(400, "send the next request after the answer to the last one")
