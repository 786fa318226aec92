"""Peers behind TLS: real certificates, real handshakes. A peer with an untrusted certificate gets no hints."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from tests.support import PATIENCE_SECONDS, until

from synergon import Engine
from synergon.peering.listen_address import bind

RARELY = 3600
HOST = "localhost"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """One of our own, which no system knows."""
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process believes it."""
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))


class Gate:
    """What stands before a node that shall be reached by TLS only, as a proxy does."""

    def __init__(self, port: int, inner_port: int) -> None:
        self.address = f"https://{HOST}:{port}"
        self.listen = f"127.0.0.1:{inner_port}"
        self.requests: list[bytes] = []
        self._inner_port = inner_port
        self._pipes: set[asyncio.Task[None]] = set()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._inner_port)
        inwards = asyncio.ensure_future(self._pipe(reader, inner_writer, self.requests))
        outwards = asyncio.ensure_future(self._pipe(inner_reader, writer, []))
        self._pipes |= {inwards, outwards}

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                seen.append(data)
                writer.write(data)
        writer.close()

    async def close(self) -> None:
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)


@asynccontextmanager
async def gate(authority: trustme.CA, name: str = HOST) -> AsyncIterator[Gate]:
    """One with a certificate for this name."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    with bind("127.0.0.1", 0, "listen") as free:
        inner_port = free.getsockname()[1]
    outer = bind("127.0.0.1", 0, "listen")
    made = Gate(outer.getsockname()[1], inner_port)
    server = await asyncio.start_server(made.pass_on, sock=outer, ssl=context)
    try:
        yield made
    finally:
        server.close()
        await made.close()


def node(url: str, gate: Gate, *, sweep: float = RARELY) -> Engine:
    return Engine(url, sweep=sweep, listen=gate.listen, advertise=gate.address)


@pytest.mark.usefixtures("trusted")
async def test_two_nodes_exchange_hints_over_tls(sqlite_url: str, authority: trustme.CA) -> None:
    async with gate(authority) as one, gate(authority) as other:
        doubling, asking = node(sqlite_url, one), node(sqlite_url, other)

        @doubling.task
        async def double(number: int) -> int:
            return 2 * number

        @asking.task
        async def nothing() -> None: ...

        async with doubling.worker(), asking.worker():
            (handle,) = await asking.enqueue([asking.call("double", number=21)])
            assert await handle.result(timeout=PATIENCE_SECONDS) == 42
        assert any(b"POST /peer/v1" in request and b'"new":{"double":1}' in request for request in one.requests)
        assert any(b'"done":[' in request for request in other.requests)


REASONS = {HOST: "unable to get local issuer certificate", "elsewhere.example": "Hostname mismatch"}


@pytest.mark.parametrize("name", REASONS)
async def test_a_peer_with_an_untrusted_certificate_gets_no_hints_and_is_logged(
    name: str,
    sqlite_url: str,
    authority: trustme.CA,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    if name != HOST:
        request.getfixturevalue("trusted")
    async with gate(authority, name) as its:
        worker, producer = node(sqlite_url, its, sweep=0.2), Engine(sqlite_url, sweep=RARELY)

        @worker.task
        async def quick() -> int:
            return 7

        with caplog.at_level(logging.INFO, logger="synergon"):
            async with worker.worker(), producer:
                (handle,) = await producer.enqueue([producer.call("quick")])
                assert await handle.result(timeout=PATIENCE_SECONDS) == 7  # found by the sweep
                await until(lambda: "not trusted" in caplog.text)
        (line,) = [record.getMessage() for record in caplog.records if "not trusted" in record.getMessage()]
        assert its.address in line
        assert REASONS[name] in line
        assert "SSL_CERT_FILE" in line
        assert its.requests == []
