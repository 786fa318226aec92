"""HttpClient against real sockets that answer correctly, wrongly, in pieces or not at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest
from tests.support import until

from synergon.peering import http_client
from synergon.peering.http_client import MAX_ANSWER_BYTES, Answer, HttpClient, endpoint_of
from synergon.peering.transport import SendError
from synergon.peering.wire import PATH

SECONDS = 10.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answers each request with what it is told to; `ends`: and closes the connection then."""

    def __init__(self, *pieces: bytes, ends: bool = False) -> None:
        self._pieces = pieces
        self._ends = ends
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append(head + await reader.readexactly(2))
                for piece in self._pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.01)
                if self._ends:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def serving(*pieces: bytes, ends: bool = False) -> AsyncIterator[Server]:
    server = Server(*pieces, ends=ends)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        await until(lambda: server.open == 0)


@pytest.fixture
async def caller() -> AsyncIterator[HttpClient]:
    caller = HttpClient()
    yield caller
    await caller.close()


async def ask(caller: HttpClient, server: Server, seconds: float = SECONDS) -> Answer:
    return await caller.post(server.address, {"X-Peer-ID": "me"}, b"{}", seconds)


async def test_a_request_arrives_unchanged() -> None:
    caller = HttpClient()
    async with serving(OK) as server:
        assert await caller.post(server.address + "/inside/", {"X-Peer-ID": "me"}, b"{}", SECONDS) == (200, b"{}")
        await caller.close()
    host = server.address.removeprefix("http://")
    (request,) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.decode().split("\r\n") == [
        f"POST /inside{PATH} HTTP/1.1",
        f"Host: {host}",
        "Content-Length: 2",
        "X-Peer-ID: me",
    ]


async def test_a_connection_is_used_again() -> None:
    caller = HttpClient()
    async with serving(OK) as server:
        for _ in range(3):
            assert await ask(caller, server) == (200, b"{}")
        assert len(server.requests) == 3
        assert server.connections == 1
        await caller.close()


async def test_concurrent_requests_use_separate_connections() -> None:
    caller = HttpClient()
    async with serving(OK[:10], OK[10:]) as server:
        first, second = await asyncio.gather(ask(caller, server), ask(caller, server))
        assert first == second == (200, b"{}")
        assert server.connections == 2
        await caller.close()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([OK[:5], OK[5:30], OK[30:]], id="in pieces"),
        pytest.param([CHUNKED], id="in chunks"),
        pytest.param([b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", OK], id="after a first word"),
    ],
)
async def test_an_answer_is_parsed_however_it_is_split(caller: HttpClient, pieces: list[bytes]) -> None:
    async with serving(*pieces) as server:
        for _ in range(2):
            assert await ask(caller, server) == (200, b"{}")
        assert server.connections == 1
        await caller.close()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n{}", id="without a length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", id="as the last one"),
    ],
)
async def test_a_connection_that_ends_is_not_used_again(caller: HttpClient, answer: bytes) -> None:
    async with serving(answer, ends=True) as server:
        for _ in range(2):
            assert await ask(caller, server) == (200, b"{}")
        assert server.connections == 2


async def test_an_idle_connection_that_the_peer_closes_is_dropped(caller: HttpClient) -> None:
    async with serving(OK, ends=True) as server:
        for number in (1, 2):
            assert await ask(caller, server) == (200, b"{}")
            await until(lambda: not caller._idle)
            assert server.connections == number


async def test_an_unused_connection_is_closed(caller: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "KEEP_SECONDS", 0.05)
    async with serving(OK) as server:
        assert await ask(caller, server) == (200, b"{}")
        await until(lambda: server.open == 0)
        assert not caller._idle


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(b"garbage\r\n\r\n", "not valid HTTP", id="garbage"),
        pytest.param(b"", "without an answer", id="nothing"),
        pytest.param(b"HTTP/1.1 200", "without an answer", id="half a line"),
        pytest.param(OK[:-1], "without an answer", id="half of it"),
        pytest.param(CHUNKED[:-9], "without an answer", id="some chunks of it"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_ANSWER_BYTES, "more than", id="too much"),
    ],
)
async def test_an_invalid_answer_is_an_error(caller: HttpClient, answer: bytes, why: str) -> None:
    async with serving(answer, ends=True) as server:
        with pytest.raises(SendError, match=why):
            await ask(caller, server)
        assert not caller._idle


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([OK + OK], id="a second answer beside the first"),
        pytest.param([OK + OK[:9]], id="half of one beside the first"),
        pytest.param([OK, OK], id="a second answer a little later"),
        pytest.param([OK, OK[:9]], id="half of one a little later"),
    ],
)
async def test_unsolicited_data_is_not_taken_for_the_next_answer(caller: HttpClient, pieces: list[bytes]) -> None:
    async with serving(*pieces) as server:
        for number in (1, 2):
            assert await ask(caller, server) == (200, b"{}")
            await until(lambda: not caller._idle)
            assert server.connections == number


async def test_an_unresponsive_address_of_a_host_does_not_hide_the_others(
    caller: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(OK) as server:
        port = int(server.address.rpartition(":")[2])
        with ExitStack() as stack:
            mute, *rest = [stack.enter_context(socket.socket()) for _ in range(5)]
            mute.bind(("127.0.0.2", port))
            mute.listen(0)
            for waiting in rest:  # behind them nobody is let in
                waiting.setblocking(False)
                waiting.connect_ex(mute.getsockname())

            async def addresses(_: str, port: int, **__: object) -> list[tuple[object, ...]]:
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("127.0.0.2", "127.0.0.1")]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
            monkeypatch.setattr(http_client, "CONNECT_SECONDS", SECONDS)
            assert await caller.post(f"http://peer.example:{port}", {}, b"{}", SECONDS) == (200, b"{}")
            await caller.close()  # nobody else hangs up, and the server waits for that


async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(caller: HttpClient) -> None:
    async with serving() as silent:
        with pytest.raises(TimeoutError):
            await ask(caller, silent, seconds=0.05)
        await until(lambda: silent.open == 0)
        assert not caller._idle


async def test_a_refused_connection_is_an_error(caller: HttpClient) -> None:
    async with serving(OK) as server:
        pass
    with pytest.raises(OSError, match="onnect"):
        await ask(caller, server)


@pytest.mark.parametrize(
    ("address", "place", "line"),
    [
        ("http://10.0.0.5:7700", ("10.0.0.5", 7700, False), "Host: 10.0.0.5:7700"),
        ("https://proxy.example", ("proxy.example", 443, True), "Host: proxy.example"),
        ("http://[::1]:7700", ("::1", 7700, False), "Host: [::1]:7700"),
        ("http://proxy.example/a b/%20", ("proxy.example", 80, False), f"POST /a%20b/%20{PATH} HTTP/1.1"),
        ("http://bücher.example", ("xn--bcher-kva.example", 80, False), "Host: xn--bcher-kva.example"),
        ("http://me:secret@proxy.example", ("proxy.example", 80, False), "Authorization: Basic bWU6c2VjcmV0"),
    ],
)
def test_an_address_is_parsed_into_an_endpoint(address: str, place: tuple[str, int, bool], line: str) -> None:
    found = endpoint_of(address)
    assert (found.host, found.port, found.is_secure) == place
    assert line in found.head.decode().split("\r\n")


@pytest.mark.parametrize("address", ["http://host:none", "http://[::1", "http://" + "x" * 80 + ".example"])
def test_an_invalid_address_is_an_error(address: str) -> None:
    with pytest.raises(SendError, match="is not a valid address"):
        endpoint_of(address)


@pytest.mark.parametrize(
    "address",
    [
        "http://kim\udcff@host",
        "http://host/\udcff",
        "http://" + "x" * 64,
        "http://a..b",
        "http://a\0b",
        "http://[fe80::1%25nowhere]",
        "https://[fe80::1%nowhere\0]",
    ],
)
async def test_an_address_that_cannot_be_reached_raises_no_foreign_exception(address: str) -> None:
    client = HttpClient()
    with pytest.raises((SendError, OSError)):
        await client.post(address, {}, b"{}", SECONDS)
    await client.close()


def test_a_line_break_in_an_address_cannot_inject_a_header() -> None:
    assert endpoint_of("http://host/a\r\nX-Forged: 1").head.count(b"\r\n") == 2
