"""The server of the peer port against real sockets: what a stranger may cost is bounded, and peers are served."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest
from tests.support import PATIENCE_SECONDS, until

from synergon.peering import http_server
from synergon.peering.http_headers import HEADERS
from synergon.peering.http_server import HEAD_LIMIT, MAX_HEADERS, URL_LIMIT, HttpServer
from synergon.peering.http_service import HttpAnswer
from synergon.peering.listen_address import bind
from synergon.peering.peer_service import PeerService
from synergon.peering.signatures import Envelope
from synergon.peering.transport import Rejected
from synergon.peering.wire import PATH, SIZE_LIMIT

ANSWER: Final = b'{"v":1}'
FIELDS: Final = "".join(f"{header}: {field}\r\n" for field, header in HEADERS.items()).encode()
START: Final = b"POST " + PATH.encode() + b" HTTP/1.1\r\n"


def request(body: bytes = b"{}", more: bytes = b"") -> bytes:
    """A complete message; the server below accepts every one whose body is not `wrong`."""
    return START + FIELDS + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


CHUNKED: Final = START + FIELDS + b"Transfer-Encoding: chunked\r\n\r\n"


class Port:
    """A server, and what it has delivered."""

    def __init__(self) -> None:
        self.bound = bind("127.0.0.1", 0, "listen")
        self.delivered: list[Envelope] = []
        self.answer = ANSWER
        self.server = HttpServer(self.bound, PeerService(self._deliver))

    def _deliver(self, envelope: Envelope) -> bytes:
        if envelope.body == b"wrong":
            raise Rejected(401, "the signature is wrong")
        self.delivered.append(envelope)
        return self.answer

    async def connect(self, host: str = "127.0.0.1") -> Client:
        """A new connection, from another address of this host if one is given."""
        port = self.bound.getsockname()[1]
        return Client(*await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0)))


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            return int(head.split()[1]), await self._reader.readexactly(length)

    async def rest(self) -> bytes:
        """What arrives before the server closes the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def is_refused(self) -> int:
        """The status of the answer, after which the server closes the connection."""
        status, _ = await self.answer()
        assert await self.rest() == b""
        return status

    async def write_without_end(self) -> int:
        """Write until the server has closed the connection; return the number of bytes."""
        written = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while True:
                    self._writer.write(b" " * 65536)
                    await self._writer.drain()
                    written += 65536
            except ConnectionError:
                return written

    def close(self) -> None:
        self._writer.transport.abort()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    port = Port()
    port.server.start()
    yield port
    await port.server.close()


@asynccontextmanager
async def connected(port: Port, number: int = 1, host: str = "127.0.0.1") -> AsyncIterator[list[Client]]:
    clients = [await port.connect(host) for _ in range(number)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


@pytest.fixture
async def client(port: Port) -> AsyncIterator[Client]:
    async with connected(port) as (client,):
        yield client


# ------------------------------------------------------------ requests of peers


async def test_a_connection_serves_one_message_after_the_other(port: Port, client: Client) -> None:
    for number in range(3):
        client.send(request(b"%d" % number))
        assert await client.answer() == (200, ANSWER)
    assert [envelope.body for envelope in port.delivered] == [b"0", b"1", b"2"]
    assert {envelope.peer_id for envelope in port.delivered} == {"peer_id"}


async def test_a_message_may_arrive_byte_by_byte_and_in_chunks(port: Port, client: Client) -> None:
    for byte in request(b"[1, 2]"):
        client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert await client.answer() == (200, ANSWER)
    client.send(CHUNKED + b"2\r\n[1\r\n4\r\n, 2]\r\n0\r\n\r\n")
    assert await client.answer() == (200, ANSWER)
    assert [envelope.body for envelope in port.delivered] == [b"[1, 2]", b"[1, 2]"]


async def test_the_largest_message_is_accepted(port: Port, client: Client) -> None:
    client.send(request(b" " * SIZE_LIMIT, b"X-More: %b\r\n" % (b"x" * (HEAD_LIMIT - 1000))))
    assert (await client.answer())[0] == 200


async def test_the_connection_is_closed_after_the_answer_if_the_sender_asks_for_it(port: Port, client: Client) -> None:
    client.send(request(more=b"Connection: close\r\n"))
    assert await client.is_refused() == 200


async def test_an_unused_connection_is_closed(port: Port, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 0.1)
    client.send(request())
    assert await client.is_refused() == 200


async def test_an_answer_that_is_due_is_sent_before_the_server_closes() -> None:
    port = Port()
    port.server.start()
    async with connected(port) as (client,):
        client.send(request())
        await until(lambda: bool(port.delivered))
        await port.server.close()
        assert await client.answer() == (200, ANSWER)
        assert await client.rest() == b""


# ------------------------------------------------------------ requests that are rejected

BAD: Final = {
    "a URL without end": (414, b"POST /" + b"x" * 2 * URL_LIMIT),
    "one header without end": (431, START + b"X-Long: " + b"x" * HEAD_LIMIT),
    "headers without end": (431, START + b"a: b\r\n" * HEAD_LIMIT),
    "one header too many": (431, START + b"a: b\r\n" * (MAX_HEADERS + 1) + b"\r\n"),
    "trailers without end": (431, CHUNKED + b"0\r\n" + b"a: b\r\n" * 100 * MAX_HEADERS),
    "one trailer without end": (413, CHUNKED + b"0\r\nX-Long: " + b"x" * 3 * SIZE_LIMIT),
    "an extension of a chunk without end": (413, CHUNKED + b"1;" + b"x" * 3 * SIZE_LIMIT),
    "tiny chunks without end": (413, CHUNKED + b"1\r\nx\r\n" * SIZE_LIMIT),
    "a large body": (413, request(b" " * (SIZE_LIMIT + 1))),
    "another path": (404, b"POST /peer/v2 HTTP/1.1\r\n\r\n"),
    "another method": (405, b"GET " + PATH.encode() + b" HTTP/1.1\r\n\r\n"),
    "an unknown method": (400, b"TELL " + PATH.encode() + b" HTTP/1.1\r\n\r\n"),
    "a tunnel": (404, b"CONNECT example.com:443 HTTP/1.1\r\n\r\n"),
    "another protocol": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "an upgrade": (400, request(more=b"Connection: Upgrade\r\nUpgrade: websocket\r\n")),
    "two lengths": (400, START + FIELDS + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
    "no signature": (401, START + b"\r\n"),
    "a wrong signature": (401, request(b"wrong")),
    "requests without waiting": (400, request() * 2),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_request_has_no_effect_and_ends_its_connection(port: Port, client: Client, name: str) -> None:
    status, sent = BAD[name]
    client.send(sent)
    assert await client.is_refused() == status
    assert port.delivered == []


async def test_a_request_before_the_answer_ends_the_connection(port: Port, client: Client) -> None:
    client.send(request() + b"P")
    assert await client.is_refused() == 400


@pytest.mark.parametrize("name", ["a large body", "a wrong signature", "another path"])
async def test_nothing_is_read_after_an_error(
    port: Port, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = 0
    data_received = http_server.ServerConnection.data_received

    def count(self: http_server.ServerConnection, data: bytes) -> None:
        nonlocal received
        received += len(data)
        data_received(self, data)

    monkeypatch.setattr(http_server.ServerConnection, "data_received", count)
    client.send(BAD[name][1])
    await client.write_without_end()
    assert received <= len(BAD[name][1]) + 2 * 256 * 1024, "at most what asyncio had read already"


PARTS: Final = {
    "nothing": b"",
    "a part of the line": b"POST /pe",
    "a part of the headers": START + b"X-Peer-ID: me\r\n",
    "a part of the body": request()[:-1],
}


@pytest.mark.parametrize("name", PARTS)
async def test_a_request_that_does_not_end_ends_its_connection(
    port: Port, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.1)
    async with connected(port) as (client,):
        client.send(PARTS[name])
        assert await client.is_refused() == 408


async def test_a_body_that_drips_does_not_get_more_time(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.3)
    async with connected(port) as (client,):
        client.send(request(b" " * 1000)[:-1000])
        answer = asyncio.ensure_future(client.answer())
        while not answer.done():
            client.send(b" ")
            await asyncio.wait([answer], timeout=0.01)
        assert answer.result()[0] == 408


async def test_the_second_request_of_a_connection_has_its_time_too(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.1)
    async with connected(port) as (client,):
        client.send(request())
        assert (await client.answer())[0] == 200
        client.send(request()[:-1])
        assert await client.is_refused() == 408


async def test_a_connection_whose_answers_are_not_read_is_ended(port: Port, client: Client) -> None:
    port.answer = b" " * SIZE_LIMIT
    # The stubs of asyncio lack the attribute.
    client._reader._transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(10_000):
        if not port.server._peers and number:
            break
        client.send(request())
        # mypy knows no lambda with a default.
        await until(lambda before=number: len(port.delivered) > before or not port.server._peers)  # type: ignore[misc]
    assert port.server._peers == {}


# ------------------------------------------------------------ numbers of connections


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places for four strangers, two of them from one address, and for four peers."""
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(http_server, "MAX_UNVERIFIED", 4)
    monkeypatch.setattr(http_server, "MAX_UNVERIFIED_PER_ADDRESS", 2)


@pytest.mark.usefixtures("few")
async def test_strangers_displace_each_other_and_never_a_peer() -> None:
    port = Port()
    port.server.start()
    async with connected(port) as (peer,):
        peer.send(request())
        assert (await peer.answer())[0] == 200
        async with connected(port, 20) as strangers:
            for stranger in strangers[:-2]:
                assert await stranger.rest() == b""
            assert len(port.server._unverified) == 2
            strangers[-1].send(request())
            assert (await strangers[-1].answer())[0] == 200
            peer.send(request())
            assert (await peer.answer())[0] == 200
    await port.server.close()


@pytest.mark.usefixtures("few")
async def test_the_strangers_of_one_address_displace_none_of_another() -> None:
    port = Port()
    port.server.start()
    async with connected(port, 2, "127.0.0.2") as others, connected(port, 20) as strangers:
        for stranger in strangers[:-2]:
            assert await stranger.rest() == b""
        for other in others:
            other.send(request())
            assert (await other.answer())[0] == 200
    await port.server.close()


@pytest.mark.usefixtures("few")
async def test_the_strangers_of_many_addresses_have_a_bound_too() -> None:
    port = Port()
    port.server.start()
    hosts = [f"127.0.0.{number}" for number in range(2, 22)]
    strangers = [await port.connect(host) for host in hosts]
    for stranger in strangers[:-4]:
        assert await stranger.rest() == b""
    assert len(port.server._unverified) == 4
    for stranger in strangers:
        stranger.close()
    await port.server.close()


@pytest.mark.usefixtures("few")
async def test_of_too_many_peers_the_one_that_was_idle_for_longest_is_closed() -> None:
    port = Port()
    port.server.start()
    async with connected(port) as (busy,), connected(port) as (idle,):
        for peer in (busy, idle, busy):
            peer.send(request())
            assert (await peer.answer())[0] == 200
        async with AsyncExitStack() as stack:
            for _ in range(3):
                (peer,) = await stack.enter_async_context(connected(port))
                peer.send(request())
                assert (await peer.answer())[0] == 200
            busy.send(request())
            assert (await busy.answer())[0] == 200
            assert await idle.rest() == b""
            assert len(port.server._peers) == 4
    await port.server.close()


async def test_connections_take_a_quarter_of_the_descriptors(descriptors: Callable[[int], None]) -> None:
    descriptors(400)
    with bind("127.0.0.1", 0, "listen") as bound:
        assert HttpServer(bound, PeerService(lambda envelope: b""))._max_connections == 100


async def test_places_are_given_back(port: Port) -> None:
    async with connected(port, 10) as clients:
        for client in clients[:5]:
            client.send(request())
            assert (await client.answer())[0] == 200
    await until(lambda: not port.server._unverified and not port.server._peers)
    assert port.server._strangers_by_address == {}


# ------------------------------------------------------------ log lines and descriptors


@pytest.fixture
def descriptors() -> Iterator[Callable[[int], None]]:
    """Sets how many descriptors this process may open, until the test ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda number: resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_server_without_descriptors_waits_and_is_logged_once(
    port: Port, descriptors: Callable[[int], None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ACCEPT_PAUSE_SECONDS", 0.02)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    pauses = 0
    pause = port.server._pause

    def count(error: OSError) -> None:
        nonlocal pauses
        pauses += 1
        pause(error)

    monkeypatch.setattr(port.server, "_pause", count)
    with socket.socket() as client, caplog.at_level(logging.INFO):
        client.connect(port.bound.getsockname())
        client.setblocking(False)
        descriptors(client.fileno() + 1)
        spare = _use_up_descriptors()
        await until(lambda: pauses >= 5)
        descriptors(before)
        for used in spare:
            used.close()
        await asyncio.get_running_loop().sock_sendall(client, request())
        assert (await asyncio.get_running_loop().sock_recv(client, 100)).startswith(b"HTTP/1.1 200")
    (line,) = [record for record in caplog.records if "cannot accept" in record.getMessage()]
    assert line.exc_info is None
    assert [record for record in caplog.records if record.name == "asyncio" and record.levelno > logging.INFO] == []


def _use_up_descriptors() -> list[socket.socket]:
    used = []
    while True:
        try:
            used.append(socket.socket())
        except OSError:
            return used


async def test_each_kind_of_trouble_is_logged_once_per_minute(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    async def offend(name: str, times: int) -> None:
        for _ in range(times):
            async with connected(port) as (client,):
                client.send(BAD[name][1])
                assert (await client.answer())[0] == BAD[name][0]

    with caplog.at_level(logging.DEBUG, "synergon"):
        await offend("a wrong signature", 5)
        await offend("another path", 5)
        lines = [record.getMessage() for record in caplog.records]
        assert lines == [
            "rejected a request from 127.0.0.1: 401 the signature is wrong",
            f"rejected a request from 127.0.0.1: 404 the only path here is {PATH}",
        ]
        port.server.troubles._next_at.clear()  # a minute later
        await offend("another path", 2)
        assert caplog.records[-1].getMessage().endswith("(and 4 times before, not logged)")
        assert len(caplog.records) == 3


# ------------------------------------------------------------ other services


class LargeAnswers:
    """A service whose answers do not fit into the buffers of a socket."""

    method: Final = "GET"
    headers: Final[Mapping[bytes, str]] = {}
    body_limit: Final = 0
    answer_limit: Final = 32 * 1024 * 1024
    is_verifying: Final = False
    body: Final = b"x" * (8 * 1024 * 1024)

    def check(self, method: str, path: str, fields: Mapping[str, str]) -> None:
        """Everything is served."""

    async def answer(self, path: str, fields: Mapping[str, str], body: bytes) -> HttpAnswer:
        """A large answer, or an error."""
        await asyncio.sleep(0)
        if path == "/broken":
            raise ValueError(path)
        if path == "/rejected":
            raise Rejected(404, path)
        return HttpAnswer(self.body)


@pytest.fixture
async def large_port() -> AsyncIterator[int]:
    bound = bind("127.0.0.1", 0, "listen")
    server = HttpServer(bound, LargeAnswers())
    server.start()
    yield bound.getsockname()[1]
    await server.close()


async def test_a_client_that_reads_slowly_gets_the_whole_answer(large_port: int) -> None:
    client = Client(*await asyncio.open_connection("127.0.0.1", large_port, limit=1024))
    client.send(b"GET / HTTP/1.1\r\n\r\n")
    assert await client.answer() == (200, LargeAnswers.body)
    client.close()


async def test_a_client_that_does_not_read_its_answer_is_dropped(
    large_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", large_port)) as silent:
        silent.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.5)  # it has been idle for its time, with an answer in the buffer
        silent.settimeout(PATIENCE_SECONDS)

        def read_all() -> int:
            size = 0
            try:
                while part := silent.recv(65536):
                    size += len(part)
            except ConnectionError:
                pass
            return size

        assert await asyncio.to_thread(read_all) < len(LargeAnswers.body)


@pytest.mark.parametrize(("path", "status"), [("/broken", 500), ("/rejected", 404)])
async def test_an_answer_that_cannot_be_made_is_an_error(large_port: int, path: str, status: int) -> None:
    client = Client(*await asyncio.open_connection("127.0.0.1", large_port))
    client.send(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    assert await client.is_refused() == status
    client.close()
