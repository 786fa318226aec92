"""A node: composes its parts, and owns the order in which they start and stop.

Order of a stop: mark the node's row as stopping → stop claiming → wait (grace) → request the end of attempts → write
outcomes → hand back what did not finish → delete the node's row. A second call of `stop` waits for the first. If task
functions do not end, and the process may not exit, the last two steps follow when the functions have ended.

Long, because all parts are created and connected here, and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from synergon.errors import StoreUnavailable
from synergon.model.attempts import UnfinishedTask
from synergon.model.claims import Claim
from synergon.model.clock import Clock
from synergon.model.node_status import NO_HINTS, HintStatus, NodeStatus
from synergon.model.nodes import HEARTBEATS_PER_LEASE, NodeRecord
from synergon.model.schedules import NewSchedule
from synergon.model.task_statistics import LATENCIES, Buckets
from synergon.node.attempts.attempt import Attempt
from synergon.node.attempts.attempt_services import AttemptServices
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.deadlines import Deadlines, Timeouts
from synergon.node.attempts.dependency_results import DependencyReader
from synergon.node.attempts.final_failure import FinalFailures
from synergon.node.attempts.outcomes import handed_back
from synergon.node.attempts.runner import Runner
from synergon.node.attempts.slots import Slots
from synergon.node.callbacks.callbacks import Callbacks
from synergon.node.callbacks.event_feed import ServerSubscriber, Subscriber
from synergon.node.callbacks.hooks import Hooks
from synergon.node.callbacks.idle_hooks import IdleHooks
from synergon.node.capacity.acceptance import Acceptance, acceptance_polls
from synergon.node.capacity.bounds import bound_totals
from synergon.node.capacity.preemption import Preemption
from synergon.node.capacity.reservation import Reservation
from synergon.node.claims.admission import Admission
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.scheduler import Scheduler
from synergon.node.claims.shared_permits import SharedPermits
from synergon.node.claims.short_kinds import ShortKinds
from synergon.node.duties.alarm import Alarm
from synergon.node.duties.backlog import Backlog
from synergon.node.duties.canceller import Canceller
from synergon.node.duties.cordon import Cordon
from synergon.node.duties.depth_recorder import DepthRecorder
from synergon.node.duties.live_counter import LiveCounter
from synergon.node.duties.operator_actions import OperatorActions
from synergon.node.duties.pruner import Pruner
from synergon.node.duties.schedule_alarm import ScheduleAlarm
from synergon.node.duties.server_probes import ServerProbes, probes_of
from synergon.node.duties.shutdown import Shutdown
from synergon.node.duties.sweep import SweepInterval, SweepMode
from synergon.node.duties.unknown_kinds import UnknownKinds
from synergon.node.duty import Duty, pause_after
from synergon.node.hint_sender import HintSender
from synergon.node.liveness.lost_claims import LostClaims
from synergon.node.liveness.membership import Membership
from synergon.node.liveness.reaper import Reaper
from synergon.node.liveness.status import StatusPublisher
from synergon.node.processes.executors import Executor
from synergon.node.signals import Host, NodeSignals, ResultWaiters
from synergon.node.statistics_writer import StatisticsWriter
from synergon.node.store_outage import StoreOutage
from synergon.options.idle_hook import IdleHook
from synergon.options.settings import Settings
from synergon.peering.peers import Peers
from synergon.peering.router import ReadyGroupName
from synergon.peering.wire import TOO_MANY_IDS, Message
from synergon.stores.base import Store
from synergon.task import AnyTask

if TYPE_CHECKING:
    from synergon.client.unrunnable_warning import ChildrenToCheck

COMPLETER: Final = "completer"
"""The name of the duty that writes outcomes."""
SCHEDULER: Final = "scheduler"
"""The name of the duty that claims."""
SWEEP: Final = "sweep"
"""The name of the duty that looks for tasks that were not announced."""

LEAST_AT_ONCE: Final = 100
"""With a store in another process, one claim requests at most half of the slots, or this number if that is more: while
the store works on one half, the other half runs."""


class Node:
    """Runs tasks of an engine's kinds until it is stopped."""

    runner_type: type[Runner] = Runner
    """The class that runs attempts. Tests replace it."""

    def __init__(
        self,
        store: Store,
        kinds: Mapping[str, AnyTask],
        settings: Settings,
        clock: Clock,
        executor: Executor,
        logger: logging.LoggerAdapter[logging.Logger],
        *,
        waiters: ResultWaiters,
        host: Host | None = None,
        peers: Peers | None = None,
        timeouts: Timeouts | None = None,
        idle_hooks: Sequence[IdleHook] = (),
        schedules: Mapping[str, NewSchedule] = MappingProxyType({}),
        subscribers: Sequence[Subscriber] = (),
        server_subscribers: Sequence[ServerSubscriber] = (),
        children_to_check: ChildrenToCheck | None = None,
        statistics: StatisticsWriter | None = None,
        may_exit: bool = False,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.store = store
        self._kinds = dict(kinds)
        self._settings = settings
        self.clock = clock
        self._executor = executor
        self._peers = peers
        self._logger = logger
        self._timeouts = timeouts or Timeouts(settings.timeout, None, logger)
        self.signals: Final = NodeSignals(self, waiters, host)
        beat_seconds = settings.lease / HEARTBEATS_PER_LEASE
        self.statistics: Final = statistics or StatisticsWriter(store, clock, beat_seconds)
        self.metrics: Final = self.statistics.metrics
        self.children_to_check = children_to_check
        self._sweep_interval = SweepInterval(settings.sweep, clock)
        self.schedules: Final = ScheduleAlarm(
            store, clock, logger, self.signals, declared=schedules, kinds=self._kinds, metrics=self.metrics
        )
        self._callbacks = Callbacks(logger)
        self.hooks: Final = Hooks(clock, logger, self._callbacks, subscribers, server_subscribers)
        self.outage: Final = StoreOutage(clock, logger)
        self.completer: Final = Completer(store, clock, logger, self.signals, self.hooks, self.outage, self.metrics)
        bounds = bound_totals(settings.queues, self._kinds.values())
        self.ledger: Final = Ledger(settings.concurrency, settings.child_processes, bounds, threads=settings.threads)
        self._running: dict[int, Attempt] = {}
        self._compose_claims()
        self._compose_attempts()
        self._compose_membership(may_exit=may_exit)
        self._compose_duties(idle_hooks)
        self._has_stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._remainder: asyncio.Task[None] | None = None
        """Waits for the task functions that did not end when the node was stopped. None if all have ended."""

    def _compose_claims(self) -> None:
        """Create the parts that decide what to claim."""
        store, clock, logger, settings = self.store, self.clock, self._logger, self._settings
        self.preemption: Preemption = Preemption(self._kinds, self.ledger, self._running, clock, logger, self.signals)
        self.permits: SharedPermits = SharedPermits(self._kinds, settings.queue_names, settings.labels, self.ledger)
        self.reservation: Reservation = Reservation(
            self._kinds,
            self._running,
            self._timeouts,
            self.loop,
            reserve_seconds=settings.lease,
            signals=self.signals,
        )
        self._short_kinds = ShortKinds(self._kinds, self.ledger)
        self._admission = Admission(
            self._kinds,
            self.ledger,
            settings.queue_names,
            labels=settings.labels,
            reservation=self.reservation,
            preemption=self.preemption,
            most_at_once=max(settings.concurrency // 2, LEAST_AT_ONCE) if store.capabilities.remote else None,
            short_kinds=self._short_kinds,
        )
        self.hints: HintSender = HintSender(self._peers, self._admission)
        self.acceptance: Acceptance = Acceptance(
            acceptance_polls(store, self._admission, self._kinds, clock, logger, self._callbacks, self.signals)
        )
        self.reservation.acceptance = self.acceptance
        self.scheduler: Scheduler = Scheduler(
            store,
            self._admission,
            self._kinds,
            self.signals,
            completer=self.completer,
            permits=self.permits,
            acceptance=self.acceptance,
            clock=clock,
            metrics=self.metrics,
        )

    def _compose_attempts(self) -> None:
        """Create the parts that run attempts, from a claim to its outcome."""
        store, clock, logger, settings = self.store, self.clock, self._logger, self._settings
        deadlines = Deadlines(self.loop, self._running, self.completer)
        services = AttemptServices(
            self.loop, store, self.completer, deadlines, self.scheduler, hold_seconds=settings.lease / 3
        )
        self.runner: Runner = self.runner_type(
            self._kinds,
            services,
            self._running,
            self.ledger,
            self.preemption,
            self.completer,
            self._executor,
            clock,
            logger,
            url=store.url,
            timeouts=self._timeouts,
            deadlines=deadlines,
            hooks=self.hooks,
            short_kinds=self._short_kinds,
            final_failures=FinalFailures(store, services, self.completer, self._callbacks, clock, logger),
            signals=self.signals,
            metrics=self.metrics,
        )
        self.slots: Slots = Slots(self.runner, clock)
        self.dependencies: DependencyReader = DependencyReader(store, self.slots.submit)
        self.canceller: Canceller = Canceller(store, self.runner)
        self._lost_claims = LostClaims(store, clock, self.runner, self.completer, check_seconds=settings.lease)

    def _compose_membership(self, *, may_exit: bool) -> None:
        """Create the parts that register the node, renew its lease and stop it."""
        store, clock, logger, settings = self.store, self.clock, self._logger, self._settings
        self.shutdown: Shutdown = Shutdown(self.runner, self.completer, logger, may_exit=may_exit)
        self.cordon: Cordon = Cordon(
            store,
            self.scheduler,
            self.runner,
            self.completer,
            logger,
            signals=self.signals,
            sweep=self._sweep_interval,
        )
        self.status_publisher: StatusPublisher = StatusPublisher(
            self.loop,
            self._admission,
            self.ledger,
            self._running,
            self.scheduler,
            self.cordon,
            self.schedules.declared.keys(),
            lease_seconds=settings.lease,
            hint_status=self._hint_status,
        )
        self._operator_actions = OperatorActions(store, self.cordon, logger, self.signals)
        self.membership: Membership = Membership(
            store,
            self._kinds,
            settings,
            self._executor,
            clock,
            logger,
            runner=self.runner,
            scheduler=self.scheduler,
            status=self.status_publisher,
            cordon=self.cordon,
            operator_actions=self._operator_actions,
            signals=self.signals,
        )

    def _compose_duties(self, idle_hooks: Sequence[IdleHook]) -> None:
        """Create the loops that run from `start` to `stop`."""
        store, clock, logger, settings = self.store, self.clock, self._logger, self._settings
        self.idle_hooks: IdleHooks = IdleHooks(
            idle_hooks, clock, logger, self._callbacks, scheduler=self.scheduler, admission=self._admission
        )
        self.alarm: Alarm = Alarm(store, clock, logger, self.signals, rated=self.permits.rated)
        self.reaper: Reaper = Reaper(
            store, self._executor, clock, logger, self.signals, beat_seconds=settings.lease / HEARTBEATS_PER_LEASE
        )
        self.server_probes: ServerProbes = ServerProbes(
            store, probes_of(self._kinds.values()), clock, logger, self._callbacks, self.hooks.feed, self.signals
        )
        self._pruner = Pruner(store, clock, logger, settings)
        steps = {
            COMPLETER: self.completer.step,
            "reports": self.completer.report_step,
            SCHEDULER: self._schedule,
            "unfit tasks": self.scheduler.unfit_step,
            "canceller": self._cancel_step,
            "alarm": self.alarm.step,
            "schedules": self.schedules.step,
            "reaper": self.reaper.step,
            "pruner": self._pruner.step,
            "statistics": self.statistics.step,
            "depth recorder": DepthRecorder(store, clock).step,
            "unknown kinds": UnknownKinds(store, clock, logger).step,
            SWEEP: self._sweep,
            **self.acceptance.steps,
        }
        if store.capabilities.listens:
            steps["listener"] = self._listen
        if store.capabilities.scans_to_count:
            steps["live counter"] = LiveCounter(store, clock).step
        if self.children_to_check is not None:
            steps["unrunnable warning"] = self.children_to_check.step
        if self.idle_hooks.hooks:
            steps["idle hooks"] = self.idle_hooks.step
        if self.server_probes.probes:
            steps["server probes"] = self.server_probes.step
        self._duties = [Duty(name, step, clock, logger, self.outage) for name, step in steps.items()]

    @property
    def hint_requests(self) -> tuple[int, int]:
        """The number of requests with hints that peers have answered, and the number without an answer."""
        return (0, 0) if self._peers is None else self._peers.hint_requests

    def _hint_status(self) -> HintStatus:
        return NO_HINTS if self._peers is None else self._peers.hint_status

    @property
    def hint_seconds(self) -> Buckets:
        """How long peers took to answer requests with hints."""
        return Buckets(LATENCIES) if self._peers is None else self._peers.hint_seconds

    @property
    def is_stopping(self) -> bool:
        """Whether the node stops or has stopped. Safe from any thread."""
        return self._stopping is not None

    @property
    def regular_duties(self) -> list[Duty]:
        """The duties that must end a step within each sweep interval: the sweep, and the claims that it wakes."""
        names = {SWEEP, SCHEDULER} if self._kinds else {SWEEP}
        return [duty for duty in self._duties if duty.name in names]

    @property
    def lease_seconds(self) -> float:
        """The length of the node's lease."""
        return self._settings.lease

    @property
    def sweep_seconds(self) -> float:
        """The current interval between two sweeps."""
        return self._sweep_interval.seconds

    @property
    def sweep_mode(self) -> SweepMode:
        """How the interval is chosen: `fixed`, `often` or `seldom`."""
        return self._sweep_interval.mode

    @property
    def id(self) -> str:
        """The current id of the node. It changes when the node joins again."""
        return self.membership.id

    # ------------------------------------------------------------ start

    async def start(self) -> None:
        """Detect the resources of the machine, register the node, and start the duties."""
        self.ledger.totals |= await self._executor.resources() | self._settings.resources.amounts()
        if self._peers is not None:
            self.membership.address = await self._peers.serve()
            self._peers.node = self
        await self.schedules.declare()
        await self._pruner.declare()
        await self.membership.join()
        for duty in self._duties:
            duty.start()
        self._logger.info(
            "node %s (%s) runs %d %s, %d at once, and %s",
            self.id,
            self._settings.name,
            len(self._kinds),
            "kind" if len(self._kinds) == 1 else "kinds",
            self.ledger.concurrency,
            f"listens on {self.membership.address}" if self.membership.address else "does not listen",
        )

    # ------------------------------------------------------------ claims

    async def _schedule(self) -> None:
        await self.scheduler.woken()
        while self.completer.is_store_failing:  # claims are held back while outcomes cannot be written
            await self.clock.sleep(pause_after(1))
        if self._lost_claims.must_check:
            await self._lost_claims.hand_back(self.id)
        self.hints.claim_begins()
        try:
            taken = await self.scheduler.step()
        except StoreUnavailable:
            self._lost_claims.claim_failed()
            raise
        self.hints.claim_is_over(self.scheduler.leftover)
        if self.permits.is_needed:
            self.hints.freed(self.permits.leftover_limits(taken))
        if self.canceller.requested_before_start:
            self.canceller.claim_is_over()
        if self.idle_hooks.hooks:
            self.idle_hooks.check_soon()

    def hand_back(self, claims: Iterable[Claim]) -> None:
        """Hand claims back without starting them."""
        for claim in claims:
            self.completer.add(handed_back(claim))

    async def _cancel_step(self) -> None:
        await self.canceller.step(self.id)

    def announce_join(self) -> None:
        """Send the peers a hint that this node has joined."""
        if self._peers is not None:
            self._peers.announce_join()

    async def _sweep(self) -> None:
        await self._sweep_interval.wait()
        self._sweep_interval.adapt(keep_short=bool(self.runner.running) or not self.hints.is_healthy)
        self.scheduler.wake_all()
        self.alarm.check_now()
        self.schedules.check_now()
        self.server_probes.check_now()
        await self._operator_actions.carry_out_pending(self.id)
        await self.cordon.check(self.id)
        if self.runner.running:
            self.canceller.check_soon()

    def check_everything(self) -> None:
        """Check all kinds, due tasks and operator actions. Called after a change that concerns every node."""
        self.scheduler.wake_all()
        self.alarm.check_now()
        self.schedules.check_now()
        self._sweep_interval.sweep_now()

    async def _listen(self) -> None:
        await self.store.listen(self._tasks_inserted)

    def _tasks_inserted(self, kinds: Iterable[str] | None) -> None:
        """Wake these kinds, or all kinds if `kinds` is None, and the alarm: a caller's own transaction has inserted
        tasks, ready or due later."""
        self.scheduler.wake(self._kinds if kinds is None else kinds)
        self.alarm.check_now()

    def watch(self) -> None:
        """Sweep often for a while: a caller's own transaction may insert tasks without a hint."""
        self._sweep_interval.sweep_often()

    # ------------------------------------------------------------ the node table

    def handle_nodes(self, nodes: Iterable[NodeRecord]) -> None:
        """Determine the contested limits from the rows of the nodes."""
        self.permits.update_contested(node for node in nodes if node.id != self.id)
        self.scheduler.choose_exchanged_kinds()

    # ------------------------------------------------------------ peers

    @property
    def free(self) -> int:
        """How many tasks can start here. 0 while the node may not claim."""
        return self.ledger.free if self.scheduler.may_claim else 0

    def state(self) -> NodeStatus:
        """The current status of the node. Cheap, and safe from any thread."""
        return self.status_publisher.current()

    def full(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """The kinds among these that have no capacity here: none of their tasks can start now."""
        return self.hints.full(kinds)

    def announce(self, work: Mapping[ReadyGroupName, int]) -> None:
        """Announce new tasks, counted by ready group: wake the scheduler, and send hints about tasks that do not fit
        here."""
        self.scheduler.wake(kind for kind, *_ in work)
        self.hints.offer(work, is_open=self.scheduler.may_claim)

    def handle_hints(self, hints: Message) -> None:
        """Act on hints from a peer. Hints are not trusted: each one only makes the node check the store."""
        self.scheduler.wake(hints.new)
        if self.reservation.reserved is not None and self.reservation.reserved.kind in hints.started:
            self.scheduler.wake_unfit()  # it may have been taken elsewhere
        if hints.freed:
            self.scheduler.wake(self.permits.takers(hints.freed))
        if hints.due:
            self.alarm.check_now()
        if hints.hello is not None and hints.hello.bye and hints.hello.kinds:
            self._peer_left()
        if hints.control:
            self._sweep_interval.sweep_often()
            self._sweep_interval.sweep_now()
        if TOO_MANY_IDS in hints.cancel:
            self.canceller.check_soon()
        for task_id in hints.cancel:
            self.cancel(task_id)

    def _peer_left(self) -> None:
        """Check all kinds and due tasks when a peer leaves: it may have been the only node that knew of some tasks, or
        had set the alarm."""
        self.scheduler.wake_all()
        self.alarm.check_now()

    # ------------------------------------------------------------ alarm and cancellation

    def due_in(self, seconds: float) -> None:
        """Set the alarm: a task is due after `seconds`."""
        self.alarm.due_in(seconds)

    def cancel(self, task_id: int) -> None:
        """Have the canceller check the store for a request to cancel the attempt of this task or to extend its
        timeout."""
        self.canceller.note_cancel_request(task_id)

    # ------------------------------------------------------------ stop

    async def drained(self) -> None:
        """Wait until no live task is left that this node could run. Idle hooks are not called from now on."""
        self.idle_hooks.close()
        await self.idle_hooks.wait_ended()
        backlog = Backlog(self.store, self._kinds, self._settings.queue_names, self._admission, self.acceptance)
        await backlog.ends(self.clock, self.runner, self.scheduler, self._has_stopped)
        await self.completer.flushed()

    def announce_stop(self) -> None:
        """Note that the node is going to stop. From now on the death of a child process is not charged as a crash: the
        child may have got the signal that stops the node. Safe from any thread and from a signal handler. `stop` calls
        it, too."""
        self.runner.announce_stop()

    async def stop(self, grace: float | None) -> None:
        """Stop the node in order. Running attempts get `grace` seconds; None waits for them without a limit. Afterwards
        `unfinished` has the task functions that did not end."""
        if self._stopping is None:
            self._stopping = self.loop.create_task(self._stop(grace))
        await asyncio.shield(self._stopping)

    @property
    def was_abandoned(self) -> bool:
        """Whether attempts that did not end were handed back while they ran. The process must then exit."""
        return self.shutdown.was_abandoned

    @property
    def unfinished(self) -> tuple[UnfinishedTask, ...]:
        """The tasks whose functions go on although the node was stopped. Safe from any thread."""
        if self._remainder is None:
            return ()
        is_over = self._remainder.done()
        return tuple(
            attempt.unfinished()
            for attempt in list(self.runner.running.values())
            if attempt.thread is not None or not is_over
        )

    async def ended(self) -> None:
        """Wait until the node has stopped and its last task function has ended. Never raises."""
        await self._has_stopped.wait()
        if self._remainder is not None:
            await asyncio.wait([self._remainder])

    @property
    def must_exit(self) -> bool:
        """Whether a task function or a callback still runs that only the exit of the process can end."""
        return self.was_abandoned or self._callbacks.was_abandoned

    async def stopped(self) -> None:
        """Wait until the node has stopped."""
        await self._has_stopped.wait()

    async def _stop(self, grace: float | None) -> None:
        self.membership.close()
        self.cordon.close()
        self.scheduler.close()
        self.acceptance.close()
        self.idle_hooks.close()
        self.announce_stop()
        self.status_publisher.update()
        self.membership.renew_soon()
        await self.scheduler.wait_until_idle()
        await self.shutdown.end_functions(grace)
        await self._flush()
        await self.idle_hooks.wait_ended()
        is_unfinished = bool(self.runner.running) and not self.was_abandoned
        for duty in self._duties:
            if not (is_unfinished and duty.name == COMPLETER):
                await duty.stop()
        if is_unfinished:
            self._leave_peers()
            self._remainder = self.loop.create_task(self._end_later(), name="synergon-unfinished")
            self._has_stopped.set()
            return
        await self._callbacks.wait_ended()
        self._leave_peers()
        await self._unregister()

    async def _flush(self) -> None:
        """Wait until all outcomes are written and all hooks have ended, for a limited time."""
        try:
            async with asyncio.timeout(self._settings.lease):
                await self.completer.flushed()
        except TimeoutError:
            self._logger.error("some outcomes could not be written before the lease was over; their tasks run again")
        await self.hooks.wait_ended()

    async def _end_later(self) -> None:
        """When the unfinished task functions end, write their outcomes, and then leave. The lease is renewed until
        then, so that no other node runs their tasks meanwhile."""
        await self.runner.is_idle.wait()
        await self._flush()
        for duty in self._duties:
            await duty.stop()
        await self._callbacks.wait_ended()
        await self._unregister()

    def _leave_peers(self) -> None:
        if self._peers is not None:
            self._peers.announce_leave()
            self._peers.node = None

    async def _unregister(self) -> None:
        await self.statistics.close()
        await self.membership.leave()
        if not self.was_abandoned:
            await self.slots.close()
            await self._executor.close()
        self._logger.info("node %s has stopped", self.id)
        self._has_stopped.set()
