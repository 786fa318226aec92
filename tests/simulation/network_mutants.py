"""Ways to break what peers tell each other: what the auditors of network worlds must notice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec
from tests.simulation.mutants import Mutant, Patch

from synergon.client.results import Waiters
from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.nodes import NodeRecord
from synergon.node.attempts.attempt import Stop
from synergon.node.duties.canceller import Canceller
from synergon.node.hint_sender import HintSender
from synergon.node.node import Node
from synergon.peering.outbox import Outbox
from synergon.peering.peers import Peers
from synergon.peering.router import HintRouter, ReadyGroupName
from synergon.peering.wire import EMPTY, Message


def foreign_kinds_not_told(patch: Patch) -> None:
    """A node tells nobody of tasks of kinds that it does not run itself."""
    offer = HintSender.offer

    def offer_own(self: HintSender, work: Mapping[ReadyGroupName, int], *, is_open: bool) -> None:
        own = {
            ready_group: count
            for ready_group, count in work.items()
            if self._admission.serves(ready_group[0], ready_group[1])
        }
        offer(self, own, is_open=is_open)

    patch.setattr(HintSender, "offer", offer_own)


def producers_tell_nobody(patch: Patch) -> None:
    """Only engines with a node tell of new work."""
    announce_new = Peers.announce_new

    def tell(self: Peers, work: Mapping[ReadyGroupName, int]) -> None:
        if self.node is not None:
            announce_new(self, work)

    patch.setattr(Peers, "announce_new", tell)


def failing_peer_dropped_for_ever(patch: Patch) -> None:
    """A peer that has failed once is never tried again."""
    add = Outbox.add

    def add_unless_failed(self: Outbox, more: Message) -> None:
        if not self._failures:
            add(self, more)

    _forget_at_failures(patch)
    patch.setattr(Outbox, "add", add_unless_failed)


def outgoing_lost_on_failure(patch: Patch) -> None:
    """What a failing peer was to hear is told neither to it later nor to others."""
    _forget_at_failures(patch)
    patch.setattr(HintRouter, "_offer_again", lambda self, unheard, peer_id: None)


def _forget_at_failures(patch: Patch) -> None:
    send_one = Outbox._send_one

    async def send_once(self: Outbox, sending: Message) -> None:
        await send_one(self, sending)
        if self._failures:
            self._queued = EMPTY

    patch.setattr(Outbox, "_send_one", send_once)


def done_never_sent(patch: Patch) -> None:
    """Ends are told to nobody elsewhere."""
    patch.setattr(HintSender, "ended", lambda self, ids: None)


def done_believed(patch: Patch) -> None:
    """Whoever is told of an end does not look, and takes what was there before for the result."""

    async def look_away(self: Waiters, ids: Collection[int]) -> None:
        for task_id, record in zip(ids, await self._store.get(list(ids)), strict=True):
            for future in self._futures.get(task_id, ()):
                if record is not None and not future.done() and (record.state.is_final or record.attempts):
                    future.set_result(record)

    patch.setattr(Waiters, "_read", look_away)


def cancel_believed(patch: Patch) -> None:
    """A cancel hint ends whatever runs under that id."""
    patch.setattr(Canceller, "note_cancel_request", lambda self, task_id: self._runner.stop_one(task_id, Stop.CANCEL))


def cancel_not_told(patch: Patch) -> None:
    """The node that runs a task learns by its sweep that somebody wants it cancelled."""
    patch.setattr(Peers, "send_cancel", lambda self, node_id, task_id: None)


def hinted_work_is_taken(patch: Patch) -> None:
    """A hint is an order: as much is claimed as it says, whether there is room or not."""
    heard = Node.handle_hints

    async def take(self: Node, hints: Message) -> None:
        kind_requests = tuple(
            KindRequest(kind=kind, count=count) for kind, count in hints.new.items() if kind in self._kinds
        )
        request = ClaimRequest(
            node_id=self.id,
            kinds=kind_requests,
            limit=sum(kind_request.count for kind_request in kind_requests),
            queues=None,
        )
        self.signals.claimed(await self.store.claim(request))

    def obey(self: Node, hints: Message) -> None:
        heard(self, hints)
        if hints.new and self.scheduler.is_open:
            self.loop.create_task(take(self, hints))

    patch.setattr(Node, "handle_hints", obey)


def new_hints_not_heard(patch: Patch) -> None:
    """Nobody looks because of a hint."""
    patch.setattr(Node, "handle_hints", lambda self, hints: None)


def scheduled_not_told(patch: Patch) -> None:
    """Nobody watches the clock for tasks of a producer."""
    patch.setattr(HintRouter, "route_scheduled", lambda self, kinds: None)


def resumed_not_told(patch: Patch) -> None:
    """A queue that is resumed elsewhere is served from the next sweep on."""
    patch.setattr(Peers, "announce_control", lambda self: None)


def full_peer_is_enough(patch: Patch) -> None:
    """A peer that says it has no room was told all the same, and nobody else is."""
    answered = HintRouter.handle_answer

    def content(self: HintRouter, peer_id: str, sent: Message, answer: Message) -> None:
        answered(self, peer_id, msgspec.structs.replace(sent, new={}), answer)

    patch.setattr(HintRouter, "handle_answer", content)


def table_read_once(patch: Patch) -> None:
    """Who comes later is never known."""
    learn = HintRouter.update_directory

    def learn_once(self: HintRouter, nodes: Iterable[NodeRecord]) -> None:
        if not self.directory.is_loaded:
            learn(self, nodes)

    patch.setattr(HintRouter, "update_directory", learn_once)


NETWORK_MUTANTS: Final[tuple[Mutant, ...]] = (
    foreign_kinds_not_told,
    producers_tell_nobody,
    failing_peer_dropped_for_ever,
    outgoing_lost_on_failure,
    done_never_sent,
    done_believed,
    cancel_believed,
    cancel_not_told,
    hinted_work_is_taken,
    new_hints_not_heard,
    scheduled_not_told,
    resumed_not_told,
    full_peer_is_enough,
    table_read_once,
)
