"""Peers: one engine's side of the conversation.

Nobody waits for it and nothing depends on it: what cannot be told is found by somebody's sweep. It costs nothing until
there is something to say or to hear.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from synergon.errors import StoreError
from synergon.model.clock import Clock
from synergon.model.nodes import NodeRecord
from synergon.peering.directory import Peer
from synergon.peering.router import HintRouter, ReadyGroupName
from synergon.peering.signing import Envelope, SignatureError, Signer, StaleSignature
from synergon.peering.store_clock import StoreClock
from synergon.peering.transport import Refused, SendError, Transport
from synergon.peering.watchers import Watchers
from synergon.peering.wire import EMPTY, LOOK, Hello, Message, WireError, decode, encode, message
from synergon.stores.base import Store
from synergon.version import VERSION

MOMENT_SECONDS: Final = 0.5
LAST_SECONDS: Final = 0.5
"""How long an engine that closes goes on telling what it has to tell."""


class Resident(Protocol):
    """The node that lives in the same engine."""

    @property
    def id(self) -> str:
        """Its id; a new one each time that it joins."""

    @property
    def free(self) -> int:
        """How many tasks it could start."""

    def full(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Those of the kinds of which it could start none, whatever slots it has."""

    def heard(self, news: Message) -> None:
        """A peer has said this."""

    def met(self, nodes: Iterable[NodeRecord]) -> None:
        """The node table, as it was just read for the peers' sake."""


class Peers:
    """Tells other engines what they should look at, and hears from them."""

    def __init__(
        self,
        engine_id: str,
        kinds: Iterable[str],
        store: Store,
        transport: Transport,
        clock: Clock,
        logger: logging.Logger,
        *,
        refresh_seconds: float,
        on_done: Callable[[Collection[int]], None],
        on_any_done: Callable[[], None],
        on_ended: Callable[[], None] = lambda: None,
        awaited_here: Callable[[], Collection[int]] = tuple,
        follows_here: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine_id = engine_id
        self._left_id = engine_id
        """The one that said goodbye last. Its row may still be read for a moment, and is nobody to be told anything."""
        self.resident: Resident | None = None
        self.address: str | None = None
        self._kinds = kinds
        self._store = store
        self._transport = transport
        self._clock = clock
        self._on_done = on_done
        self._on_any_done = on_any_done
        self._on_ended = on_ended
        self._time = StoreClock(store, clock)
        self._seal: Signer | None = None
        self._opening = asyncio.Lock()
        self._started: Counter[str] = Counter()
        self._watchers = Watchers()
        self._looking: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._post = HintRouter(
            self._read_nodes,
            self._send,
            transport.schemes,
            self._prepare,
            lambda: self._own_ids,
            awaited_here,
            self._heard_done,
            clock,
            logger,
            refresh_seconds=refresh_seconds,
            follows_here=follows_here,
            on_followed=on_ended,
        )

    @property
    def id(self) -> str:
        """By which others know this engine: its node's id while it has one."""
        return self.engine_id if self.resident is None else self.resident.id

    @property
    def _own_ids(self) -> tuple[str, ...]:
        return self.engine_id, self._left_id, self.id

    # ------------------------------------------------------------ life

    async def serve(self) -> str | None:
        """Begin to hear; the address to publish, None if others cannot call."""
        await self._open()
        self.address = await self._transport.serve(self.receive)
        return self.address

    async def _open(self) -> Signer:
        async with self._opening:
            if self._seal is None:
                await self._time.measure()
                self._seal = Signer(await self._store.secret(), self._time.now)
            return self._seal

    def look_around(self) -> None:
        """Get to know the peers before there is anything to tell; those who connect for a moment only are spared it."""
        self._looking = asyncio.get_running_loop().create_task(self._look_around())

    async def _look_around(self) -> None:
        await self._clock.sleep(MOMENT_SECONDS)
        if not self._post.directory.is_loaded:
            self._post.refresh_soon()

    def _prepare(self) -> None:
        if self._preparing is None:
            self._preparing = asyncio.get_running_loop().create_task(self._transport.prepare())

    def say_hello(self) -> None:
        """Everybody should look at the node table, where this engine has appeared. Who came while it could not hear is
        told too: from now on nobody is missed."""
        self._post.give_all(message(hello=self._hello()), seek=True)

    def say_goodbye(self) -> None:
        """This engine's row is about to go."""
        self._left_id = self.id
        if self._post.directory.is_loaded:
            self._post.give_all(message(hello=self._hello(bye=True)))

    def _hello(self, *, bye: bool = False) -> Hello:
        kinds = () if self.resident is None else tuple(self._kinds)
        return Hello(id=self.id, version=VERSION, address=self.address, kinds=kinds, bye=bye)

    async def close(self) -> None:
        """Say what is still to be said, to those who listen, and end."""
        if self._looking is not None:
            self._looking.cancel()
        await self._post.routed(LAST_SECONDS)
        if self._preparing is not None:
            await asyncio.wait([self._preparing])  # whoever came for a moment only has yet to learn how to send
        await self._post.close(LAST_SECONDS)
        await self._transport.close()

    @property
    def is_healthy(self) -> bool:
        """Whether there is reason to believe that news arrives here."""
        return self.address is not None and not any(peer.is_failing for peer in self._post.directory)

    # ------------------------------------------------------------ telling

    def tell_new(self, work: Mapping[ReadyGroupName, int]) -> bool:
        """There are so many new tasks in these lanes; as many nodes as have room for them should look. Whether that is
        said as soon as others have a turn."""
        return bool(work) and self._post.wake(work)

    def tell_surplus(self, kinds: Iterable[str]) -> None:
        """This node has begun to leave tasks of these kinds to others; some should help, who tell others if need be."""
        self._post.spread(kinds)

    def tell_scheduled(self, kinds: Iterable[str]) -> None:
        """Tasks of these kinds are due later; whoever runs them should set the alarm."""
        self._post.schedule(kinds)

    def tell_started(self, kinds: Iterable[str]) -> None:
        """These were taken here; it is said along with the next message, not in one of its own."""
        self._started.update(kinds)

    def tell_done(self, origin: str, ids: Collection[int]) -> None:
        """Tasks that came from there may have ended. Who is not known waits for nothing."""
        if origin not in self._own_ids:
            self._post.give(origin, message(done=tuple(ids)))

    def tell_watchers(self, ids: Iterable[int]) -> None:
        """The same, for those who wait for tasks of others, or follow all that end, and have said so."""
        for peer_id in self._watchers.followers(self._clock.monotonic()):
            self._post.give(peer_id, message(ended=True))
        for peer_id, its_ids in self._watchers.of(ids).items():
            self._post.give(peer_id, message(done=tuple(its_ids)), seek=True)

    def tell_ended(self, ids: Collection[int]) -> None:
        """These have ended without having run to their end, and anybody may wait for them."""
        if ids:
            self._post.give_all_ends(ids, seek=self.address is None)

    def ask_for_ends(self, ids: Collection[int]) -> None:
        """Somebody here waits for these, which others have enqueued: whoever runs them should tell."""
        self._post.give_all(message(awaited=tuple(ids)), seek=self.address is None)

    def ask_to_follow(self) -> None:
        """Somebody here follows all that end: whoever runs tasks should tell of it."""
        self._post.give_all(message(follow=True), seek=self.address is None)

    def tell_cancel(self, node_id: str, task_id: int) -> None:
        """Somebody wants a task cancelled that runs there."""
        if node_id not in self._own_ids:
            self._post.give(node_id, message(cancel=(task_id,)), seek=True)

    def tell_control(self) -> None:
        """Something has changed that every node should read again."""
        self._post.give_all(message(control=True), seek=self.address is None)

    def tell_freed(self, names: Iterable[str]) -> None:
        """These limits and servers have room that nobody here takes."""
        if self._post.directory.is_loaded:
            self._post.give_runners(message(freed=tuple(names)))

    def tell_reserve(self, task_id: int) -> None:
        """This node keeps room for that task. News and nothing else: the row says it, and peers need do nothing."""
        if self._post.directory.is_loaded:
            self._post.give_runners(message(reserve=(task_id,)))

    def learn(self, nodes: Iterable[NodeRecord]) -> None:
        """The node table, as the reaper has just read it."""
        self._post.learn(nodes)

    async def _read_nodes(self) -> list[NodeRecord]:
        if self._seal is not None:
            await self._time.measure()
        nodes = await self._store.nodes()
        if self.resident is not None:
            self.resident.met(nodes)
        return nodes

    async def _send(self, peer: Peer, letter: Message) -> Message:
        try:
            seal = self._seal or await self._open()
            started, self._started = self._started, Counter()
            letter = msgspec.structs.replace(letter, free=self._free, started=dict(started))
            answer = await self._transport.send(peer.address, seal.wrap(self.id, encode(letter)))
            return decode(answer) if answer else EMPTY
        except (StoreError, WireError) as error:
            raise SendError(str(error)) from error
        except SendError:
            self._time.doubt()  # clocks that went apart are one reason to be refused
            raise

    @property
    def _free(self) -> int | None:
        return None if self.resident is None else max(self.resident.free, 0)

    # ------------------------------------------------------------ hearing

    def receive(self, envelope: Envelope) -> bytes:
        """What to answer to a message; Refused, and nothing has happened, if it cannot be believed or read."""
        if self._seal is None:
            raise Refused(503, "this engine is not connected yet")
        try:
            self._seal.check(envelope)
            news = decode(envelope.body)
        except StaleSignature as error:
            if self._time.doubt():
                self._post.refresh_soon()
            raise Refused(401, str(error)) from error
        except SignatureError as error:
            raise Refused(401, str(error)) from error
        except WireError as error:
            raise Refused(409, str(error)) from error
        self._heed(envelope.peer_id, news)
        full = () if self.resident is None else self.resident.full(news.new)
        return encode(message(hello=self._answer_to(news.hello), free=self._free, full=full))

    def _answer_to(self, hello: Hello | None) -> Hello | None:
        return None if hello is None or hello.bye else self._hello()

    def _heed(self, peer_id: str, news: Message) -> None:
        directory = self._post.directory
        if news.hello is not None and news.hello.bye:
            self._post.forget(peer_id)
        elif news.hello is not None and directory.get(peer_id) is None:
            self._post.refresh_soon()  # the table says where it is, not the message
        peer = directory.get(peer_id)
        if peer is not None:
            self._note_room(peer, news)
        # An order can end tasks too: a command whose server was taken out of the pool.
        self._heard_done((LOOK,) if news.control else news.done)
        if news.ended:
            self._on_ended()
        if self.resident is not None:
            self._watchers.add(peer_id, news.awaited)
            if news.follow:
                self._watchers.follow(peer_id, self._clock.monotonic())
            self.resident.heard(news)

    @staticmethod
    def _note_room(peer: Peer, news: Message) -> None:
        if news.free is None:
            peer.free = max(peer.free - sum(news.started.values()), 0)
            return
        peer.free = news.free  # what it has started is not in there any more
        if news.free > 0:
            peer.full = frozenset()

    def _heard_done(self, ids: Collection[int]) -> None:
        if LOOK in ids:
            self._on_any_done()
        elif ids:
            self._on_done(ids)

    def became_reachable(self) -> None:
        """What ended before this engine could be told was told to nobody."""
        self._on_any_done()
