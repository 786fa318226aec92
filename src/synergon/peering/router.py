"""The post: knows the peers and has an outbox for each. It finds out whom news concerns.

The node table is read when there is news and nobody knows the peers yet, when a peer fails or says hello, when nobody
known runs a kind, and now and then while there is news. A node's reaper reads it anyway and lets the post `learn`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from synergon.errors import StoreError
from synergon.model.clock import Clock
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT
from synergon.peering.directory import Directory, Peer
from synergon.peering.outbox import REST_SECONDS, Outbox
from synergon.peering.transport import SendError
from synergon.peering.wire import EMPTY, Message, merged, message

ReadyGroupName = tuple[str, str | None, str]
"""A kind, the queue if anybody knows it, and what tasks in it requirements of a node, as their rows say it."""

LEAST_REFRESH_SECONDS: Final = 0.2
"""How often the node table is read at the most because nobody is known who runs a kind, or because everybody should
hear something."""
STRANGERS_KEPT: Final = 1000
NEWCOMER_SECONDS: Final = 5.0
"""For so long after ends were told to everybody, whoever turns up is told of them too."""
FAILURES_TO_MENTION: Final = 3


class HintRouter:
    """Brings messages to peers. Handing something in never blocks and never raises."""

    def __init__(
        self,
        read_nodes: Callable[[], Awaitable[list[NodeRecord]]],
        send: Callable[[Peer, Message], Awaitable[Message]],
        schemes: tuple[str, ...],
        on_company: Callable[[], None],
        own_ids: Callable[[], Collection[str]],
        awaited_here: Callable[[], Collection[int]],
        on_awaited: Callable[[Collection[int]], None],
        clock: Clock,
        logger: logging.Logger,
        *,
        refresh_seconds: float,
        follows_here: Callable[[], bool] = lambda: False,
        on_followed: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = Directory(schemes)
        self._read_nodes = read_nodes
        self._send = send
        self._on_company = on_company
        self._own_ids = own_ids
        self._awaited_here = awaited_here
        self._on_awaited = on_awaited
        self._follows_here = follows_here
        self._on_followed = on_followed
        self._clock = clock
        self._logger = logger
        self._refresh_seconds = refresh_seconds
        self._learned_at = 0.0
        self._told_at = 0.0
        """When new work was last told of without waiting for more: whoever was told has a rest first anyway."""
        self._outboxes: dict[str, Outbox] = {}
        self._new: Counter[ReadyGroupName] = Counter()
        self._homeless: Counter[ReadyGroupName] = Counter()
        """New tasks of kinds that nobody runs who answers, as far as is known."""
        self._scheduled: set[str] = set()
        self._surplus: set[str] = set()
        self._letters: list[tuple[str | None, Message]] = []
        """For whom (None: for everybody) and what, until the peers are known."""
        self._recent_ends = EMPTY
        self._recent_until = 0.0
        self._strangers: dict[str, Message] = {}
        """What engines are to hear that are not in the directory, in case they have only just come."""
        self._unsure = EMPTY
        """What was told while the directory was old; who turns up when the table is read hears it too."""
        self._router: asyncio.Task[None] | None = None
        self._refresher: asyncio.Task[None] | None = None
        self._seeker: asyncio.Task[None] | None = None
        self._is_refresh_wanted = False
        self._is_outdated = False
        """The table must be read before anything is told to everybody."""

    # ------------------------------------------------------------ handing in

    def wake(self, work: Mapping[ReadyGroupName, int]) -> bool:
        """So many new tasks are in these lanes; whether somebody is told of it as soon as others have a turn."""
        now = self._clock.monotonic()
        if self._router is None and now - self._told_at > REST_SECONDS and self._knows_peers():
            self._told_at = now
            self._tell_runners(work)
            return True
        for lane, count in work.items():
            self._new[lane] = self._new.get(lane, 0) + count
        self._route_soon()
        return False

    def spread(self, kinds: Iterable[str]) -> None:
        """There is more of these kinds than fits here; the next peers who run them should look, and spread it too."""
        self._surplus.update(kinds)
        self._route_soon()

    def schedule(self, kinds: Iterable[str]) -> None:
        """Tasks of these kinds were put off; whoever runs them should look at the clock."""
        self._scheduled.update(kinds)
        self._route_soon()

    def give(self, peer_id: str, letter: Message, *, seek: bool = False) -> None:
        """For this peer; if it is not known, for when it is, should that be soon. `seek`: it is worth a look."""
        peer = self.directory.get(peer_id)
        if peer is not None:
            self._outbox(peer).add(letter)
        elif self.directory.is_loaded:
            self._keep_for_stranger(peer_id, letter)
            if seek:
                self.refresh_soon()
        else:
            self._letters.append((peer_id, letter))
            self._route_soon()

    def give_all(self, letter: Message, *, seek: bool = False) -> None:
        """For every peer; `seek`: also for one that has come since the table was read, which who cannot be told of it
        does not know."""
        self._letters.append((None, letter))
        self._is_outdated |= seek
        self._route_soon()

    def give_runners(self, letter: Message) -> None:
        """For every peer that runs tasks, as far as they are known."""
        for peer in self.directory:
            if peer.kinds:
                self._outbox(peer).add(letter)

    def give_all_ends(self, ids: Collection[int], *, seek: bool) -> None:
        """For every peer, and for those whose news that they are there is still on its way."""
        letter = message(done=tuple(ids))
        is_recent = self._clock.monotonic() < self._recent_until
        self._recent_ends = merged(self._recent_ends, letter) if is_recent else letter
        self._recent_until = self._clock.monotonic() + NEWCOMER_SECONDS
        self.give_all(letter, seek=seek)

    def _keep_for_stranger(self, peer_id: str, letter: Message) -> None:
        kept = self._strangers.pop(peer_id, None)
        self._strangers[peer_id] = letter if kept is None else merged(kept, letter)
        if len(self._strangers) > STRANGERS_KEPT:
            del self._strangers[next(iter(self._strangers))]

    # ------------------------------------------------------------ knowing the peers

    def learn(self, nodes: Iterable[NodeRecord]) -> None:
        """The node table, as it has just been read."""
        self._learned_at = self._clock.monotonic()
        came, gone = self.directory.update(nodes, self._own_ids())
        unsure, self._unsure = self._unsure, EMPTY
        for peer in gone:
            self.forget(peer.id)
        if came:
            self._on_company()
        for peer in came:
            self._welcome(peer, unsure)

    def _welcome(self, peer: Peer, unsure: Message) -> None:
        """What was said, or would have been, before it was known."""
        letter = merged(merged(unsure, self._strangers.pop(peer.id, EMPTY)), self._awaited_by(peer))
        if self._clock.monotonic() < self._recent_until:
            letter = merged(letter, self._recent_ends)
        if letter is not EMPTY:
            self._outbox(peer).add(letter)

    def _awaited_by(self, peer: Peer) -> Message:
        ids = tuple(self._awaited_here()) if peer.kinds else ()
        follow = bool(peer.kinds) and self._follows_here()
        return message(awaited=ids, follow=follow) if ids or follow else EMPTY

    def forget(self, peer_id: str) -> None:
        """It is gone; others should hear of the work that it was to hear of."""
        self.directory.forget(peer_id)
        outbox = self._outboxes.pop(peer_id, None)
        if outbox is not None:
            self._offer_again(outbox.close().new, peer_id)

    async def refresh(self) -> None:
        """Read the node table now."""
        self.learn(await self._read_nodes())

    def refresh_soon(self) -> None:
        """Read the node table, beside everything else."""
        self._is_refresh_wanted = True
        if self._refresher is None:
            self._refresher = asyncio.get_running_loop().create_task(self._refresh_while_wanted())

    async def _refresh_while_wanted(self) -> None:
        try:
            while self._is_refresh_wanted:
                self._is_refresh_wanted = False
                await self.refresh()
        except StoreError as error:
            self._logger.debug("the node table could not be read: %s", error)
        finally:
            self._refresher = None

    # ------------------------------------------------------------ finding out whom it concerns

    def _route_soon(self) -> None:
        if self._router is None:
            self._router = asyncio.get_running_loop().create_task(self._route())

    async def _route(self) -> None:
        try:
            while self._new or self._surplus or self._scheduled or self._letters:
                await self._know_peers()
                self._distribute()
        except StoreError as error:
            self._logger.debug("peers could not be told of news: %s", error)
        finally:
            self._router = None

    def _knows_peers(self) -> bool:
        """Whether the table need not be read before anybody is told anything, nor beside it."""
        return self.directory.is_loaded and not self._is_outdated and not self._is_old()

    async def _know_peers(self) -> None:
        if not self.directory.is_loaded or self._is_outdated:
            await self.refresh()
            self._is_outdated = False
        elif self._is_old():
            self.refresh_soon()

    def _is_old(self) -> bool:
        """Whether somebody may be missing who should hear the news. New work is for a few; the rest is for all."""
        is_for_all = bool(self._scheduled) or any(peer_id is None for peer_id, _ in self._letters)
        return self._age() > (LEAST_REFRESH_SECONDS if is_for_all else self._refresh_seconds)

    def _age(self) -> float:
        return self._clock.monotonic() - self._learned_at

    def _seek_takers(self, work: Mapping[ReadyGroupName, int]) -> None:
        """Nobody known runs these, or none of them answers; somebody may have come since the table was read."""
        self._homeless.update(work)
        if self._seeker is None:
            self._seeker = asyncio.get_running_loop().create_task(self._seek())

    async def _seek(self) -> None:
        try:
            while self._homeless:  # more may come while the table is read
                await self._clock.sleep(max(LEAST_REFRESH_SECONDS - self._age(), 0))
                work, self._homeless = self._homeless, Counter()
                await self.refresh()
                self._offer(work)
        except StoreError as error:
            self._logger.debug("peers could not be looked for: %s", error)
        finally:
            self._seeker = None

    def _distribute(self) -> None:
        is_old = self._is_old()
        work, self._new = self._new, Counter()
        kinds, self._scheduled = self._scheduled, set()
        surplus, self._surplus = self._surplus, set()
        letters, self._letters = self._letters, []
        if is_old:
            self._note_unsure(work, kinds, letters)
        self._tell_runners(work)
        *_, own_id = self._own_ids()
        for kind in sorted(surplus):
            for peer in self.directory.next_to_help(kind, own_id):
                self._outbox(peer).add(message(new={kind: 1}))
        for peer in self.directory:
            if not kinds.isdisjoint(peer.kinds):
                self._outbox(peer).add(message(due=True))
        for peer_id, letter in letters:
            if peer_id is not None:
                self.give(peer_id, letter)
            else:
                for peer in self.directory:
                    if peer.kinds or not (letter.awaited or letter.follow):  # who runs nothing ends nothing
                        self._outbox(peer).add(letter)

    def _tell_runners(self, work: Mapping[ReadyGroupName, int]) -> None:
        self._offer(work)
        homeless = {
            lane: count
            for lane, count in work.items()
            if all(peer.is_failing for peer in self.directory.runners(lane[0]))
        }
        if homeless:
            self._seek_takers(homeless)

    def _note_unsure(
        self, work: Counter[ReadyGroupName], due: set[str], letters: list[tuple[str | None, Message]]
    ) -> None:
        new: Counter[str] = Counter()
        for (kind, *_), count in work.items():
            new[kind] += count
        self._unsure = merged(self._unsure, message(new=new, due=bool(due)))
        for peer_id, letter in letters:
            if peer_id is None:
                self._unsure = merged(self._unsure, letter)

    def _offer(self, work: Mapping[ReadyGroupName, int], instead_of: str | None = None) -> None:
        """Wake as few peers as have room for the work; `instead_of` one who cannot take it, nobody else who cannot."""
        offers: dict[str, dict[str, int]] = {}
        for (kind, queue, requirements), count in work.items():
            besides = () if instead_of is None else {instead_of} | self.directory.without_hope(kind)
            for peer in self.directory.whom_to_wake(kind, queue, count, besides, requirements):
                offer = offers.setdefault(peer.id, {})
                offer[kind] = offer.get(kind, 0) + count
        for peer_id, offer in offers.items():
            self.give(peer_id, message(new=offer))

    def _offer_again(self, unheard: Mapping[str, int], peer_id: str) -> None:
        self._offer({(kind, None, KIND_DEFAULT): count for kind, count in unheard.items()}, peer_id)

    # ------------------------------------------------------------ sending

    def _outbox(self, peer: Peer) -> Outbox:
        outbox = self._outboxes.get(peer.id)
        if outbox is None:
            outbox = self._outboxes[peer.id] = Outbox(
                lambda letter: self._send_to(peer.id, letter),
                self._clock,
                on_answer=lambda sent, answer: self._answered(peer.id, sent, answer),
                on_failure=lambda sent, failures, error: self._failed(peer.id, sent, failures, error),
            )
        return outbox

    async def _send_to(self, peer_id: str, letter: Message) -> Message:
        peer = self.directory.get(peer_id)
        if peer is None:
            raise SendError(f"{peer_id} is not in the node table any more")
        return await self._send(peer, letter)

    def _answered(self, peer_id: str, sent: Message, answer: Message) -> None:
        if sent.awaited:  # it may have ended just before the peer knew whom to tell
            self._on_awaited(sent.awaited)
        if sent.follow:  # the same
            self._on_followed()
        peer = self.directory.get(peer_id)
        if peer is None:
            return
        peer.is_failing = False
        if answer.free is not None:
            peer.free = answer.free
            refused = {kind: n for kind, n in sent.new.items() if answer.free == 0 or kind in answer.full}
            # Each refuses once, and is not asked again on that account: two who are full do not go on for ever.
            peer.full = (peer.full - sent.new.keys()) | refused.keys()
            self._offer_again(refused, peer_id)

    def _failed(self, peer_id: str, sent: Message, failures: int, error: SendError) -> None:
        peer = self.directory.get(peer_id)
        if peer is None:
            return
        if failures == FAILURES_TO_MENTION:  # one that has just left fails too, and is forgotten before this
            self._logger.info("peer %s at %s does not take hints: %s; it is tried again", peer_id, peer.address, error)
        if failures == 1:
            peer.is_failing = True
            self._offer_again(sent.new, peer_id)
            self.refresh_soon()

    # ------------------------------------------------------------ end

    async def routed(self, seconds: float) -> None:
        """Return when it is known whom the news concerns; wait no longer than `seconds`."""
        if self._router is not None:
            await asyncio.wait([self._router], timeout=seconds)

    async def close(self, seconds: float) -> None:
        """Send what can be sent within `seconds`, and end."""
        waits = [asyncio.ensure_future(self._all_sent())]
        await asyncio.wait(waits, timeout=seconds)
        tasks = [task for task in (self._router, self._refresher, self._seeker, *waits) if task is not None]
        for task in tasks:
            task.cancel()
        for outbox in self._outboxes.values():
            outbox.close()
        if tasks:
            await asyncio.wait(tasks)

    async def _all_sent(self) -> None:
        for task in (self._router, self._seeker):
            if task is not None:
                await asyncio.wait([task])
        for peer in self.directory:
            if peer.id in self._outboxes and not peer.is_failing:
                await self._outboxes[peer.id].sent()
