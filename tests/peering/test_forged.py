"""Forged messages, sent to a real node over a real socket: they have no effect, cause no request, and the next valid
message is accepted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from tests.peering.clocks import StoppedClock
from tests.support import until

from synergon import Engine, State
from synergon.model.nodes import NewNode, ProcessIdentity
from synergon.model.tasks import NewTask
from synergon.peering.http_headers import HEADERS
from synergon.peering.signatures import METHOD, WINDOW, Envelope, Signer
from synergon.peering.wire import PATH, SIZE_LIMIT, Hello, encode, message

SOON_SECONDS: Final = 0.3
"""A node that believed a message would have acted by then; one that does not is not waited for longer."""


@dataclass
class Scene:
    """A node, a task that it would run if anybody told it, and a peer that counts who calls it."""

    node: Engine
    secret: bytes
    now: int
    task_id: int
    calls: list[bytes]

    @property
    def signer(self) -> Signer:
        return Signer(self.secret, StoppedClock(self.now))

    @property
    def node_id(self) -> str:
        assert self.node.peers is not None
        return self.node.peers.id

    @property
    def honest(self) -> Envelope:
        """What a producer would send that is in no table."""
        hello = Hello(id="somebody", version="1", kinds=("quick",))
        return self.signer.wrap("somebody", self.node_id, encode(message(hello=hello, new={"quick": 1})))

    async def send(self, envelope: Envelope, *, method: str = "POST", path: str = PATH, body: Any = None) -> int:
        assert self.node.peers is not None
        headers = {header: getattr(envelope, field) for field, header in HEADERS.items()}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method,
                f"{self.node.peers.address}{path}",
                allow_redirects=False,
                data=envelope.body if body is None else body,
                headers=headers,
            ) as response,
        ):
            return response.status

    async def state(self) -> State:
        (record,) = await self.node._store.get([self.task_id])
        assert record is not None
        return record.state


@pytest.fixture
async def scene(sqlite_url: str) -> AsyncIterator[Scene]:
    calls: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    engine = Engine(sqlite_url, sweep=3600, lease=60)

    @engine.task
    async def quick() -> None: ...

    async with engine.worker():
        await engine.enqueue([quick.call()])  # after this one the node has looked at everything
        await _until_idle(engine)
        (insertion,) = await engine._store.insert([NewTask(kind="quick")])  # and of this one it was not told
        await _add_peer(engine, server.sockets[0])
        yield Scene(engine, await engine._store.secret(), await engine._store.now(), insertion.id, calls)
    server.close()


async def _until_idle(engine: Engine) -> None:
    async def has_ended() -> bool:
        return (await engine.counts())[State.SUCCEEDED] == 1

    await until(has_ended)
    assert engine._node is not None
    scheduler = engine._node.scheduler

    async def is_idle() -> bool:
        await asyncio.sleep(0.05)  # the end of the task is told to the scheduler, which may look once more
        return scheduler.is_idle("quick")

    await until(is_idle)


async def _add_peer(engine: Engine, listener: socket.socket) -> None:
    (record,) = await engine.nodes()
    await engine._store.register(
        NewNode(
            id="a-peer",
            name="a-peer",
            process=ProcessIdentity(**{**msgspec.structs.asdict(record.process), "boot_id": "another host"}),
            kinds=("quick",),
            queues=None,
            concurrency=1,
            lease=3_600_000_000,
            version="1",
            address=f"http://127.0.0.1:{listener.getsockname()[1]}",
        )
    )


async def _endless() -> AsyncIterator[bytes]:
    """A body in chunks, which nowhere says how long it is."""
    for _ in range(1000):
        yield b" " * 1024
        await asyncio.sleep(0)


Forgery = Callable[[Scene], Awaitable[int]]

FORGERIES: Final[Mapping[str, tuple[int, Forgery]]] = {
    "another secret": (
        401,
        lambda s: s.send(Signer(b"guess", StoppedClock(s.now)).wrap("somebody", s.node_id, s.honest.body)),
    ),
    "another sender": (401, lambda s: s.send(msgspec.structs.replace(s.honest, peer_id="a-peer"))),
    "for another node": (401, lambda s: s.send(s.signer.wrap("somebody", "a-peer", s.honest.body))),
    "another receiver": (401, lambda s: s.send(msgspec.structs.replace(s.honest, receiver="a-peer"))),
    "another time": (401, lambda s: s.send(msgspec.structs.replace(s.honest, time=str(s.now + 1)))),
    "another nonce": (401, lambda s: s.send(msgspec.structs.replace(s.honest, nonce="0" * 32))),
    "another body": (401, lambda s: s.send(s.honest, body=s.honest.body + b" ")),
    "no signature worth the name": (401, lambda s: s.send(msgspec.structs.replace(s.honest, signature="é"))),
    "too old": (401, lambda s: s.send(_at(s, -WINDOW - 5_000_000))),
    "of the future": (401, lambda s: s.send(_at(s, WINDOW + 5_000_000))),
    "of no time": (401, lambda s: s.send(_signed_at(s, "noon"))),
    "another path": (404, lambda s: s.send(s.honest, path=f"{PATH}/")),
    "too long": (413, lambda s: s.send(s.signer.wrap("somebody", s.node_id, b" " * SIZE_LIMIT + s.honest.body))),
    "too long, in chunks": (413, lambda s: s.send(s.honest, body=_endless())),
    "not posted": (405, lambda s: s.send(s.honest, method="GET")),
    "nonsense": (409, lambda s: s.send(s.signer.wrap("somebody", s.node_id, b"[1, 2"))),
}


def _at(scene: Scene, shift: int) -> Envelope:
    return Signer(scene.secret, StoppedClock(scene.now + shift)).wrap("somebody", scene.node_id, scene.honest.body)


def _signed_at(scene: Scene, time: str) -> Envelope:
    honest = scene.honest
    signature = scene.signer._sign(METHOD, (honest.peer_id, honest.receiver, time, honest.nonce), honest.body)
    return msgspec.structs.replace(honest, time=time, signature=signature)


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forged_message_is_rejected_without_effect(scene: Scene, name: str) -> None:
    status, forge = FORGERIES[name]
    assert await forge(scene) == status
    await asyncio.sleep(SOON_SECONDS)
    assert await scene.state() is State.READY
    assert scene.calls == []


async def test_a_valid_message_of_an_unregistered_sender_is_accepted_once(scene: Scene) -> None:
    assert "somebody" not in {node.id for node in await scene.node.nodes()}
    envelope = scene.honest
    assert await scene.send(envelope) == 200

    async def has_run() -> bool:
        return await scene.state() is State.SUCCEEDED

    await until(has_run)
    (insertion,) = await scene.node._store.insert([NewTask(kind="quick")])
    scene.task_id = insertion.id
    assert await scene.send(envelope) == 401, "a replay"
    await asyncio.sleep(SOON_SECONDS)
    assert await scene.state() is State.READY
