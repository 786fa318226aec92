"""A node: composes the duties, and owns the order in which they start and stop.

Stop: announce it in the node's row → stop claiming → wait (grace) → ask the rest to end → flush outcomes → give back
what did not finish → drop the node's row. Idempotent; a second call waits for the first.

Long, because all duties are made and joined to each other here, and nowhere else: most of it says who tells whom.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from synergon.client.unrunnable_warning import ChildrenToCheck
from synergon.errors import StoreUnavailable
from synergon.model.claims import Claim
from synergon.model.clock import Clock
from synergon.model.node_status import NodeStatus
from synergon.model.nodes import NodeRecord
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.tasks import NewTask
from synergon.node.attempts.attempt import Attempt, Stop
from synergon.node.attempts.attempt_services import AttemptServices
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.runner import Runner
from synergon.node.attempts.settlements import handed_back
from synergon.node.attempts.slots import Slots
from synergon.node.attempts.timeouts import TimeoutFor, Timeouts
from synergon.node.callbacks.callbacks import Callbacks
from synergon.node.callbacks.event_feed import Subscriber
from synergon.node.callbacks.hooks import Hooks
from synergon.node.callbacks.idle_hooks import IdleHooks
from synergon.node.capacity.acceptance import Acceptance, acceptance_polls
from synergon.node.capacity.reservation import Reservation
from synergon.node.claims.admission import Admission
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.scheduler import Scheduler
from synergon.node.claims.shared_permits import SharedPermits
from synergon.node.duties.alarm import Alarm
from synergon.node.duties.backlog import Backlog
from synergon.node.duties.canceller import Canceller
from synergon.node.duties.cordon import Cordon
from synergon.node.duties.operator_actions import OperatorActions
from synergon.node.duties.pruner import Pruner
from synergon.node.duties.shutdown import Shutdown
from synergon.node.duties.sweep import SweepInterval
from synergon.node.duty import Duty, pause_after
from synergon.node.hint_sender import HintSender
from synergon.node.liveness.lease import PARTS
from synergon.node.liveness.lost_claims import LostClaims
from synergon.node.liveness.membership import Membership
from synergon.node.liveness.reaper import Reaper
from synergon.node.liveness.status import node_status
from synergon.node.liveness.status_publisher import StatusPublisher
from synergon.node.logger import NodeLogger
from synergon.node.processes.executors import Executor
from synergon.options.idle_hook import IdleHook
from synergon.options.settings import Settings
from synergon.peering.peers import Peers
from synergon.peering.router import ReadyGroupName
from synergon.peering.wire import LOOK, Message
from synergon.stores.base import Store
from synergon.task import AnyTask

LEAST_AT_ONCE: Final = 100
"""Where a database works on claims beside the node, each asks for half of the slots at the most, or for this many:
while one half is looked for, the other runs."""


class Node:
    """Runs tasks of an engine's kinds until it is stopped."""

    def __init__(
        self,
        store: Store,
        kinds: Mapping[str, AnyTask],
        settings: Settings,
        clock: Clock,
        executor: Executor,
        logger: logging.Logger,
        *,
        on_ended: Callable[[Iterable[int]], None],
        peers: Peers | None = None,
        timeout_for: TimeoutFor | None = None,
        idle_hooks: Sequence[IdleHook] = (),
        subscribers: Sequence[Subscriber] = (),
        on_stop: Callable[[], None] = lambda: None,
        consider: Callable[[Sequence[NewTask]], Awaitable[None]],
        may_exit: bool = False,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._store = store
        self._kinds = dict(kinds)
        self._settings = settings
        self._clock = clock
        self._executor = executor
        self._on_ended = on_ended
        self._peers = peers
        self._on_stop = on_stop
        self._afterthought = ChildrenToCheck(consider)
        self._may_exit = may_exit
        self._idle_hooks = idle_hooks
        self._logger = NodeLogger(logger, {"node": settings.name})
        self._timeouts = Timeouts(settings.timeout, timeout_for, self._logger)
        self._callbacks = Callbacks(self._logger)
        self._hooks = Hooks(clock, self._logger, self._callbacks, subscribers)
        self._ledger = Ledger(settings.concurrency, settings.child_processes)
        self._permits = SharedPermits(self._kinds, settings.queues, settings.labels, lambda: self._ledger.totals)
        self._pace = SweepInterval(settings.sweep, clock)
        self._build()
        self._has_stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

    def _build(self) -> None:
        store, clock, logger, settings = self._store, self._clock, self._logger, self._settings
        self.completer = Completer(
            store,
            clock,
            logger,
            on_ended=self._tell_ended,
            on_ready=self.made_ready,
            on_scheduled=self.due_in,
            on_children=self._afterthought.note,
            on_freed=self._permits_freed,
            hooks=self._hooks,
        )
        services = AttemptServices(
            self.loop,
            store,
            self.completer,
            may_go_on=self._may_go_on,
            hold_seconds=settings.lease / 3,
        )
        self.runner = Runner(
            self._kinds,
            services,
            self._ledger,
            self.completer,
            self._executor,
            clock,
            logger,
            url=self._store.url,
            timeouts=self._timeouts,
            hooks=self._hooks,
            on_free=self._note_free,
        )
        self._canceller = Canceller(store, self.runner, lambda: self.id)
        self._slots: Slots[Attempt] = Slots(self.runner.run, clock)
        self.reservation = Reservation(
            self._kinds,
            self.runner.running.values,
            self._timeouts,
            self.loop.time,
            keep_seconds=settings.lease,
            on_kept=lambda task_id: self._neighbours.keeps_room(task_id),
            is_refused=lambda kind, task_id: self.acceptance.is_refused(kind, task_id),
        )
        self._admission = Admission(
            self._kinds,
            self._ledger,
            settings.queues,
            labels=settings.labels,
            reservation=self.reservation,
            preemption=self.runner.preemption,
            most_at_once=max(settings.concurrency // 2, LEAST_AT_ONCE) if store.capabilities.remote else None,
        )
        self._neighbours = HintSender(self._peers, self._admission)
        self.acceptance = Acceptance(
            acceptance_polls(
                store,
                self._admission,
                self._kinds,
                clock,
                logger,
                self._callbacks,
                on_accepted=lambda kind: self.scheduler.accepted(kind),
                on_refused=self._refused,
                may_ask=lambda: self.scheduler.may_claim,
            )
        )
        self.scheduler = Scheduler(
            store,
            self._admission,
            self._kinds,
            self._start,
            completer=self.completer,
            permits=self._permits,
            on_surplus=self._neighbours.offer_surplus,
            acceptance=self.acceptance,
            on_cordoned=lambda: self.presence.found_cordoned(),
            sleep=clock.sleep,
        )
        self.runner.preemption.on_rested = self.scheduler.capacity_freed
        self.ending = Shutdown(self.runner, logger, may_exit=self._may_exit, give_back=self._give_back)
        self._board = StatusPublisher(self.loop, self.state)
        self.presence = Cordon(
            store,
            self.scheduler,
            logger,
            quiet=self._nothing_runs,
            stop=self._on_stop,
            on_change=self._presence_changed,
            on_found=self._pace.look_now,
        )
        self._idle = IdleHooks(
            self._idle_hooks,
            clock,
            logger,
            self._callbacks,
            has_nothing_to_do=lambda kind: self.scheduler.is_at_rest(kind) and self._admission.has_any_room(kind),
        )
        self._strays = LostClaims(
            store,
            clock,
            known=lambda: self.runner.running.keys() | self.completer.unwritten,
            settle=self.completer.add,
            doubt_seconds=settings.lease,
        )
        self._orders = OperatorActions(store, self.presence, logger, on_stop=self._on_stop)
        self.membership = Membership(
            store,
            self._kinds,
            settings,
            self._executor,
            clock,
            logger,
            runner=self.runner,
            scheduler=self.scheduler,
            ending=self.ending,
            board=self._board,
            is_cordoned=lambda: self.presence.is_cordoned,
            on_joined=lambda: self._peers.say_hello() if self._peers is not None else None,
            before_rejoining=self._orders.obey,  # what nobody could tell it is meant for it, whatever its next id
        )
        self.alarm = Alarm(
            store,
            clock,
            logger,
            on_ready=self.made_ready,
            on_ended=self._expired,
            on_moment=lambda: self.scheduler.wake(self._permits.pooled),
            rated=self._permits.rated,
        )
        self.reaper = Reaper(
            store,
            self._executor,
            clock,
            logger,
            beat_seconds=settings.lease / PARTS,
            on_ready=self.made_ready,
            on_ended=self._tell_ended_unrun,
            on_nodes=self._meet,
            on_reaped=self._hooks.feed.reaped,
        )
        steps = {
            "completer": self.completer.step,
            "reports": self.completer.report_step,
            "scheduler": self._schedule,
            "patience": self.scheduler.patience_step,
            "canceller": self._canceller.step,
            "alarm": self.alarm.step,
            "outlook": self._afterthought.step,
            "reaper": self.reaper.step,
            "pruner": Pruner(store, clock, settings.retention).step,
            "sweep": self._sweep,
            **self.acceptance.steps,
        }
        if store.capabilities.listens:
            steps["listener"] = self._listen
        if self._idle_hooks:
            steps["idle hooks"] = self._idle.step
        self._duties = [Duty(name, step, clock, logger) for name, step in steps.items()]

    @property
    def id(self) -> str:
        """The one that it works under now."""
        return self.membership.id

    # ------------------------------------------------------------ start

    async def start(self) -> None:
        """Find out what there is to work with, register, and begin to work."""
        self._ledger.totals |= await self._executor.resources() | self._settings.resources.amounts()
        if self._peers is not None:
            self.membership.address = await self._peers.serve()
            self._peers.resident = self
        await self.membership.join()
        for duty in self._duties:
            duty.start()
        self._logger.info(
            "node %s (%s) runs %d kinds, %d at once",
            self.id,
            self._settings.name,
            len(self._kinds),
            self._ledger.concurrency,
        )

    # ------------------------------------------------------------ work

    async def _schedule(self) -> None:
        await self.scheduler.woken()
        while self.completer.is_troubled:  # claims are held back while outcomes cannot be written
            await self._clock.sleep(pause_after(1))
        await self._strays.give_back(self.id)
        self._neighbours.claim_begins()
        try:
            taken = await self.scheduler.step()
        except StoreUnavailable:
            self._strays.doubt()
            raise
        self._neighbours.claim_is_over(self.scheduler.leftover)
        self._neighbours.freed(self._permits.left_over(taken))
        self._canceller.claim_is_over()
        self._idle.look()

    def _permits_freed(self, kinds: Iterable[str | None]) -> None:
        """Tasks of these kinds have ended, and the store knows."""
        kinds = list(kinds)
        self._permits.note_freed(kinds)
        left = self.scheduler.permits_freed(kinds)
        if left:
            self._neighbours.freed(self._permits.names_of(left))

    def _start(self, claims: list[Claim]) -> None:
        self._neighbours.started(claims)
        if self._permits.rated and any(claim.kind in self._permits.rated for claim in claims):
            self.alarm.look()  # the next one has its turn now
        if self.scheduler.may_claim and self.membership.may_start:
            self._slots.submit(self.runner.admit(claims))
            self._canceller.claimed(claim.id for claim in claims)
        else:  # it was cordoned or told to stop, or lost its lease or stood still, while the claim was under way
            self._give_back(claims)

    def _give_back(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self.completer.add(handed_back(claim))

    def _note_free(self) -> None:
        self.scheduler.capacity_freed()
        self.ending.look()
        self._idle.look()

    async def _sweep(self) -> None:
        await self._pace.rest()
        self._pace.adapt(is_restless=bool(self.runner.running) or not self._neighbours.are_well)
        self.scheduler.wake_all()
        self.alarm.look()
        await self._orders.obey(self.id)
        await self.presence.check(self.id)
        if self.runner.running:
            self._canceller.look()

    def look_everywhere(self) -> None:
        """Something has changed that concerns every node."""
        self.scheduler.wake_all()
        self.alarm.look()
        self._pace.look_now()

    async def _listen(self) -> None:
        await self._store.listen(self._heard)

    def _heard(self, kinds: Iterable[str] | None) -> None:
        """Somebody's own transaction has brought tasks, ready or due later."""
        self.scheduler.wake(self._kinds if kinds is None else kinds)
        self.alarm.look()

    def watch(self) -> None:
        """Somebody's own transaction may bring tasks, and nobody will tell."""
        self._pace.watch()

    # ------------------------------------------------------------ what others say of it, and what it says

    def _meet(self, nodes: list[NodeRecord]) -> None:
        """The node table, as it has just been read."""
        self._neighbours.learn(nodes)
        self.presence.learn(nodes, self.id)
        self.met(nodes)

    def met(self, nodes: Iterable[NodeRecord]) -> None:
        """The same, for the peers' sake: who has just come may want places, too."""
        self._permits.learn(node for node in nodes if node.id != self.id)
        self.scheduler.choose_exchanged_kinds()

    def _presence_changed(self) -> None:
        """Say so at once; and what is claimed and has not begun is not begun any more."""
        if self.presence.is_cordoned:
            self.runner.stop_waiting(Stop.CORDON)
        self._board.write()
        self.membership.renew_soon()

    def _may_go_on(self, attempt: Attempt) -> bool:
        """Whether a body need not end, as far as this node knows. Where it is cordoned, a body that may be preempted is
        told to leave, and goes back at no cost when it does."""
        if self.presence.is_cordoned and attempt.task_type.policy.preemptible:
            attempt.ask_to_leave()
        return not self.membership.is_lost and attempt.stop is None

    async def _nothing_runs(self) -> None:
        """Return when nothing runs here, and the store knows what came of all that did."""
        await self.scheduler.settled()
        await self.ending.quiet.comes()
        await self.completer.flushed()

    # ------------------------------------------------------------ peers

    @property
    def free(self) -> int:
        """How many tasks could start here."""
        return self._ledger.free if self.scheduler.may_claim else 0

    def state(self) -> NodeStatus:
        """What it says of itself; cheap, and safe from any thread."""
        return node_status(self._admission, self._ledger, self.runner.running, self.scheduler, self.presence.leaving)

    def full(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Those of the kinds of which none could start here, whatever slots are free."""
        return self._neighbours.full(kinds)

    def announce(self, work: Mapping[ReadyGroupName, int]) -> None:
        """There are so many new tasks in these lanes: start what fits, and tell peers of the rest."""
        self.scheduler.wake(kind for kind, *_ in work)
        self._neighbours.offer(work, is_open=self.scheduler.may_claim)

    def made_ready(self, kinds: Iterable[str]) -> None:
        """The same where the queues are not known: one task for each time that a kind is named."""
        self.announce({(kind, None, KIND_DEFAULT): count for kind, count in Counter(kinds).items()})

    def _tell_ended(self, ids: Collection[int]) -> None:
        self._on_ended(ids)
        self._neighbours.ended(ids)
        self.runner.preemption.returned(ids)

    def _tell_ended_unrun(self, ids: Collection[int]) -> None:
        if ids:  # with them a group may have ended for which something waits, now or until a later moment
            self.scheduler.wake_all()
            self.alarm.look()
        self._on_ended(ids)
        self._neighbours.ended_unrun(ids)

    def _expired(self, ids: Collection[int]) -> None:
        self._tell_ended_unrun(ids)
        self._hooks.expired(list(ids), self._store.get)

    def _refused(self, kind: str, count: int) -> None:
        self._neighbours.refused(kind, count)
        kept = self.reservation.kept
        if kept is not None and self.acceptance.is_refused(kept.kind, kept.id):
            self.scheduler.look_at_unfit()  # what is kept for it is free for others now

    def heard(self, news: Message) -> None:
        """A peer has said this; none of it is believed, all of it is a reason to look."""
        self.scheduler.wake(news.new)
        if self.reservation.kept is not None and self.reservation.kept.kind in news.started:
            self.scheduler.look_at_unfit()  # it may have been taken elsewhere
        if news.freed:
            self.scheduler.wake(self._permits.takers(news.freed))
        if news.due:
            self.alarm.look()
        if news.hello is not None and news.hello.bye and news.hello.kinds:
            self._stand_in()
        if news.control:
            self._pace.watch()
            self._pace.look_now()
        if LOOK in news.cancel:
            self._canceller.look()
        for task_id in news.cancel:
            self.cancel(task_id)

    def _stand_in(self) -> None:
        """Whoever leaves may be the only one who had heard of some work, or who had set the alarm for it."""
        self.scheduler.wake_all()
        self.alarm.look()

    # ------------------------------------------------------------ what else there is to do

    def due_in(self, seconds: float) -> None:
        """Something is due after `seconds`."""
        self.alarm.due_in(seconds)

    def cancel(self, task_id: int) -> None:
        """If it runs here, ask its body to end, provided that the store says so too."""
        self._canceller.wish(task_id)

    # ------------------------------------------------------------ stop

    async def drained(self) -> None:
        """Return when no live task is left that this node could run; no idle hook makes more of them from now on."""
        self._idle.close()
        await self._idle.ended()
        backlog = Backlog(
            self._store,
            self._kinds,
            self._settings.queues,
            look=self._admission.look,
            is_refused=self.acceptance.is_refused,
        )
        await backlog.ends(self._clock, self._is_busy, lambda: self.runner.admitted, self._has_stopped.is_set)
        await self.completer.flushed()

    def _is_busy(self) -> bool:
        return bool(self.runner.running) or self.scheduler.is_claiming

    def announce_stop(self) -> None:
        """The node is about to stop: from now on nothing that dies here charges a crash. From any thread, and from a
        signal handler; the stop itself does it too."""
        self.runner.is_stopping = True
        self.membership.announce_stop()

    async def stop(self, grace: float | None) -> None:
        """Stop in order; `grace` seconds for running bodies, None for as long as they take."""
        if self._stopping is None:
            self._stopping = self.loop.create_task(self._stop(grace))
        await asyncio.shield(self._stopping)

    @property
    def was_abandoned(self) -> bool:
        """Whether bodies that would not end were given back while they ran: the process must end now."""
        return self.ending.was_abandoned

    @property
    def must_exit(self) -> bool:
        """Whether something goes on here that nothing else can end: a body, or a callback."""
        return self.was_abandoned or self._callbacks.was_abandoned

    async def stopped(self) -> None:
        """Return when somebody has stopped the node."""
        await self._has_stopped.wait()

    async def _stop(self, grace: float | None) -> None:
        self.membership.close()
        self.presence.close()
        self.scheduler.close()
        self.acceptance.close()
        self._idle.close()
        self.announce_stop()
        await self.membership.stop_announced()
        await self.scheduler.settled()
        await self.ending.end_bodies(grace)
        try:
            async with asyncio.timeout(self._settings.lease):
                await self.completer.flushed()
        except TimeoutError:
            self._logger.error("some outcomes could not be written before the lease was over; their tasks run again")
        await self._hooks.ended()
        await self._idle.ended()
        for duty in self._duties:
            await duty.stop()
        await self._callbacks.ended()
        await self._leave_for_good()

    async def _leave_for_good(self) -> None:
        if self._peers is not None:
            self._peers.say_goodbye()
            self._peers.resident = None
        await self.membership.resign()
        if not self.was_abandoned:
            await self._slots.close()
            await self._executor.close()
        self._logger.info("node %s has stopped", self.id)
        self._has_stopped.set()
