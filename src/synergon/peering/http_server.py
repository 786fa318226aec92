"""HttpServer: receives messages of peers on a port of its own, with the single route `POST /peer/v1`.

Anyone who can reach the port may connect to it. The server therefore bounds what a connection may cost before it parses
anything: bytes, headers, time, the number of connections, descriptors and log lines. A connection is a *stranger* until
one of its messages was accepted. Strangers have few places and displace each other; they never displace a peer. After
any error the connection is closed, and nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from typing import Final, cast

from synergon.peering.http_headers import NAMES, check_headers
from synergon.peering.rate_limited_log import RateLimitedLog
from synergon.peering.signatures import METHOD, Envelope
from synergon.peering.transport import Deliver, Rejected
from synergon.peering.wire import PATH, SIZE_LIMIT

HEAD_LIMIT: Final = 16 * 1024
"""Most bytes of request line and headers."""
URL_LIMIT: Final = 2 * 1024
MAX_HEADERS: Final = 64
"""Most headers of a request; trailers of a chunked body count, too."""
MAX_BODY_BYTES: Final = 2 * SIZE_LIMIT
"""Most bytes that are read for a body, with the frames of its chunks."""

REQUEST_SECONDS: Final = 5.0
"""Time for a whole request; for the first one of a connection it begins when the connection is accepted."""
IDLE_SECONDS: Final = 60.0
"""Longer than the client's: the server must not close a connection while the client sends a message on it."""
LINGER_SECONDS: Final = 1.0
"""How long an error waits for its reader: closing a socket with unread data would discard the error, too."""

MAX_CONNECTIONS: Final = 1024
MAX_UNVERIFIED: Final = 128
MAX_UNVERIFIED_PER_ADDRESS: Final = 64
DESCRIPTOR_SHARE: Final = 4
"""Connections take at most this fraction (a quarter) of the descriptors that the process may open."""
BACKLOG: Final = 256
"""Connections that the kernel accepts in advance."""
ACCEPT_PAUSE_SECONDS: Final = 0.5
"""Pause after a connection could not be accepted for want of descriptors or memory."""

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
    503: b"Service Unavailable",
}


class HttpServer:
    """Accepts connections on a bound socket and hands the messages that arrive to `deliver`."""

    def __init__(self, bound: socket.socket, deliver: Deliver) -> None:
        self.deliver = deliver
        self.troubles = RateLimitedLog()
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
        """Listen."""
        self._bound.listen(BACKLOG)
        self._loop.add_reader(self._bound, self._accept)

    async def close(self) -> None:
        """Stop listening, send the answers that are due, and close all connections."""
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
        """Accept one connection; the next one waits for another iteration of the loop, so tasks have their turn."""
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
        """Accept nothing for a moment: the socket stays readable, and the loop would do nothing else."""
        self.troubles.add(
            "accept", f"cannot accept connections of peers, trying again: {error.strerror}", logging.WARNING
        )
        self._loop.remove_reader(self._bound)
        self._resume = self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._loop.add_reader, self._bound, self._accept)

    # ------------------------------------------------------------ places for connections

    def add(self, stranger: ServerConnection) -> None:
        """Give a new connection a place. If there is none, the oldest stranger loses its own."""
        self._unverified[stranger] = None
        self._strangers_by_address[stranger.address] += 1
        if self._strangers_by_address[stranger.address] > min(MAX_UNVERIFIED_PER_ADDRESS, self._max_strangers // 2):
            self._close_oldest(next(other for other in self._unverified if other.address == stranger.address))
        elif len(self._unverified) > self._max_strangers:
            self._close_oldest(next(iter(self._unverified)))

    def _close_oldest(self, connection: ServerConnection) -> None:
        self.troubles.add("full", f"closed the connection of {connection.address}: too many others without a message")
        self.remove(connection)
        connection.abort()

    def mark_verified(self, connection: ServerConnection) -> None:
        """A message of this connection was accepted. If peers have too many, the one idle for longest is closed."""
        self.remove(connection)
        self._peers[connection] = None
        if len(self._peers) > self._max_connections - self._max_strangers:
            longest_idle = next(iter(self._peers))
            self.remove(longest_idle)
            longest_idle.close()

    def remove(self, connection: ServerConnection) -> None:
        """The connection gives up its place."""
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
    """One connection: one request at a time, each within the limits above."""

    def __init__(self, server: HttpServer) -> None:
        self.address = "unknown"
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rejection: Rejected | None = None
        self._is_answering = False
        self._is_idle = False
        """Between two requests."""
        self._begin()

    def _begin(self) -> None:
        """Prepare for a request."""
        from httptools import HttpRequestParser

        self._parser = HttpRequestParser(self)
        self._url = b""
        self._fields: dict[str, str] = {}
        self._headers = 0
        self._head_bytes = 0
        self._body_bytes = 0
        self._has_head = False
        self._parts: list[bytes] = []
        self._size = 0
        self._is_complete = False
        self._is_kept_alive = False

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
        """Take a place, and wait for the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self.address = str((transport.get_extra_info("peername") or ("unknown",))[0])
        self._close_after(REQUEST_SECONDS)
        self._server.add(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  the reason does not matter
        """Give up the place."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._server.remove(self)

    def pause_writing(self) -> None:
        """End a connection whose other end does not read answers."""
        self.abort()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; deliver the message when it is complete."""
        if self._rejection is not None:
            return  # arrived before reading was paused
        try:
            if self._is_answering:
                raise _too_early()
            self._read(data)
            if self._is_complete:
                self._deliver()
        except Rejected as rejection:
            self._reject(rejection)

    def _read(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self._close_after(REQUEST_SECONDS)
        if not self._has_head:
            room = HEAD_LIMIT - self._head_bytes
            head, data = data[:room], data[room:]
            self._head_bytes += len(head)
            self._parse(head)
            if not self._has_head and self._head_bytes == HEAD_LIMIT:
                raise Rejected(431, f"a request has at most {HEAD_LIMIT} bytes of headers")
        if data:
            self._body_bytes += len(data)
            if self._body_bytes > MAX_BODY_BYTES:
                raise _too_large()
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        from httptools import HttpParserError, HttpParserUpgrade

        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if isinstance(error.__context__, Rejected):  # raised by a callback
                raise error.__context__ from None
            raise Rejected(400, "this is not a request of HTTP/1.1") from error

    def _deliver(self) -> None:
        answer = self._server.deliver(Envelope(body=b"".join(self._parts), **self._fields))
        self._server.mark_verified(self)
        self._is_answering = True
        # In the next iteration: the tasks woken by the message run first, the answer is less urgent.
        self._loop.call_soon(self._answer, answer)

    def _answer(self, answer: bytes) -> None:
        self._is_answering = False
        if self._transport is None or self._rejection is not None:
            return
        self._write(200, b"application/octet-stream", answer, is_last=not self._is_kept_alive)
        if not self._is_kept_alive:
            self.close()
            return
        self._begin()
        self._is_idle = True
        self._close_after(IDLE_SECONDS)

    def _reject(self, rejection: Rejected) -> None:
        """Answer with the error, read nothing more, and close the connection as soon as the error can have arrived."""
        self._rejection = rejection
        self._parts = []
        self._server.troubles.add(
            str(rejection.status), f"rejected a request from {self.address}: {rejection.status} {rejection}"
        )
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.pause_reading()
        self._write(rejection.status, b"text/plain; charset=utf-8", str(rejection).encode(), is_last=True)
        self._transport.write_eof()
        self._close_after(LINGER_SECONDS)

    def _write(self, status: int, media_type: bytes, body: bytes, *, is_last: bool) -> None:
        assert self._transport is not None, "the caller has checked this"
        more = b"Allow: POST\r\n" if status == 405 else b""
        more += b"Connection: close\r\n" if is_last else b""
        self._transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b\r\n%b"
            % (status, REASONS.get(status, b"Error"), media_type, len(body), more, body)
        )

    def _close_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        """The time is over."""
        if self._rejection is not None:
            self.abort()
        elif self._is_idle:
            self.close()
        else:
            self._reject(Rejected(408, f"a request must be complete within {REQUEST_SECONDS:g} seconds"))

    # ------------------------------------------------------------ callbacks of the parser

    def on_message_begin(self) -> None:
        """Accept no request before the answer to the last one."""
        if self._is_complete:
            raise _too_early()

    def on_url(self, part: bytes) -> None:
        """Keep a part of the URL."""
        self._url += part
        if len(self._url) > URL_LIMIT:
            raise Rejected(414, f"a URL has at most {URL_LIMIT} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the header if it belongs to the envelope; of several with one name the first."""
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise Rejected(431, f"a request has at most {MAX_HEADERS} headers")
        field = NAMES.get(name.lower())
        if field is not None:
            self._fields.setdefault(field, value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """Reject what is not a message before its body is read."""
        self._has_head = True
        if self._url != PATH.encode():
            raise Rejected(404, f"the only path here is {PATH}")
        if self._parser.get_method() != METHOD.encode():
            raise Rejected(405, f"the only method here is {METHOD}")
        check_headers(self._fields)

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._size += len(body)
        if self._size > SIZE_LIMIT:
            raise _too_large()
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        self._is_complete = True
        self._is_kept_alive = self._parser.should_keep_alive()  # the parser answers this only in this callback


def _too_large() -> Rejected:
    return Rejected(413, f"a message between peers has at most {SIZE_LIMIT} bytes")


def _too_early() -> Rejected:
    return Rejected(400, "send the next request after the answer to the last one")
