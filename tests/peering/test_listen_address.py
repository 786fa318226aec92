"""Where an engine listens if it is not told: on the interface that faces the database, and nowhere else."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from tests.postgres_server import store_url
from tests.support import PATIENCE_SECONDS

from synergon import Engine
from synergon.peering import listen_address
from synergon.peering.http_transport import HttpTransport
from synergon.peering.listen_address import LOOPBACK, database_hosts, facing_address

HOSTS = {
    "postgresql://db.internal/app": ("db.internal",),
    "postgresql://me:secret@10.0.0.7:5432/app": ("10.0.0.7",),
    "postgresql://me@a:5432,b:5433/app?target_session_attrs=read-write": ("a", "b"),
    "postgresql://[fd00::1]:5432/app": ("fd00::1",),
    "postgresql:///app?host=db.internal": ("db.internal",),
    "postgresql:///app?host=/var/run/postgresql": (),
    "postgresql:///app": (),
    "sqlite:///app.db": (),
    "memory://": (),
}


@pytest.mark.parametrize("url", HOSTS)
def test_the_hosts_of_a_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    assert database_hosts(url) == HOSTS[url]


def test_a_url_without_a_host_names_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.internal")
    assert database_hosts("postgresql:///app") == ("db.internal",)
    assert database_hosts("postgresql://elsewhere/app") == ("elsewhere",)


@pytest.mark.parametrize("hosts", [(), ("localhost",), ("127.0.0.1",), ("nowhere.invalid",), ("x" * 300,)])
def test_a_database_on_this_host_or_of_an_unknown_one_is_faced_by_the_loopback(hosts: tuple[str, ...]) -> None:
    assert facing_address(hosts) == LOOPBACK


def test_a_database_elsewhere_is_faced_by_the_interface_on_the_route_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"here": "127.0.0.1", "there": "10.0.0.5", "unknown": None}
    monkeypatch.setattr(listen_address, "route_address", routes.__getitem__)
    assert facing_address(("here", "unknown", "there")) == "10.0.0.5"


async def test_the_transport_listens_on_that_interface_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_address, "route_address", lambda host: "127.0.0.3")
    monkeypatch.setattr(listen_address, "_is_loopback", lambda address: False)
    transport = HttpTransport((None, 0), None, ("db.internal",))
    address = await transport.serve(lambda envelope: b"")
    try:
        assert urlsplit(address).hostname == "127.0.0.3"
        assert await is_open(address, "127.0.0.3")
        assert not await is_open(address, "127.0.0.1")
    finally:
        await transport.close()


async def is_open(address: str | None, host: str) -> bool:
    """Whether the port of the address is open on this host's other address."""
    try:
        _, writer = await asyncio.open_connection(host, urlsplit(address).port)
    except ConnectionRefusedError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def test_with_a_database_on_this_host_nothing_listens_beyond_the_loopback() -> None:
    url = store_url()
    worker, producer = Engine(url), Engine(url)

    @worker.task
    async def quick() -> int:
        return 7

    async with worker.worker(), producer:
        (handle,) = await producer.enqueue([producer.call("quick")])
        assert await handle.result(timeout=PATIENCE_SECONDS) == 7
        addresses = [node.address for node in await producer.nodes()]
        assert addresses
        for address in addresses:
            assert await is_open(address, "127.0.0.1")
            assert not await is_open(address, "127.0.0.2"), "another address of this host"
