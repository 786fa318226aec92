"""Outbox: hints are coalesced, sent one request at a time, and retried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.support import until

from synergon.model.clock import SystemClock
from synergon.peering.outbox import Outbox
from synergon.peering.transport import SendError
from synergon.peering.wire import Message, message


class Recorder:
    """A peer that records what it receives, and can be made to fail or to answer slowly."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.failures: list[int] = []
        self.unheard: list[Message] = []
        self.is_away = False
        self.seconds = 0.0
        self.at_once = 0
        self.most_at_once = 0
        self.answer = message(free=4)

    async def send_now(self, peer_id: str, hints: Message) -> Message:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
            if self.is_away:
                raise SendError("away")
            self.heard.append(hints)
            return self.answer
        finally:
            self.at_once -= 1

    def handle_answer(self, peer_id: str, sent: Message, answer: Message) -> None:
        """It is in `heard` already."""

    def handle_failure(self, peer_id: str, unsent: Message, failures: int, error: SendError) -> None:
        self.failures.append(failures)
        self.unheard.append(unsent)

    def total(self, kind: str) -> int:
        return sum(hints.new.get(kind, 0) for hints in self.heard)


@pytest.fixture
def peer() -> Recorder:
    return Recorder()


@pytest.fixture
def outbox(peer: Recorder) -> Outbox:
    return Outbox(peer, "you", SystemClock())


def is_heard(peer: Recorder, count: int) -> Callable[[], bool]:
    return lambda: peer.total("a") == count


async def test_the_first_hint_is_sent_at_once(peer: Recorder, outbox: Outbox) -> None:
    outbox.add(message(new={"a": 1}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert peer.at_once == 1 or peer.heard
    await outbox.wait_sent()


async def test_later_hints_are_merged_into_few_requests_without_loss(peer: Recorder, outbox: Outbox) -> None:
    peer.seconds = 0.02
    for _ in range(100):
        for _ in range(1000):
            outbox.add(message(new={"a": 1}))
        await asyncio.sleep(0)
    await outbox.wait_sent()
    assert peer.total("a") == 100_000
    assert len(peer.heard) < 300
    assert peer.most_at_once == 1


async def test_a_failing_peer_receives_all_hints_after_it_recovers(peer: Recorder, outbox: Outbox) -> None:
    peer.is_away = True
    outbox.add(message(new={"a": 1}))
    await until(lambda: len(peer.failures) >= 2)
    outbox.add(message(new={"a": 1}, done=(7,)))
    peer.is_away = False
    await until(is_heard(peer, 2))
    assert peer.heard[0].done == (7,)
    assert peer.failures == list(range(1, len(peer.failures) + 1))


async def test_close_returns_the_unsent_hints(peer: Recorder, outbox: Outbox) -> None:
    peer.is_away = True
    outbox.add(message(new={"a": 3}))
    await until(lambda: bool(peer.failures))
    assert outbox.close().new == {"a": 3}
    await outbox.wait_sent()


async def test_close_returns_the_hints_in_flight(peer: Recorder, outbox: Outbox) -> None:
    peer.seconds = 60  # it does not answer before it is forgotten
    outbox.add(message(new={"a": 3}))
    await until(lambda: peer.at_once == 1)
    outbox.add(message(new={"a": 1, "b": 1}))
    assert outbox.close().new == {"a": 4, "b": 1}
    await outbox.wait_sent()


async def test_close_does_not_return_delivered_hints(peer: Recorder, outbox: Outbox) -> None:
    outbox.add(message(new={"a": 3}))
    await outbox.wait_sent()
    assert outbox.close().new == {}


async def test_a_failure_reports_also_hints_added_meanwhile(peer: Recorder, outbox: Outbox) -> None:
    peer.is_away = True
    peer.seconds = 0.05
    outbox.add(message(due=True))
    await until(lambda: peer.at_once == 1)
    outbox.add(message(new={"a": 1}))
    await until(lambda: bool(peer.unheard))
    assert peer.unheard[0].new == {"a": 1}
    outbox.close()
    await outbox.wait_sent()
