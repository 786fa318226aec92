"""Peers: sends the hints of this engine to other engines, and handles the hints that they send.

Hints are an optimisation: no caller waits for them, and a sweep finds what a lost hint would have announced. Peers cost
nothing until there is a hint to send or to receive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from synergon.errors import StoreError
from synergon.model.clock import Clock
from synergon.model.node_status import HintStatus
from synergon.model.nodes import NodeRecord
from synergon.model.task_statistics import Buckets
from synergon.peering.directory import Peer
from synergon.peering.local_engine import LocalNode, LocalWaiters
from synergon.peering.router import HintRouter, ReadyGroupName
from synergon.peering.signatures import Envelope, SignatureError, Signer, StaleSignature, WrongSignature
from synergon.peering.store_clock import StoreClock
from synergon.peering.transport import NotTrusted, Rejected, SendError, Transport
from synergon.peering.watchers import Watchers
from synergon.peering.wire import EMPTY, TOO_MANY_IDS, Hello, Message, WireError, decode, encode, message
from synergon.stores.base import Store
from synergon.version import VERSION

PRELOAD_DELAY_SECONDS: Final = 0.5
SECRET_AGE_SECONDS: Final = 1.0
"""After a wrong signature the secret is read again, unless it was read less than this many seconds ago."""
CLOSE_SECONDS: Final = 0.5
"""How many seconds a closing engine goes on sending queued hints."""


class Peers:
    """Sends hints to other engines, and handles the hints that they send."""

    def __init__(
        self,
        engine_id: str,
        kinds: Iterable[str],
        store: Store,
        transport: Transport,
        clock: Clock,
        logger: logging.Logger,
        waiters: LocalWaiters,
        *,
        refresh_seconds: float,
    ) -> None:
        self.engine_id = engine_id
        self._former_id = engine_id
        """The id under which this engine last left. Its row may be read once more, and must not count as a peer."""
        self.node: LocalNode | None = None
        self.address: str | None = None
        self._kinds = kinds
        self._store = store
        self._transport = transport
        self._clock = clock
        self._waiters = waiters
        self._store_clock = StoreClock(store, clock)
        self._signer: Signer | None = None
        self._signer_lock = asyncio.Lock()
        self._secret_read_at = 0.0
        self._secret_task: asyncio.Task[None] | None = None
        self.started: Counter[str] = Counter()
        """How many tasks of each kind were started here. The counts are sent with the next message, and cause no
        message of their own."""
        self.watchers: Final = Watchers()
        self._preload_task: asyncio.Task[None] | None = None
        self._prepare_task: asyncio.Task[None] | None = None
        self._router = HintRouter(self, waiters, transport.schemes, clock, logger, refresh_seconds=refresh_seconds)

    @property
    def id(self) -> str:
        """The id by which peers know this engine: the id of its node, if it has one."""
        return self.engine_id if self.node is None else self.node.id

    @property
    def own_ids(self) -> tuple[str, ...]:
        """The ids under which this engine has or had a row. The last one is the current id."""
        return self.engine_id, self._former_id, self.id

    # ------------------------------------------------------------ start and end

    async def serve(self) -> str | None:
        """Start to receive hints. Returns the address to publish; None if peers cannot reach this engine."""
        await self._ensure_signer()
        self.address = await self._transport.serve(self.receive)
        return self.address

    async def _ensure_signer(self) -> Signer:
        async with self._signer_lock:
            if self._signer is None:
                await self._store_clock.measure()
                self._signer = Signer(await self._store.secret(), self._store_clock)
                self._secret_read_at = self._clock.monotonic()
            return self._signer

    def _read_secret_soon(self) -> None:
        """Read the secret again in the background, because an operator may have replaced it. At most once per second,
        because any stranger can cause this."""
        now = self._clock.monotonic()
        if self._signer is not None and now - self._secret_read_at >= SECRET_AGE_SECONDS:
            self._secret_read_at = now
            self._secret_task = asyncio.get_running_loop().create_task(self._read_secret(self._signer))

    async def _read_secret(self, signer: Signer) -> None:
        with contextlib.suppress(StoreError):  # the next wrong signature tries again
            signer.secret = await self._store.secret()

    def preload_directory(self) -> None:
        """Load the directory in the background before the first hint, after a short delay: a short-lived engine does
        not need it."""
        self._preload_task = asyncio.get_running_loop().create_task(self._preload_directory())

    async def _preload_directory(self) -> None:
        await self._clock.sleep(PRELOAD_DELAY_SECONDS)
        if not self._router.directory.is_loaded:
            self._router.refresh_soon()

    def prepare(self) -> None:
        """Let the transport do in advance what would delay the first message. Called when there are peers."""
        if self._prepare_task is None:
            self._prepare_task = asyncio.get_running_loop().create_task(self._transport.prepare())

    @property
    def hint_requests(self) -> tuple[int, int]:
        """The number of requests with hints that peers have answered, and the number without an answer."""
        return self._router.answered, self._router.unanswered

    @property
    def hint_status(self) -> HintStatus:
        """How many requests with hints peers have answered, and how fast. Only on the event loop."""
        return self._router.hint_status

    @property
    def hint_seconds(self) -> Buckets:
        """How long peers took to answer requests with hints."""
        return self._router.hint_seconds

    def announce_join(self) -> None:
        """Make every peer read the node table, which now has this engine's row. This engine reads the table first, so
        that it also reaches peers that joined while it could not receive."""
        self._router.send_to_all(message(hello=self._hello()), refresh=True)

    def announce_leave(self) -> None:
        """Notify every peer that this engine's row is about to be deleted."""
        self._former_id = self.id
        if self._router.directory.is_loaded:
            self._router.send_to_all(message(hello=self._hello(bye=True)))

    def _hello(self, *, bye: bool = False) -> Hello:
        kinds = () if self.node is None else tuple(self._kinds)
        return Hello(id=self.id, version=VERSION, address=self.address, kinds=kinds, bye=bye)

    async def close(self) -> None:
        """Send queued hints to reachable peers for up to CLOSE_SECONDS, then stop."""
        if self._preload_task is not None:
            self._preload_task.cancel()
        if self._secret_task is not None:
            await asyncio.wait([self._secret_task])
        await self._router.wait_routed(CLOSE_SECONDS)
        if self._prepare_task is not None:
            await asyncio.wait([self._prepare_task])  # a short-lived engine has yet to load what sending needs
        await self._router.close(CLOSE_SECONDS)
        await self._transport.close()

    @property
    def is_healthy(self) -> bool:
        """Whether hints probably arrive here: peers have an address to send to, and no peer fails."""
        return self.address is not None and not any(peer.is_failing for peer in self._router.directory)

    # ------------------------------------------------------------ sending

    def announce_new(self, work: Mapping[ReadyGroupName, int]) -> bool:
        """Announce new tasks, counted by ready group, to as many nodes as have capacity for them. Returns True if a
        hint is sent in the next iteration of the event loop."""
        return bool(work) and self._router.route_new(work)

    def announce_surplus(self, kinds: Iterable[str]) -> None:
        """Ask a few peers to claim tasks of these kinds, because this node has more than it has capacity for. They may
        ask others."""
        self._router.route_surplus(kinds)

    def announce_scheduled(self, kinds: Iterable[str]) -> None:
        """Make peers that run these kinds set their alarm for tasks that are due later."""
        self._router.route_scheduled(kinds)

    def send_done(self, origin: str, ids: Collection[int]) -> None:
        """Notify the engine that enqueued these tasks that they may have ended. If that engine is unknown, the hint is
        kept until it appears."""
        if origin not in self.own_ids:
            self._router.send_to(origin, message(done=tuple(ids)))

    def notify_watchers(self, ids: Iterable[int]) -> None:
        """Notify the peers that wait for one of these tasks, or that follow all ends, that these tasks may have
        ended."""
        watchers = self.watchers
        if watchers.followers:
            for peer_id in watchers.current_followers(self._clock.monotonic()):
                self._router.send_to(peer_id, message(ended=True))
        if watchers.peers:
            for peer_id, its_ids in watchers.by_peer(ids).items():
                self._router.send_to(peer_id, message(done=tuple(its_ids)), refresh=True)

    def announce_ended(self, ids: Collection[int]) -> None:
        """Notify every peer that these tasks ended without an attempt: any peer may wait for the result."""
        if ids:
            self._router.send_ends_to_all(ids, refresh=self.address is None)

    def request_done(self, ids: Collection[int]) -> None:
        """Ask every node to report the ends of these tasks. Callers of this engine wait for them, but other engines
        have enqueued them, so no node reports to this engine by itself."""
        self._router.send_to_all(message(awaited=tuple(ids)), refresh=self.address is None)

    def request_all_ends(self) -> None:
        """Ask every node to send a hint whenever any task ends."""
        self._router.send_to_all(message(follow=True), refresh=self.address is None)

    def send_cancel(self, node_id: str, task_id: int) -> None:
        """Ask the node to read the cancel request of a task that it runs."""
        if node_id not in self.own_ids:
            self._router.send_to(node_id, message(cancel=(task_id,)), refresh=True)

    def announce_control(self) -> None:
        """Make every node read limits, servers, pauses and operator actions again."""
        self._router.send_to_all(message(control=True), refresh=self.address is None)

    def announce_freed(self, names: Iterable[str]) -> None:
        """Announce limits and pools with free permits that this node does not use."""
        if self._router.directory.is_loaded:
            self._router.send_to_runners(message(freed=tuple(names)))

    def announce_reservation(self, task_id: int) -> None:
        """Announce that this node has reserved capacity for the task. For information only: the task's row says so,
        too."""
        if self._router.directory.is_loaded:
            self._router.send_to_runners(message(reserve=(task_id,)))

    def update_directory(self, nodes: Iterable[NodeRecord]) -> None:
        """Update the directory from rows of the nodes that the reaper has just read."""
        self._router.update_directory(nodes)

    async def read_nodes(self) -> list[NodeRecord]:
        """Read the node table, and pass the rows to the node of this engine, too."""
        if self._signer is not None:
            await self._store_clock.measure()
        nodes = await self._store.nodes()
        if self.node is not None:
            self.node.handle_nodes(nodes)
        return nodes

    async def send(self, peer: Peer, hints: Message) -> Message:
        """Sign and send hints, together with the free slots and started tasks of this engine. Returns the answer.
        Raises SendError if there is none."""
        try:
            signer = self._signer or await self._ensure_signer()
            started, self.started = self.started, Counter()
            hints = msgspec.structs.replace(hints, free=self._free, started=dict(started))
            envelope = signer.wrap(self.id, peer.id, encode(hints))
            answer = await self._transport.send(peer.address, envelope)
            return decode(signer.open_answer(envelope, answer)) if answer else EMPTY
        except (StoreError, WireError) as error:
            raise SendError(str(error)) from error
        except (NotTrusted, WrongSignature) as error:
            self._store_clock.mark_doubtful()
            self._read_secret_soon()
            raise SendError(str(error)) from error
        except SendError:
            self._store_clock.mark_doubtful()  # a rejected timestamp is one possible reason
            raise

    @property
    def _free(self) -> int | None:
        return None if self.node is None else max(self.node.free, 0)

    # ------------------------------------------------------------ receiving

    def receive(self, envelope: Envelope) -> bytes:
        """Handle a message and return the answer. Raises Rejected, without any effect, if the engine is not connected,
        or the signature or the content is wrong."""
        if self._signer is None:
            raise Rejected(503, "this engine is not connected yet")
        try:
            self._signer.check(envelope, self.own_ids)
            hints = decode(envelope.body)
        except WrongSignature as error:
            self._read_secret_soon()
            raise Rejected(401, str(error)) from error
        except StaleSignature as error:
            if self._store_clock.mark_doubtful():
                self._router.refresh_soon()
            raise Rejected(401, str(error)) from error
        except SignatureError as error:
            raise Rejected(401, str(error)) from error
        except WireError as error:
            raise Rejected(409, str(error)) from error
        self._handle_hints(envelope.peer_id, hints)
        full = () if self.node is None else self.node.full(hints.new)
        answer = message(hello=self._answer_to(hints.hello), free=self._free, full=full)
        return self._signer.wrap_answer(envelope, encode(answer))

    def _answer_to(self, hello: Hello | None) -> Hello | None:
        return None if hello is None or hello.bye else self._hello()

    def _handle_hints(self, peer_id: str, hints: Message) -> None:
        directory = self._router.directory
        if hints.hello is not None and hints.hello.bye:
            self._router.remove(peer_id)
        elif hints.hello is not None and directory.get(peer_id) is None:
            self._router.refresh_soon()  # the address is taken from the node table, not from the message
        peer = directory.get(peer_id)
        if peer is not None:
            self._note_free_slots(peer, hints)
        # An operator action can end tasks too: a command whose server was removed from the pool.
        self.handle_done((TOO_MANY_IDS,) if hints.control else hints.done)
        if hints.ended:
            self._waiters.wake_followers()
        if self.node is not None:
            self.watchers.add(peer_id, hints.awaited)
            if hints.follow:
                self.watchers.add_follower(peer_id, self._clock.monotonic())
            self.node.handle_hints(hints)

    @staticmethod
    def _note_free_slots(peer: Peer, hints: Message) -> None:
        if hints.free is None:
            peer.free = max(peer.free - sum(hints.started.values()), 0)
            return
        peer.free = hints.free  # counted after the started tasks, so these are not subtracted again
        if hints.free > 0:
            peer.full = frozenset()

    def handle_done(self, ids: Collection[int]) -> None:
        """Wake the callers that wait for these tasks: they may have ended."""
        if TOO_MANY_IDS in ids:
            self._waiters.recheck_all()
        elif ids:
            self._waiters.recheck(ids)

    def recheck_awaited(self) -> None:
        """Check all tasks that callers wait for: their ends may have been announced before this engine was
        reachable."""
        self._waiters.recheck_all()
