"""HintRouter: holds the directory of peers and an outbox for each peer, and decides which peers receive which hints.

The router reads the node table before the first hint, when a peer fails or joins, when no known peer runs a kind, after
hints to all peers, and from time to time while there are hints to send. The reaper of a node also reads the table
regularly, and passes its rows to `update_directory`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from synergon.errors import StoreError
from synergon.model.clock import Clock
from synergon.model.node_status import HintStatus
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.task_statistics import LATENCIES, Buckets
from synergon.peering.directory import Directory, Peer
from synergon.peering.local_engine import LocalEngine, LocalWaiters
from synergon.peering.outbox import MIN_INTERVAL_SECONDS, Outbox
from synergon.peering.transport import SendError
from synergon.peering.wire import EMPTY, Message, merged, message

ReadyGroupName = tuple[str, str | None, str]
"""The kind, queue (None if unknown) and requirements of a ready group, as the rows of its tasks have them."""

MIN_REFRESH_SECONDS: Final = 0.2
"""The minimum time in seconds between two reads of the node table for hints to all peers, or for kinds that no known
peer runs."""
MAX_UNKNOWN_PEERS: Final = 1000
LATEST_HINTS: Final = 200
"""The number of latest answers from which a node computes the latency of hints that it publishes."""
RECENT_SECONDS: Final = 5.0
"""A peer that appears within this many seconds after ends were sent to all peers gets those ends, too."""
FAILURES_TO_LOG: Final = 3


class HintRouter:
    """Routes hints to peers. Its methods never block on the network, and never raise."""

    def __init__(
        self,
        engine: LocalEngine,
        waiters: LocalWaiters,
        schemes: tuple[str, ...],
        clock: Clock,
        logger: logging.Logger,
        *,
        refresh_seconds: float,
    ) -> None:
        self.directory: Final = Directory(schemes)
        self._engine = engine
        self._waiters = waiters
        self._clock = clock
        self._logger = logger
        self._refresh_seconds = refresh_seconds
        self._updated_at = 0.0
        self._routed_at = 0.0
        """When new tasks were last routed at once. Tasks that follow within MIN_INTERVAL_SECONDS are collected, because
        outboxes would delay a second message anyway."""
        self._outboxes: dict[str, Outbox] = {}
        self.answered: int = 0
        """How many requests with hints peers have answered."""
        self.unanswered: int = 0
        self.hint_seconds: Final = Buckets(LATENCIES)
        """How many seconds peers took to answer."""
        self._latest_hint_seconds: deque[float] = deque(maxlen=LATEST_HINTS)
        self._new: Counter[ReadyGroupName] = Counter()
        self._without_runner: Counter[ReadyGroupName] = Counter()
        """New tasks of kinds that no known peer runs, or only failing peers."""
        self._scheduled: set[str] = set()
        self._surplus: set[str] = set()
        self._unrouted: list[tuple[str | None, Message]] = []
        """Hints that wait until the directory is loaded, each with the id of its receiver. None stands for all
        peers."""
        self._recent_ends = EMPTY
        self._recent_until = 0.0
        self._for_unknown: dict[str, Message] = {}
        """Hints for peers that are not in the directory. They are kept in case the peers have only just registered."""
        self._reads_begun = 0
        self._read_applied = 0
        """The number of the read of the node table whose rows are in the directory."""
        self._read_needed = 0
        """The number of the first read that began after the last hint to all peers. Until it is applied, receivers of
        that hint may be unknown."""
        self._sent_while_stale = EMPTY
        """Hints that were sent while the directory was stale. Peers that a later read adds get them, too."""
        self._sent_until = 0
        """The number of the read after which every peer has got the hints in `_sent_while_stale`."""
        self._route_task: asyncio.Task[None] | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._read_task: asyncio.Task[None] | None = None
        self._is_refresh_wanted = False
        self._must_refresh = False
        """Whether the node table must be read before waiting hints are sent."""

    # ------------------------------------------------------------ hints to route

    def route_new(self, work: Mapping[ReadyGroupName, int]) -> bool:
        """Announce new tasks, counted by ready group. Returns True if a hint is sent in the next iteration of the event
        loop."""
        now = self._clock.monotonic()
        is_ready = self._route_task is None and self.directory.is_loaded and not self._must_refresh
        if is_ready and now - self._routed_at > MIN_INTERVAL_SECONDS:
            self._routed_at = now
            if self._is_old():  # the known peers get the hint at once, and the others when they are known
                self._note_sent_while_stale(work, (), ())
                self.refresh_soon()
            self._offer_or_search(work)
            return True
        for group, count in work.items():
            self._new[group] = self._new.get(group, 0) + count
        self._route_soon()
        return False

    def route_surplus(self, kinds: Iterable[str]) -> None:
        """Ask the next peers in the ring to claim tasks of these kinds: there are more than fit on this node."""
        self._surplus.update(kinds)
        self._route_soon()

    def route_scheduled(self, kinds: Iterable[str]) -> None:
        """Make the peers that run these kinds check their alarm: tasks were scheduled for later."""
        self._scheduled.update(kinds)
        self._read_needed = self._reads_begun + 1
        self._route_soon()

    def send_to(self, peer_id: str, hints: Message, *, refresh: bool = False) -> None:
        """Queue hints for one peer. If the peer is unknown, they are kept until it appears. With `refresh`, the node
        table is read now to find it."""
        peer = self.directory.get(peer_id)
        if peer is not None:
            self._outbox(peer).add(hints)
        elif self.directory.is_loaded:
            self._keep_for_unknown(peer_id, hints)
            if refresh:
                self.refresh_soon()
        else:
            self._unrouted.append((peer_id, hints))
            self._route_soon()

    def send_to_all(self, hints: Message, *, refresh: bool = False) -> None:
        """Queue hints for every peer. With `refresh`, the node table is read first. An engine that cannot receive needs
        this to reach peers that have joined meanwhile."""
        self._unrouted.append((None, hints))
        self._read_needed = self._reads_begun + 1
        self._must_refresh |= refresh
        self._route_soon()

    def send_to_runners(self, hints: Message) -> None:
        """Queue hints for every known peer that runs tasks."""
        for peer in self.directory:
            if peer.kinds:
                self._outbox(peer).add(hints)

    def send_ends_to_all(self, ids: Collection[int], *, refresh: bool) -> None:
        """Queue the ends of tasks for every peer. Peers that appear within RECENT_SECONDS get them, too."""
        hints = message(done=tuple(ids))
        is_recent = self._clock.monotonic() < self._recent_until
        self._recent_ends = merged(self._recent_ends, hints) if is_recent else hints
        self._recent_until = self._clock.monotonic() + RECENT_SECONDS
        self.send_to_all(hints, refresh=refresh)

    def _keep_for_unknown(self, peer_id: str, hints: Message) -> None:
        waiting = self._for_unknown.pop(peer_id, None)
        self._for_unknown[peer_id] = hints if waiting is None else merged(waiting, hints)
        if len(self._for_unknown) > MAX_UNKNOWN_PEERS:
            del self._for_unknown[next(iter(self._for_unknown))]

    # ------------------------------------------------------------ directory

    def update_directory(self, nodes: Iterable[NodeRecord]) -> None:
        """Update the directory from rows of the nodes that were just read."""
        self._updated_at = self._clock.monotonic()
        added, removed = self.directory.update(nodes, self._engine.own_ids)
        for peer in removed:
            self.remove(peer.id)
        if added:
            self._engine.prepare()
        for peer in added:
            self._send_missed(peer)

    def _send_missed(self, peer: Peer) -> None:
        """Queue the hints that the peer would have received if it had been known earlier."""
        waiting = self._for_unknown.pop(peer.id, EMPTY)
        hints = merged(merged(self._sent_while_stale, waiting), self._end_requests(peer))
        if self._clock.monotonic() < self._recent_until:
            hints = merged(hints, self._recent_ends)
        if hints is not EMPTY:
            self._outbox(peer).add(hints)

    def _end_requests(self, peer: Peer) -> Message:
        ids = tuple(self._waiters.enqueued_elsewhere) if peer.kinds else ()
        follow = bool(peer.kinds) and len(self._waiters.followers) > 0
        return message(awaited=ids, follow=follow) if ids or follow else EMPTY

    def remove(self, peer_id: str) -> None:
        """Remove a peer that has left, and offer the tasks of the hints in its outbox to other peers."""
        self.directory.remove(peer_id)
        outbox = self._outboxes.pop(peer_id, None)
        if outbox is not None:
            self._offer_again(outbox.close().new, peer_id)

    async def refresh(self) -> None:
        """Read the node table now. If a later read has been applied meanwhile, the rows are ignored."""
        self._reads_begun += 1
        number = self._reads_begun
        nodes = await self._engine.read_nodes()
        if number < self._read_applied:
            return
        self._read_applied = number
        self.update_directory(nodes)
        if number >= self._sent_until:
            self._sent_while_stale = EMPTY

    def refresh_soon(self) -> None:
        """Read the node table in the background."""
        self._is_refresh_wanted = True
        if self._refresh_task is None:
            self._refresh_task = asyncio.get_running_loop().create_task(self._refresh_while_wanted())

    async def _refresh_while_wanted(self) -> None:
        try:
            while self._is_refresh_wanted:
                self._is_refresh_wanted = False
                await self.refresh()
        except StoreError as error:
            self._logger.debug("peering: cannot read the node table: %s", error)
        finally:
            self._refresh_task = None

    # ------------------------------------------------------------ routing

    def _route_soon(self) -> None:
        if self._route_task is None:
            self._route_task = asyncio.get_running_loop().create_task(self._route())

    async def _route(self) -> None:
        try:
            while self._new or self._surplus or self._scheduled or self._unrouted:
                await self._ensure_directory()
                self._distribute()
        except StoreError as error:
            self._logger.debug("peering: cannot read the node table, so hints are delayed: %s", error)
        finally:
            self._route_task = None

    async def _ensure_directory(self) -> None:
        if not self.directory.is_loaded or self._must_refresh:
            await self.refresh()
            self._must_refresh = False
        elif self._is_behind():
            self._read_later()
        elif self._is_stale():
            self.refresh_soon()

    def _is_stale(self) -> bool:
        """Whether a receiver may be missing in the directory."""
        return self._is_behind() or self._is_old()

    def _is_old(self) -> bool:
        return self._age() > self._refresh_seconds

    def _is_behind(self) -> bool:
        """Whether the directory was read before the last hint to all peers, so that peers which joined in between may
        be missing. New tasks do not need every peer: a few known ones can take them."""
        return self._read_applied < self._read_needed

    def _age(self) -> float:
        return self._clock.monotonic() - self._updated_at

    def _search_runners(self, work: Mapping[ReadyGroupName, int]) -> None:
        """Offer these tasks again after the next read of the node table: a peer that runs them may have joined since
        the last one."""
        self._without_runner.update(work)
        self._read_later()

    def _read_later(self) -> None:
        """Read the node table when MIN_REFRESH_SECONDS have passed since the last read."""
        if self._read_task is None:
            self._read_task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            while self._without_runner or self._is_behind():  # more may come while the table is read
                await self._clock.sleep(max(MIN_REFRESH_SECONDS - self._age(), 0))
                work, self._without_runner = self._without_runner, Counter()
                await self.refresh()
                self._offer(work)
        except StoreError as error:
            self._logger.debug("peering: cannot read the node table to find more peers: %s", error)
        finally:
            self._read_task = None

    def _distribute(self) -> None:
        is_stale = self._is_stale()
        work, self._new = self._new, Counter()
        scheduled, self._scheduled = self._scheduled, set()
        surplus, self._surplus = self._surplus, set()
        unrouted, self._unrouted = self._unrouted, []
        if is_stale:
            self._note_sent_while_stale(work, scheduled, unrouted)
        self._offer_or_search(work)
        *_, own_id = self._engine.own_ids
        for kind in sorted(surplus):
            for peer in self.directory.next_helpers(kind, own_id):
                self._outbox(peer).add(message(new={kind: 1}))
        for peer in self.directory:
            if not scheduled.isdisjoint(peer.kinds):
                self._outbox(peer).add(message(due=True))
        for peer_id, hints in unrouted:
            if peer_id is not None:
                self.send_to(peer_id, hints)
            else:
                for peer in self.directory:
                    # Requests for ends go to peers that run tasks only: the others end none.
                    if peer.kinds or not (hints.awaited or hints.follow):
                        self._outbox(peer).add(hints)

    def _offer_or_search(self, work: Mapping[ReadyGroupName, int]) -> None:
        self._offer(work)
        without_runner = {
            group: count
            for group, count in work.items()
            if all(peer.is_failing for peer in self.directory.runners(group[0]))
        }
        if without_runner:
            self._search_runners(without_runner)

    def _note_sent_while_stale(
        self,
        work: Mapping[ReadyGroupName, int],
        scheduled: Collection[str],
        unrouted: Iterable[tuple[str | None, Message]],
    ) -> None:
        new: Counter[str] = Counter()
        for (kind, *_), count in work.items():
            new[kind] += count
        self._sent_while_stale = merged(self._sent_while_stale, message(new=new, due=bool(scheduled)))
        self._sent_until = self._reads_begun + 1
        for peer_id, hints in unrouted:
            if peer_id is None:
                self._sent_while_stale = merged(self._sent_while_stale, hints)

    def _offer(self, work: Mapping[ReadyGroupName, int], instead_of: str | None = None) -> None:
        """Send hints about these tasks to as few peers as have capacity for them. `instead_of` is a peer that cannot
        take them; it is excluded, and so are the peers that reported the kind as full."""
        offers: dict[str, dict[str, int]] = {}
        for (kind, queue, requirements), count in work.items():
            excluded = () if instead_of is None else {instead_of} | self.directory.reported_full(kind)
            for peer in self.directory.choose_to_wake(kind, queue, count, excluded, requirements):
                offer = offers.setdefault(peer.id, {})
                offer[kind] = offer.get(kind, 0) + count
        for peer_id, offer in offers.items():
            self.send_to(peer_id, message(new=offer))

    def _offer_again(self, not_taken: Mapping[str, int], peer_id: str) -> None:
        self._offer({(kind, None, KIND_DEFAULT): count for kind, count in not_taken.items()}, peer_id)

    # ------------------------------------------------------------ sending

    def _outbox(self, peer: Peer) -> Outbox:
        outbox = self._outboxes.get(peer.id)
        if outbox is None:
            outbox = self._outboxes[peer.id] = Outbox(self, peer.id, self._clock)
        return outbox

    async def send_now(self, peer_id: str, hints: Message) -> Message:
        """Send hints to a peer, and return the answer. Raises SendError if the peer is not in the directory, or there
        is no answer."""
        peer = self.directory.get(peer_id)
        if peer is None:
            raise SendError(f"{peer_id} is not in the node table any more")
        began_at = self._clock.monotonic()
        answer = await self._engine.send(peer, hints)
        seconds = self._clock.monotonic() - began_at
        self.hint_seconds.observe(seconds)
        self._latest_hint_seconds.append(seconds)
        return answer

    @property
    def hint_status(self) -> HintStatus:
        """How many requests with hints peers have answered, and how fast."""
        return HintStatus.of(self.answered, self.unanswered, self._latest_hint_seconds)

    def handle_answer(self, peer_id: str, sent: Message, answer: Message) -> None:
        """Note the free slots of the peer, and offer the tasks that it cannot take to others. If the sent message asked
        for the ends of tasks, wake the waiters: tasks may have ended before the peer received it."""
        self.answered += 1
        # Tasks may have ended just before the peer received the request to report it.
        if sent.awaited:
            self._engine.handle_done(sent.awaited)
        if sent.follow:
            self._waiters.wake_followers()
        peer = self.directory.get(peer_id)
        if peer is None:
            return
        peer.is_failing = False
        if answer.free is not None:
            peer.free = answer.free
            rejected = {kind: n for kind, n in sent.new.items() if answer.free == 0 or kind in answer.full}
            # A peer that rejected a kind is excluded from the next offer, so two full peers do not ping-pong.
            peer.full = (peer.full - sent.new.keys()) | rejected.keys()
            self._offer_again(rejected, peer_id)

    def handle_failure(self, peer_id: str, unsent: Message, failures: int, error: SendError) -> None:
        """Mark the peer as failing, and offer the tasks of the unsent hints to others."""
        self.unanswered += 1
        peer = self.directory.get(peer_id)
        if peer is None:
            return
        if failures == FAILURES_TO_LOG:  # a peer that is shutting down fails too, but is removed before this
            self._logger.info("peer %s at %s does not accept hints: %s; retrying", peer_id, peer.address, error)
        if failures == 1:
            peer.is_failing = True
            self._offer_again(unsent.new, peer_id)
            self.refresh_soon()

    # ------------------------------------------------------------ end

    async def wait_routed(self, seconds: float) -> None:
        """Wait until all hints are in outboxes, for at most `seconds`."""
        if self._route_task is not None:
            await asyncio.wait([self._route_task], timeout=seconds)

    async def close(self, seconds: float) -> None:
        """Send what can be sent within `seconds`, then stop."""
        waits = [asyncio.ensure_future(self._wait_sent())]
        await asyncio.wait(waits, timeout=seconds)
        tasks = [task for task in (self._route_task, self._refresh_task, self._read_task, *waits) if task is not None]
        for task in tasks:
            task.cancel()
        for outbox in self._outboxes.values():
            outbox.close()
        if tasks:
            await asyncio.wait(tasks)

    async def _wait_sent(self) -> None:
        for task in (self._route_task, self._read_task):
            if task is not None:
                await asyncio.wait([task])
        for peer in self.directory:
            if peer.id in self._outboxes and not peer.is_failing:
                await self._outboxes[peer.id].wait_sent()
