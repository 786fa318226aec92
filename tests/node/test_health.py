"""Probes of a worker: it is ready, or it says why not; also while its event loop is blocked."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401  a fixture
from tests.support import Gate, Renewals, make_troubled, until

from synergon.errors import NotConnected, OptionError
from synergon.node.health import readiness
from synergon.node.health.systemd import SystemdNotifier, notifier_of
from synergon.worker import Worker

ANY_PORT = "127.0.0.1:0"


def ask(worker: Worker, path: str = "/ready", method: str = "GET", body: bytes | None = None) -> tuple[int, str]:
    """The status and the text of an answer. Blocks."""
    assert worker.monitor.address is not None
    host, _, port = worker.monitor.address.rpartition(":")
    with closing(HTTPConnection(host, int(port), timeout=10)) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


async def reasons(worker: Worker) -> list[str]:
    """Why the worker is not ready."""
    status, text = await asyncio.to_thread(ask, worker)
    answer = json.loads(text)
    assert (status == 200) == answer["ready"] == (not answer["reasons"])
    found: list[str] = answer["reasons"]
    return found


async def until_reason(worker: Worker, text: str) -> None:
    """Wait until the worker says that it is not ready for this reason."""

    async def is_said() -> bool:
        return any(text in reason for reason in await reasons(worker))

    await until(is_said)


async def until_ready(worker: Worker) -> None:
    """Wait until the worker is ready."""

    async def is_ready() -> bool:
        return not await reasons(worker)

    await until(is_ready)


async def test_a_worker_that_runs_is_ready(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, name="kim")
    worker = engine.worker(health_listen=ANY_PORT)
    async with worker as node:
        assert await asyncio.to_thread(ask, worker, "/health") == (200, "ok\n")
        status, text = await asyncio.to_thread(ask, worker, "/ready?verbose")
        assert (status, json.loads(text)) == (200, {"ready": True, "reasons": [], "node": "kim", "cordoned": False})
        await engine.cordon(node.id)
        await until(lambda: node.cordon.is_cordoned)
        status, text = await asyncio.to_thread(ask, worker)
        assert (status, json.loads(text)["cordoned"]) == (200, True)
    with pytest.raises(ConnectionRefusedError):
        ask(worker, "/health")


async def test_what_is_not_a_probe_is_rejected(new_engine: NewEngine, memory_url: str) -> None:
    worker = new_engine(memory_url).worker(health_listen=ANY_PORT)
    async with worker:
        status, text = await asyncio.to_thread(ask, worker, "/peer/v1", "POST")
        assert status == 404
        assert "/health, /ready" in text
        assert (await asyncio.to_thread(ask, worker, "/ready", "POST"))[0] == 405
        assert (await asyncio.to_thread(ask, worker, "/ready", "GET", b"x"))[0] == 413


async def test_without_the_setting_nothing_listens_and_no_thread_runs(new_engine: NewEngine, memory_url: str) -> None:
    worker = new_engine(memory_url).worker()
    async with worker:
        assert worker.monitor.address is None


async def test_an_address_in_use_is_an_error_and_the_engine_stays_unconnected(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OptionError, match=f'health_listen={address} cannot be bound.*health_listen="off"'):
            async with engine.worker(health_listen=address):
                pass
    with pytest.raises(NotConnected):
        await engine.counts()


async def test_a_blocked_event_loop_is_told_while_it_is_blocked(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    worker = engine.worker(health_listen=ANY_PORT)

    @engine.task
    async def block() -> int:
        deadline = time.monotonic() + 20
        while "the event loop has been blocked for" not in ask(worker)[1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # noqa: ASYNC251  it blocks the event loop: that is the test
        assert worker.monitor.readiness.is_stuck
        return ask(worker, "/health")[0]

    async with worker:
        assert await (await block.enqueue()).result(30) == 200
        await until_ready(worker)
        assert not worker.monitor.readiness.is_stuck


async def test_a_lost_lease_is_told_until_the_node_has_joined_again(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, lease=1.5)
    renewals = Renewals(engine)
    worker = engine.worker(health_listen=ANY_PORT)
    async with worker as node:
        await until_ready(worker)
        before = node.id
        renewals.is_cut = True
        await until_reason(worker, "the lease cannot be renewed: the way is cut")
        assert not worker.monitor.readiness.is_stuck
        await until(lambda: node.id != before)
        renewals.is_cut = False
        await until_ready(worker)


async def test_a_store_that_is_away_is_told_until_it_is_back(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=0.1)
    stores = make_troubled(engine)
    worker = engine.worker(health_listen=ANY_PORT)
    async with worker:
        await until_ready(worker)
        with stores[-1].away("cancel_requests", "claim", "pending_actions", "reap", "finish"):
            await until_reason(worker, "the store is away: the database is away")
            assert not worker.monitor.readiness.is_stuck
        await until_ready(worker)


async def test_a_claim_that_does_not_end_is_told(
    new_engine: NewEngine, memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "LATE_SECONDS", 0.5)
    engine = new_engine(memory_url, sweep=0.1, lease=1)
    stores = make_troubled(engine)
    gate = Gate()

    @engine.task
    async def work() -> None: ...

    async def hang(call: Callable[[], Awaitable[Any]]) -> Any:
        await gate.hold()
        return await call()

    worker = engine.worker(health_listen=ANY_PORT)
    async with worker:
        stores[-1].cause("claim", hang)
        await until_reason(worker, "the last step of the scheduler ended")
        assert worker.monitor.readiness.is_stuck
        stores[-1].end("claim")
        gate.open()
        await until_ready(worker)


async def test_a_worker_that_stops_is_not_ready(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    gate = Gate()

    @engine.task
    async def work() -> None:
        await gate.hold()

    worker = engine.worker(health_listen=ANY_PORT)
    async with worker:
        await work.enqueue()
        await gate.until_reached()
        stopping = asyncio.ensure_future(engine._stop_node(grace=None))
        await until_reason(worker, "the worker is stopping")
        gate.open()
        await stopping


# ------------------------------------------------------------ systemd


@contextmanager
def systemd(folder: Path) -> Iterator[socket.socket]:
    """A socket that receives messages, as systemd does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(folder / "notify"))
        receiver.settimeout(10)
        yield receiver


def test_the_variables_of_systemd_make_a_notifier() -> None:
    assert notifier_of({}) is None
    assert notifier_of({"NOTIFY_SOCKET": "relative"}) is None
    plain = notifier_of({"NOTIFY_SOCKET": "/run/notify"})
    assert plain is not None
    assert plain.interval_seconds is None
    watched = notifier_of({"NOTIFY_SOCKET": "@abstract", "WATCHDOG_USEC": "30000000"})
    assert watched is not None
    assert watched.interval_seconds == 15
    other = notifier_of({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"})
    assert other is not None
    assert other.interval_seconds is None


def test_a_message_that_cannot_be_sent_is_logged_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    notifier = SystemdNotifier(str(tmp_path / "nowhere"), None)
    notifier.send("READY=1")
    notifier.send("READY=1")
    assert caplog.text.count("cannot notify systemd at $NOTIFY_SOCKET") == 1


async def test_a_stuck_worker_does_not_say_that_it_is_alive(
    new_engine: NewEngine, memory_url: str, tmp_path: Path
) -> None:
    engine = new_engine(memory_url)
    worker = engine.worker()

    with systemd(tmp_path) as receiver:
        worker.monitor.notifier = SystemdNotifier(str(tmp_path / "notify"), 0.1)

        @engine.task
        async def block() -> None:
            deadline = time.monotonic() + 20
            while not worker.monitor.readiness.is_stuck:
                assert time.monotonic() < deadline
                time.sleep(0.05)  # noqa: ASYNC251  it blocks the event loop: that is the test
            _empty(receiver)
            time.sleep(0.3)  # noqa: ASYNC251  several intervals
            # One message may have been on its way when the loop began to count as blocked.
            assert _empty(receiver) <= 1

        async with worker:
            assert await asyncio.to_thread(receiver.recv, 100) == b"WATCHDOG=1"
            await (await block.enqueue()).result(30)
            assert await asyncio.to_thread(receiver.recv, 100) == b"WATCHDOG=1"


def _empty(receiver: socket.socket) -> int:
    """Read what has arrived, and return the number of messages."""
    receiver.setblocking(False)
    number = 0
    try:
        while receiver.recv(100):
            number += 1
    except BlockingIOError:
        return number
    finally:
        receiver.settimeout(10)
    return number
