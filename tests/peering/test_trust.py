"""Messages that prove nothing here: captured ones, those signed with a replaced secret, and answers of impostors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import pytest
from tests.peering.served_app import served
from tests.support import PATIENCE_SECONDS, until

from synergon import Engine
from synergon.peering import peers as peers_module
from synergon.peering.http_transport import HttpTransport
from synergon.peering.peers import Peers
from synergon.peering.pipe import PipeNetwork
from synergon.peering.signatures import Envelope
from synergon.peering.transport import SendError
from synergon.peering.wire import encode, message

RARELY = 3600


def worker_of(url: str, **settings: object) -> Engine:
    # mypy takes each value for every setting.
    engine = Engine(url, sweep=RARELY, **settings)  # type: ignore[arg-type]

    @engine.task
    async def quick() -> int:
        return 7

    return engine


def peers_of(engine: Engine) -> Peers:
    assert engine.peers is not None
    return engine.peers


async def captured(sender: Engine, receiver: Engine) -> Envelope:
    """A message that the sender may have sent to the receiver."""
    signer = await peers_of(sender)._ensure_signer()
    return signer.wrap(peers_of(sender).id, peers_of(receiver).id, encode(message(new={"quick": 1})))


async def test_a_captured_message_is_accepted_by_no_other_node_and_not_after_a_restart(sqlite_url: str) -> None:
    transport = HttpTransport(None, None)
    async with Engine(sqlite_url) as producer:
        one, other, restarted = (worker_of(sqlite_url) for _ in range(3))
        async with one.worker(), other.worker():
            for_one = await captured(producer, one)
            with pytest.raises(SendError, match="for another node"):
                await transport.send(str(peers_of(other).address), for_one)
        async with restarted.worker():
            with pytest.raises(SendError, match="for another node"):
                await transport.send(str(peers_of(restarted).address), for_one)
    await transport.close()


async def test_an_answer_of_an_impostor_is_a_failed_send(sqlite_url: str) -> None:
    async def impostor(scope: object, receive: object, send: object) -> None:
        body = encode(message(free=1000))
        # An ASGI app is given functions, which this test does not type.
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": body})  # type: ignore[operator]

    async with (
        served(impostor) as address,
        worker_of(sqlite_url, listen="off", advertise=address).worker(),
        Engine(sqlite_url, sweep=RARELY) as producer,
    ):
        await peers_of(producer)._router.refresh()
        (peer,) = peers_of(producer)._router.directory
        with pytest.raises(SendError, match="signature of the answer is wrong"):
            await peers_of(producer).send(peer, message(new={"quick": 1}))


@pytest.fixture(params=["http", "pipe"])
async def pair(request: pytest.FixtureRequest, sqlite_url: str) -> AsyncIterator[tuple[Engine, Engine]]:
    """A producer and a worker that have met."""
    network = PipeNetwork()
    settings = {"transport": network.transport()} if request.param == "pipe" else {}
    worker = worker_of(sqlite_url, **settings)
    settings = {"transport": network.transport()} if request.param == "pipe" else {}
    # mypy takes each value for every setting.
    producer = Engine(sqlite_url, sweep=RARELY, **settings)  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(worker.worker())
        await stack.enter_async_context(producer)
        assert await result(producer) == 7
        yield producer, worker


async def result(producer: Engine) -> object:
    (handle,) = await producer.enqueue([producer.call("quick")])
    return await handle.result(timeout=PATIENCE_SECONDS)


async def test_running_engines_go_over_to_a_new_secret(
    pair: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "SECRET_AGE_SECONDS", 0.1)
    producer, worker = pair
    for first in pair:  # one of them reads the new secret before it is used; the other one has to find out
        await producer._store.replace_secret()
        signer = await peers_of(first)._ensure_signer()
        signer.secret = await producer._store.secret()
        assert await result(producer) == 7
    secret = await producer._store.secret()
    # Both engines are connected, so they have a signer.
    await until(lambda: all(peers_of(engine)._signer.secret == secret for engine in (producer, worker)))  # type: ignore[union-attr]


async def test_the_cursor_of_an_event_outlives_the_secret(pair: tuple[Engine, Engine]) -> None:
    producer, _ = pair
    stream = producer.events()
    first = await anext(stream)
    await producer._store.replace_secret()
    await result(producer)
    later = producer.events(after=first.cursor)
    assert (await anext(later)).task_id != first.task_id
    await stream.aclose()
    await later.aclose()


async def test_wrong_signatures_cause_one_reading_of_the_secret_per_second(
    pair: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "SECRET_AGE_SECONDS", RARELY)
    producer, worker = pair
    readings = 0
    read = worker._store.secret

    async def secret() -> bytes:
        nonlocal readings
        readings += 1
        return await read()

    monkeypatch.setattr(worker._store, "secret", secret)
    peers_of(worker)._secret_read_at -= RARELY
    forged = await captured(producer, worker)
    for _ in range(50):
        with pytest.raises(SendError, match="401"):
            await peers_of(producer)._transport.send(
                str(peers_of(worker).address), msgspec.structs.replace(forged, signature="0" * 64)
            )
    await asyncio.sleep(0)
    await until(lambda: readings == 1)
