"""Every order in which a few messages can arrive, each of them twice: each task is executed once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, permutations
from typing import Final

import pytest
from tests.support import PATIENCE_SECONDS, until_state

from synergon import Engine, State
from synergon.peering.peers import Peers
from synergon.peering.pipe import PipeNetwork
from synergon.peering.signatures import Envelope
from synergon.peering.transport import SendError
from synergon.peering.wire import Message, encode, message

RARELY: Final = 3600
_names = count()


class Town:
    """Two workers for one kind, and a producer whose own messages are all lost."""

    def __init__(self) -> None:
        self.network = PipeNetwork()
        self.network.faults.drop = 1.0
        url = f"memory://orders-{next(_names)}"
        self.engines = [Engine(url, sweep=RARELY, transport=self.network.transport()) for _ in range(3)]
        self.first, self.second, self.producer = self.engines
        self.runs: Counter[int] = Counter()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async def body(number: int) -> None:
            self.runs[number] += 1
            await asyncio.sleep(0)

        async with AsyncExitStack() as stack:
            for engine in (self.first, self.second):
                engine.task(name="body")(body)
                await stack.enter_async_context(engine.worker(concurrency=2))
            await stack.enter_async_context(self.producer)
            yield

    async def envelope_for(self, to: Engine, content: Message) -> tuple[str, Envelope]:
        """What the producer might say, and where it goes."""
        assert to.peers is not None
        assert self.producer.peers is not None
        signer = await self.producer.peers._ensure_signer()
        return str(to.peers.address), signer.wrap(self.producer.peers.id, to.peers.id, encode(content))


async def deliver(network: PipeNetwork, letters: Sequence[tuple[str, Envelope]], repeat: str, turns: int) -> None:
    """All of them in this order, and each of them again, which nobody believes."""
    for address, envelope in letters:
        network._deliver(address, envelope)
        if repeat == "at once":
            assert_refused(network, address, envelope)
        for _ in range(turns):
            await asyncio.sleep(0)
    if repeat != "at once":
        for address, envelope in letters if repeat == "later" else reversed(letters):
            assert_refused(network, address, envelope)


def assert_refused(network: PipeNetwork, address: str, envelope: Envelope) -> None:
    with pytest.raises(SendError, match="received before"):
        network._deliver(address, envelope)


@pytest.mark.parametrize(("repeat", "turns"), [("at once", 5), ("backwards", 5), ("later", 0)])
async def test_each_task_runs_once_in_whatever_order_messages_arrive(repeat: str, turns: int) -> None:
    """`turns`: how often the loop turns between two messages; after five of them a task that was hinted at runs."""
    for order in permutations(range(4)):
        town = Town()
        async with town.open():
            calls = [town.producer.call("body", number=number) for number in range(2)]
            late = calls[1].with_options(delay=0.001)
            one, other = await town.producer.enqueue([calls[0], late])
            letters = [
                await town.envelope_for(town.first, message(new={"body": 1})),
                await town.envelope_for(town.second, message(new={"body": 2}, done=(one.id, other.id))),
                await town.envelope_for(town.first, message(due=True)),
                await town.envelope_for(town.first, message(cancel=(one.id, other.id))),  # which nobody has asked for
            ]
            await deliver(town.network, [letters[number] for number in order], repeat, turns)
            for handle in (one, other):
                await until_state(handle, State.SUCCEEDED)
        assert town.runs == {0: 1, 1: 1}, f"in the order {order}"


async def test_each_task_runs_once_when_one_direction_is_cut() -> None:
    network = PipeNetwork()
    worker, producer = (Engine("memory://one-way", sweep=RARELY, transport=network.transport()) for _ in range(2))
    ran = asyncio.Event()

    @worker.task
    async def quick() -> None:
        ran.set()

    async with worker.worker(), producer:
        # The transport of this test is HTTP, which has an address.
        there, here = peers_of(worker).address, peers_of(producer)._transport.address  # type: ignore[attr-defined]
        network.cut.add((str(there), here))  # it arrives, and the answer does not
        await producer.enqueue([producer.call("quick")])
        await asyncio.wait_for(ran.wait(), PATIENCE_SECONDS)
        ran.clear()
        network.cut = {(here, str(there))}
        (handle,) = await producer.enqueue([producer.call("quick")])
        with pytest.raises(SendError):
            await network.carry(here, str(there), (await envelope_of(producer, worker)))
        assert (await handle.status()).state is State.READY
        network.cut.clear()
        await asyncio.wait_for(ran.wait(), PATIENCE_SECONDS)


def peers_of(engine: Engine) -> Peers:
    assert engine.peers is not None
    return engine.peers


async def envelope_of(engine: Engine, to: Engine) -> Envelope:
    peers = peers_of(engine)
    return (await peers._ensure_signer()).wrap(peers.id, peers_of(to).id, encode(message()))
