"""The web server around the app: connections that say nothing, the pool of the API, and what is loaded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support import PATIENCE_SECONDS, until
from tests.web.web_support import answered, client, register_kinds

from synergon import Engine
from synergon.web import http_protocol
from synergon.web.backend import Backend, _bounded
from synergon.web.server import Plan, Server, app_of, bind, config_of, plan


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[int]:
    """The port of a server of this engine."""
    planned: Plan = plan(":0", credentials=None)
    started = asyncio.Event()
    server = Server(config_of(app_of(engine, planned), planned))
    server.on_start = started.set
    with bind(planned) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await started.wait()
        yield listening.getsockname()[1]
        server.should_exit = True
        await serving


REQUEST = b"GET /api/v1/user HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def url(memory_url: str) -> str:
    return memory_url


@pytest.mark.parametrize("is_first", [True, False], ids=["first request", "second request"])
@pytest.mark.parametrize("sent", [b"GET /api/v1/user HT", REQUEST[:-4]], ids=["a line", "headers"])
async def test_a_connection_whose_request_does_not_arrive_is_closed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, sent: bytes, is_first: bool
) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.05)
    async with engine, served(engine) as port, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if not is_first:
            writer.write(REQUEST)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        writer.write(sent)
        assert await reader.read() == b"", "the server closes it"
        writer.close()


async def test_a_slow_answer_is_not_closed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.01)
    async with engine, served(engine) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.readuntil(b"retry: 3000\n\n")
        await asyncio.sleep(0.05)  # longer than the headers may take
        assert not reader.at_eof()
        writer.close()


async def test_the_api_has_connections_of_its_own_and_they_are_closed_with_the_engine(sqlite_url: str) -> None:
    engine = Engine(sqlite_url, name="shop")
    register_kinds(engine)
    async with engine, engine.worker(), client(engine, "read") as http:
        answered(await http.get("/queues"), 200)
        (own,) = engine._lifecycle.companions
        assert own._store is not engine._store
        assert own.settings.name == "shop web"
        answered(await http.get("/queues"), 200)
        assert engine._lifecycle.companions == [own]
    assert not engine._lifecycle.companions
    assert not own._connection.is_open


async def test_a_backend_opens_once_for_many_requests_and_again_after_it_was_closed(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)
    backend = Backend(engine)
    opened = await asyncio.gather(*(backend.engine() for _ in range(5)))
    assert len({id(each) for each in opened}) == 1
    await backend.close()
    again = await backend.engine()
    assert again is not opened[0]
    await engine.stop()
    await until(lambda: not again._connection.is_open)


def test_the_pool_and_the_time_of_statements_are_bounded() -> None:
    url = "postgresql://ada:x@db/app?pool=50&schema=tasks&timeout=600"
    assert _bounded(url) == "postgresql://ada:x@db/app?schema=tasks&pool=4&timeout=10"
    assert _bounded("postgresql://db/app") == "postgresql://db/app?pool=4&timeout=10"
    assert _bounded("sqlite:///app.db") == "sqlite:///app.db"


def test_neither_an_import_nor_a_worker_loads_the_web() -> None:
    script = """
import asyncio, sys
from synergon import Engine

async def main():
    engine = Engine("memory://")
    async with engine, engine.worker(drain=True):
        pass

asyncio.run(main())
loaded = [name for name in sys.modules if name.startswith(("synergon.web", "synergon.doctor", "starlette", "uvicorn"))]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_SECONDS)
