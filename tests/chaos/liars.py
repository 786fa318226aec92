"""A liar: a peer that has the secret of the cluster, as every producer does, and says what is not so."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from tests.chaos import journal
from tests.chaos.arena import Arena

from synergon.peering.http_transport import HttpTransport
from synergon.peering.signatures import Signer
from synergon.peering.transport import SendError
from synergon.peering.wire import Hello, Message, encode, message

KINDS: Final = (
    "quick",
    "slow",
    "retrying",
    "in_thread",
    "in_process",
    "parent",
    "child",
    "batched",
    "summed",
    "ledger",
)
IDS_AT_ONCE: Final = 50
IDS_AROUND: Final = 200
"""Lies are about that many tasks before and after the latest one: those that run, and those that soon will."""


class HostClock:
    """The clock of the host, which the databases of an arena share."""

    def now(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000


class Liar:
    """Sends signed lies about any tasks to the node at one place, in the name of another node."""

    def __init__(self, arena: Arena, place: int) -> None:
        self._arena = arena
        self._place = place
        self._chance = random.Random(place)
        self._signer = Signer(arena.secret, HostClock())
        self._transport = HttpTransport(None, None)
        last = max(journal.accepted(arena.folder), default=1)
        self._ids = range(max(last - IDS_AROUND, 1), last + IDS_AROUND)
        self._receiver: str | None = None
        self._others: list[str] = []

    async def lie(self) -> None:
        """Send one lie; the arena counts those that were accepted."""
        if self._receiver is None:
            await self._look_for_receiver()
            return
        sender = self._chance.choice([*self._others, "nobody"])
        envelope = self._signer.wrap(sender, self._receiver, encode(self._any_message(sender)))
        try:
            await self._transport.send(f"http://127.0.0.1:{self._arena.ports[self._place]}", envelope)
            self._arena.lies += 1
        except SendError:  # it has another id now, was ended, or is too busy to answer
            self._receiver = None

    async def _look_for_receiver(self) -> None:
        nodes = await asyncio.to_thread(self._arena.database.nodes)
        found = [node_id for node_id, pid in nodes.items() if pid == self._arena.nodes[self._place].pid]
        self._receiver = found[0] if found else None
        self._others = list(nodes)

    def _any_message(self, sender: str) -> Message:
        is_so = self._chance.choice
        return message(
            hello=is_so([None, self._any_hello(sender)]),
            new=self._any_counts(),
            due=is_so([True, False]),
            started=self._any_counts(),
            reserve=self._any_ids(),
            freed=("kind:slow", "nothing"),
            done=self._any_ids(),
            awaited=self._any_ids(),
            ended=is_so([True, False]),
            follow=is_so([True, False]),
            cancel=self._any_ids(),
            control=is_so([True, False]),
            free=is_so([None, 0, 10**6]),
            full=is_so([(), KINDS]),
        )

    def _any_hello(self, sender: str) -> Hello:
        is_leaving = self._chance.choice([True, False])
        return Hello(id=sender, version="0", address="http://127.0.0.1:9", kinds=KINDS, bye=is_leaving)

    def _any_ids(self) -> tuple[int, ...]:
        return tuple(self._chance.choices(self._ids, k=self._chance.randrange(IDS_AT_ONCE)))

    def _any_counts(self) -> dict[str, int]:
        return {kind: self._chance.choice([1, 10**6]) for kind in self._chance.sample(KINDS, 2)}

    async def close(self) -> None:
        """Disconnect."""
        await self._transport.close()
