"""The HTTP transport against real sockets: invalid requests are rejected without effect, and failures heal."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from tests.peering.clocks import StoppedClock
from tests.peering.served_app import served
from tests.support import PATIENCE_SECONDS, until

from synergon import Engine
from synergon.errors import OptionError
from synergon.peering import http_transport
from synergon.peering.http_headers import HEADERS
from synergon.peering.http_transport import HttpTransport
from synergon.peering.listen_address import bind
from synergon.peering.signatures import WINDOW, Envelope, Signer
from synergon.peering.transport import SendError
from synergon.peering.wire import PATH, SIZE_LIMIT, encode, message

RARELY = 3600


@pytest.fixture
async def engine(sqlite_url: str) -> AsyncIterator[Engine]:
    """An engine that runs a node and listens."""
    engine = Engine(sqlite_url, sweep=RARELY)

    @engine.task
    async def quick() -> None: ...

    async with engine.worker():
        yield engine


@pytest.fixture
async def signer(engine: Engine) -> Signer:
    """What a member of the cluster signs with."""
    now = await engine._store.now()
    return Signer(await engine._store.secret(), StoppedClock(now))


def id_of(engine: Engine) -> str:
    """The id that messages for the engine name."""
    assert engine.peers is not None
    return engine.peers.id


async def post(
    engine: Engine, envelope: Envelope, *, without: str | None = None, method: str = "POST"
) -> tuple[int, str]:
    assert engine.peers is not None
    headers = {header: getattr(envelope, field) for field, header in HEADERS.items() if header != without}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{engine.peers.address}{PATH}", data=envelope.body, headers=headers) as response,
    ):
        return response.status, await response.text()


class Watch:
    """Records the hints that a node handles, and the requests that it sends."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[Any] = []
        self.sent: list[Any] = []
        assert engine.peers is not None
        monkeypatch.setattr(engine._node, "handle_hints", self.heard.append)
        monkeypatch.setattr(engine.peers._router, "refresh_soon", lambda: self.sent.append("refresh"))
        monkeypatch.setattr(engine.peers._transport, "send", self._send)

    async def _send(self, address: str, envelope: Envelope) -> bytes:
        self.sent.append(address)
        return b""


@pytest.fixture
def watch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(engine, monkeypatch)


BODY = encode(message(new={"quick": 1}))


async def test_a_signed_message_is_accepted(engine: Engine, signer: Signer, watch: Watch) -> None:
    status, answer = await post(engine, signer.wrap("me", id_of(engine), BODY))
    assert status == 200
    assert '"free":500' in answer
    assert [hints.new for hints in watch.heard] == [{"quick": 1}]


async def test_a_wrong_signature_is_rejected(engine: Engine, signer: Signer, watch: Watch) -> None:
    now = await engine._store.now()
    status, why = await post(engine, Signer(b"guessed", StoppedClock(now)).wrap("me", id_of(engine), BODY))
    assert status == 401
    assert "signature is wrong" in why
    assert watch.heard == watch.sent == []


async def test_a_replay_is_rejected(engine: Engine, signer: Signer, watch: Watch) -> None:
    envelope = signer.wrap("me", id_of(engine), BODY)
    assert (await post(engine, envelope))[0] == 200
    assert (await post(engine, envelope))[0] == 401
    assert len(watch.heard) == 1
    assert watch.sent == []


@pytest.mark.parametrize("shift", [-WINDOW - 5_000_000, WINDOW + 5_000_000])
async def test_a_stale_or_future_message_is_rejected(engine: Engine, watch: Watch, shift: int) -> None:
    now = await engine._store.now() + shift
    status, why = await post(
        engine, Signer(await engine._store.secret(), StoppedClock(now)).wrap("me", id_of(engine), BODY)
    )
    assert status == 401
    assert "by the database's clock" in why
    assert watch.heard == watch.sent == []


@pytest.mark.parametrize("header", HEADERS.values())
async def test_a_message_without_its_headers_is_rejected(
    engine: Engine, signer: Signer, watch: Watch, header: str
) -> None:
    status, why = await post(engine, signer.wrap("me", id_of(engine), BODY), without=header)
    assert status == 401
    assert header in why
    assert watch.heard == watch.sent == []


async def test_a_body_over_the_limit_is_rejected(engine: Engine, signer: Signer, watch: Watch) -> None:
    status, why = await post(engine, signer.wrap("me", id_of(engine), b" " * SIZE_LIMIT + BODY))
    assert status == 413
    assert str(SIZE_LIMIT) in why
    assert watch.heard == watch.sent == []


async def test_only_post_requests_are_accepted(engine: Engine, signer: Signer, watch: Watch) -> None:
    for method in ("GET", "PUT", "DELETE"):
        assert (await post(engine, signer.wrap("me", id_of(engine), BODY), method=method))[0] == 405
    assert watch.heard == watch.sent == []


async def test_another_protocol_version_is_rejected_with_both_versions(
    engine: Engine, signer: Signer, watch: Watch
) -> None:
    status, why = await post(engine, signer.wrap("me", id_of(engine), b'{"v":2}'))
    assert status == 409
    assert "speaks version 2" in why
    assert "same release" in why
    assert watch.heard == watch.sent == []


async def test_an_address_in_a_message_is_never_contacted(engine: Engine, signer: Signer, watch: Watch) -> None:
    body = b'{"v":1,"hello":{"id":"x","version":"1","address":"http://169.254.169.254/"}}'
    assert (await post(engine, signer.wrap("x", id_of(engine), body)))[0] == 200
    assert watch.sent == ["refresh"]  # the node table is asked, and it does not know x


async def test_an_address_that_cannot_be_bound_is_a_configuration_error(sqlite_url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        engine = Engine(sqlite_url, listen=f"127.0.0.1:{port}")
        with pytest.raises(OptionError, match=rf"listen=127.0.0.1:{port} cannot be bound"):
            async with engine.worker():
                pass
        async with engine:
            assert await engine.nodes() == []


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_start_leaks_no_socket(steps: int) -> None:
    transport = HttpTransport(("127.0.0.1", 0), None)
    starting = asyncio.ensure_future(transport.serve(lambda envelope: b""))
    await asyncio.to_thread(
        http_transport._import_parser
    )  # from here on each turn of the loop is one step of the start
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    await transport.close()
    del starting, transport
    with warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(leak.message) for leak in leaks] == []


async def test_listen_off_opens_no_port(sqlite_url: str) -> None:
    engine = Engine(sqlite_url, listen="off")
    async with engine.worker():
        (node,) = await engine.nodes()
        assert node.address is None


async def test_the_advertised_address_is_published(sqlite_url: str) -> None:
    engine = Engine(sqlite_url, listen="127.0.0.1:0", advertise="http://proxy.example/nodes/1")
    async with engine.worker():
        (node,) = await engine.nodes()
        assert node.address == "http://proxy.example/nodes/1"


async def test_a_node_can_receive_through_the_applications_own_app(sqlite_url: str) -> None:
    bound = bind("127.0.0.1", 0, "listen")
    address = f"http://127.0.0.1:{bound.getsockname()[1]}/inside"
    worker = Engine(sqlite_url, sweep=RARELY, listen="off", advertise=address)
    producer = Engine(sqlite_url, sweep=RARELY)

    @worker.task
    async def quick() -> int:
        return 7

    app = Starlette(routes=[Mount("/inside", worker.peer_app())])
    async with served(app, bound), worker.worker(), producer:
        (handle,) = await producer.enqueue([producer.call("quick")])
        assert await handle.result(timeout=PATIENCE_SECONDS) == 7


class Moody:
    """An app that answers 503 while it is ill, and what is behind it otherwise."""

    def __init__(self) -> None:
        self.inner: Any = None
        self.is_ill = True
        self.refused = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.is_ill:
            self.refused += 1
            await PlainTextResponse("not now", status_code=503)(scope, receive, send)
        else:
            await self.inner(scope, receive, send)


async def test_a_peer_that_answered_503_is_used_again_after_it_recovers(sqlite_url: str) -> None:
    moody = Moody()
    async with served(Starlette(routes=[Mount("/", moody)])) as address:
        worker = Engine(sqlite_url, sweep=RARELY, listen="off", advertise=address)
        producer = Engine(sqlite_url, sweep=RARELY)
        moody.inner = worker.peer_app()

        @worker.task
        async def quick() -> int:
            return 7

        async with worker.worker(), producer:
            (handle,) = await producer.enqueue([producer.call("quick")])
            await until(lambda: moody.refused >= 2)
            moody.is_ill = False
            assert await handle.result(timeout=PATIENCE_SECONDS) == 7


@pytest.mark.parametrize("status", [301, 302, 307])
async def test_redirects_are_not_followed(status: int, sqlite_url: str) -> None:
    visited: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        visited.append(scope["path"])
        await PlainTextResponse("", status_code=status, headers={"location": "/elsewhere"})(scope, receive, send)

    transport = HttpTransport(None, None)
    async with served(Starlette(routes=[Mount("/", app)])) as address:
        with pytest.raises(SendError, match=str(status)):
            await transport.send(address, Signer(b"s", StoppedClock(0)).wrap("me", "you", BODY))
        await transport.close()
    assert visited == [PATH]


async def test_proxy_settings_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("{}")(scope, receive, send)

    transport = HttpTransport(None, None)
    async with served(Starlette(routes=[Mount("/", app)])) as address:
        assert await transport.send(address, Signer(b"s", StoppedClock(0)).wrap("me", "you", BODY)) == b"{}"
        await transport.close()


async def test_a_connection_attempt_without_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "SEND_SECONDS", 0.2)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.6)

    transport = HttpTransport(None, None)
    async with served(Starlette(routes=[Mount("/", app)])) as address:
        with pytest.raises(SendError):
            await transport.send(address, Signer(b"s", StoppedClock(0)).wrap("me", "you", BODY))
        await transport.close()
