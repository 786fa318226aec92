"""A node: composes the duties, and owns the order in which they start and stop.

Stop: stop claiming → wait (grace) → ask the rest to end → flush outcomes → give back what did not finish → drop the
node's row. Idempotent; a second call waits for the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from synergon.clock import Clock, new_id
from synergon.durations import microseconds
from synergon.errors import StoreError, StoreUnavailable, SynergonError
from synergon.lifecycle import LIVE, State
from synergon.node.admission import Admission
from synergon.node.alarm import Alarm
from synergon.node.attempt import Attempt, Services, Stop
from synergon.node.canceller import Canceller
from synergon.node.completer import Completer
from synergon.node.duty import Duty, pause_after
from synergon.node.executors import Executor, Keeper
from synergon.node.feed import Subscriber
from synergon.node.hooks import Hooks
from synergon.node.lease import PARTS, Lease
from synergon.node.ledger import Ledger
from synergon.node.neighbours import Neighbours
from synergon.node.orders import Orders
from synergon.node.pace import Pace
from synergon.node.pruner import Pruner
from synergon.node.reaper import Reaper
from synergon.node.runner import Runner
from synergon.node.scheduler import Scheduler
from synergon.node.settlements import handed_back
from synergon.node.sharing import Sharing
from synergon.node.slots import Slots
from synergon.node.strays import Strays
from synergon.node.timeouts import TimeoutFor, Timeouts
from synergon.node.watchdog import Watchdog
from synergon.peering.peers import Peers
from synergon.peering.post import Lane
from synergon.peering.wire import LOOK, Message
from synergon.records import Claim, NewNode, Progress, Settlement
from synergon.settings import Settings
from synergon.stores.base import BodyTransaction, Store
from synergon.task import AnyTask
from synergon.version import VERSION

LAST_SECONDS: Final = 2.0
"""How long bodies that were asked to end may take before something is said, or done, about it."""

DRAIN_LOOK_SECONDS: Final = 0.05
DRAIN_LOOK_SHARE: Final = 0.1
"""How much of its time a node may spend on the question whether anything is left; a backlog is long to count."""


class Node(Services):
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
        subscribers: Sequence[Subscriber] = (),
        on_stop: Callable[[], None] = lambda: None,
        may_exit: bool = False,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.id = ""
        self._store = store
        self._kinds = dict(kinds)
        self._settings = settings
        self._clock = clock
        self._executor = executor
        self._on_ended = on_ended
        self._peers = peers
        self._on_stop = on_stop
        self._may_exit = may_exit
        self._logger = NodeLogger(logger, {"node": settings.name})
        self._timeouts = Timeouts(settings.timeout, timeout_for, self._logger)
        self._hooks = Hooks(clock, self._logger, subscribers)
        self._sharing = Sharing(self._kinds)
        self._ledger = Ledger(settings.concurrency, settings.child_processes)
        self._pace = Pace(settings.sweep, clock)
        self._address: str | None = None
        self._taken: list[Claim] = []
        self._build()
        self._lease: Lease | None = None
        self._keeper: Keeper | None = None
        self._freed = asyncio.Event()
        self._has_stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self.was_abandoned = False
        """Bodies that would not end were given back while they ran: the process must end now."""

    def _build(self) -> None:
        store, clock, logger, settings = self._store, self._clock, self._logger, self._settings
        self.completer = Completer(
            store,
            clock,
            logger,
            on_ended=self._tell_ended,
            on_ready=self.made_ready,
            on_scheduled=self.due_in,
            on_freed=self._places_freed,
            on_writing=self._outcomes_leave,
            on_written=self._outcomes_written,
            hooks=self._hooks,
        )
        self.runner = Runner(
            self._kinds,
            self,
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
        admission = Admission(self._kinds, self._ledger, settings.queues)
        self._neighbours = Neighbours(self._peers, admission)
        self.scheduler = Scheduler(
            store, admission, self._kinds, self._start, on_surplus=self._neighbours.offer_surplus
        )
        self._strays = Strays(
            store,
            clock,
            known=lambda: self.runner.running.keys() | self.completer.unwritten,
            settle=self.completer.add,
            doubt_seconds=settings.lease,
        )
        self._orders = Orders(store, self.scheduler, logger, on_stop=self._on_stop)
        self.alarm = Alarm(
            store,
            clock,
            logger,
            on_ready=self.made_ready,
            on_ended=self._expired,
            on_moment=self._moment_passed,
            rated=self._sharing.rated,
        )
        self.reaper = Reaper(
            store,
            self._executor,
            clock,
            logger,
            beat_seconds=settings.lease / PARTS,
            on_ready=self.made_ready,
            on_ended=self._tell_ended_unrun,
            on_nodes=self._neighbours.learn,
            on_reaped=self._hooks.feed.reaped,
        )
        steps = {
            "completer": self.completer.step,
            "reports": self.completer.report_step,
            "scheduler": self._schedule,
            "canceller": self._canceller.step,
            "alarm": self.alarm.step,
            "reaper": self.reaper.step,
            "pruner": Pruner(store, clock, settings.retention).step,
            "sweep": self._sweep,
        }
        if store.capabilities.listens:
            steps["listener"] = self._listen
        self._duties = [Duty(name, step, clock, logger) for name, step in steps.items()]

    # ------------------------------------------------------------ start

    async def start(self) -> None:
        """Register, and begin to work."""
        if self._peers is not None:
            self._address = await self._peers.serve()
            self._peers.resident = self
        await self._join()
        for duty in self._duties:
            duty.start()
        self._logger.info(
            "node %s (%s) runs %d kinds, %d at once",
            self.id,
            self._settings.name,
            len(self._kinds),
            self._ledger.concurrency,
        )

    async def _join(self) -> None:
        """Become a node under a new id, with a lease of its own."""
        node_id = self.id = new_id(self._clock)
        settings = self._settings
        asked_at = self._clock.monotonic()  # the store cannot count the lease from earlier
        await self._store.register(
            NewNode(
                id=self.id,
                name=settings.name,
                process=self._executor.identity,
                kinds=tuple(sorted(self._kinds)),
                queues=tuple(sorted(settings.queues)) if settings.queues is not None else None,
                concurrency=settings.concurrency,
                lease=microseconds(settings.lease),
                version=VERSION,
                address=self._address,
            )
        )
        if self._peers is not None:
            self._peers.say_hello()
        self.scheduler.node_id = self.runner.node_id = self.id
        self._lease = Lease(
            self._store.keeper,
            self.id,
            settings.lease,
            self._clock,
            self._logger,
            asked_at=asked_at,
            on_lost=self._fence,
            # What runs after the node has joined again, under another id, is not this lease's business.
            is_quiet=lambda: self.id != node_id or not self.runner.running,
            exit_process=self._executor.exit_process,
        )
        self._keeper = self._executor.start_keeper(self._keep(self._lease))

    def _keep(self, lease: Lease) -> Callable[[asyncio.Event], Any]:
        watchdog = Watchdog(self.loop, self._clock, self._logger, lambda: list(self.runner.running.values()))

        async def keep(end: asyncio.Event) -> None:
            watching = asyncio.ensure_future(watchdog.watch(end))
            try:
                await lease.keep(end)
            finally:
                watching.cancel()

        return keep

    # ------------------------------------------------------------ work

    async def _schedule(self) -> None:
        await self.scheduler.woken()
        while self.completer.is_troubled:  # claims are held back while outcomes cannot be written
            await self._clock.sleep(pause_after(1))
        await self._strays.give_back(self.id)
        self._neighbours.claim_begins()
        try:
            await self.scheduler.step()
        except StoreUnavailable:
            self._strays.doubt()
            raise
        self._neighbours.claim_is_over(self.scheduler.leftover)
        self._neighbours.freed(self._sharing.left_over(self._taken))
        self._taken = []
        self._canceller.claim_is_over()

    def _start(self, claims: list[Claim]) -> None:
        self._neighbours.started(claims)
        self._taken = claims
        if self._sharing.rated and any(claim.kind in self._sharing.rated for claim in claims):
            self.alarm.look()  # the next one has its turn now
        if self.scheduler.is_open and self._lease is not None and not self._lease.is_over:
            self._slots.submit(self.runner.admit(claims))
            self._canceller.claimed(claim.id for claim in claims)
        else:  # the node was told to stop, or lost its lease or stood still, while the claim was under way
            self._give_back(claims)

    def _give_back(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self.completer.add(handed_back(claim))

    def _places_freed(self, kinds: Iterable[str | None]) -> None:
        """Tasks of these kinds have ended, and the store knows."""
        self.scheduler.wake(self._sharing.freed(kinds))

    def _outcomes_leave(self, batch: Iterable[Settlement]) -> None:
        """Where writes are done in order, the next claim may be asked for now, and share the commit of these."""
        if self._store.capabilities.in_order and self._sharing.is_any:
            self.scheduler.wake(self._sharing.about_to_end(settlement.kind for settlement in batch))

    def _outcomes_written(self, kinds: Iterable[str | None]) -> None:
        freed = self._sharing.freed(kinds)
        # A claim in flight came after these outcomes, and has seen what they freed; without one, somebody has to look.
        if not (self._store.capabilities.in_order and self.scheduler.is_claiming):
            self.scheduler.wake(freed)

    def _moment_passed(self) -> None:
        """The store's clock has reached a moment at which something may be possible that was not."""
        self.scheduler.wake(self._sharing.pooled)

    def _note_free(self) -> None:
        self.scheduler.capacity_freed()
        if not self.runner.running:
            self._freed.set()

    async def _sweep(self) -> None:
        await self._pace.rest()
        self._pace.adapt(is_restless=bool(self.runner.running) or not self._neighbours.are_well)
        self.scheduler.wake_all()
        self.alarm.look()
        await self._orders.obey(self.id)
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

    # ------------------------------------------------------------ peers

    @property
    def free(self) -> int:
        """How many tasks could start here."""
        return self._ledger.free if self.scheduler.may_claim else 0

    def full(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Those of the kinds of which none could start here, whatever slots are free."""
        return self._neighbours.full(kinds)

    def announce(self, work: Mapping[Lane, int]) -> None:
        """There are so many new tasks in these lanes: start what fits, and tell peers of the rest."""
        self.scheduler.wake(kind for kind, _ in work)
        self._neighbours.offer(work, is_open=self.scheduler.may_claim)

    def made_ready(self, kinds: Iterable[str]) -> None:
        """The same where the queues are not known: one task for each time that a kind is named."""
        self.announce({(kind, None): count for kind, count in Counter(kinds).items()})

    def _tell_ended(self, ids: Collection[int]) -> None:
        self._on_ended(ids)
        self._neighbours.ended(ids)

    def _tell_ended_unrun(self, ids: Collection[int]) -> None:
        if ids:  # with them a group may have ended for which something waits
            self.scheduler.wake_all()
        self._on_ended(ids)
        self._neighbours.ended_unrun(ids)

    def _expired(self, ids: Collection[int]) -> None:
        self._tell_ended_unrun(ids)
        self._hooks.expired(list(ids), self._store.get)

    def heard(self, news: Message) -> None:
        """A peer has said this; none of it is believed, all of it is a reason to look."""
        self.scheduler.wake(news.new)
        if news.freed:
            self.scheduler.wake(self._sharing.takers(news.freed))
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

    # ------------------------------------------------------------ services for bodies

    def report_progress(self, attempt: Attempt, progress: Progress) -> None:
        """Store it soon; safe from any thread."""
        is_waiting = attempt.progress is not None
        attempt.progress = progress
        if not is_waiting:  # one that is not written yet has told the completer already
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self.loop.call_soon_threadsafe(self.completer.progressed, attempt)

    async def still_owned(self, attempt: Attempt) -> bool:
        """Whether the claim is still the one in the store, and nobody wants the body to end."""
        if self._lease is None or self._lease.is_lost or attempt.stop is not None:
            return False
        (record,) = await self._store.get([attempt.claim.id])
        return (
            record is not None
            and record.state is State.RUNNING
            and record.claim_no == attempt.claim.claim_no
            and not record.cancel_requested
        )

    async def begin(self) -> BodyTransaction:
        """A store transaction; it may not be held so long that the lease is in danger."""
        return await self._store.begin(self._settings.lease / 3)

    # ------------------------------------------------------------ the lease is lost

    def _fence(self, node_id: str) -> None:
        """Called from the lease's thread, also while the loop is blocked."""
        self._logger.error("node %s has lost its lease: it stops its work, and joins again under a new id", node_id)
        self.scheduler.close()
        self._executor.kill_children()
        self.loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self.runner.stop_all(Stop.LEASE_LOST)
        if self._stopping is None:
            self._rejoining = self.loop.create_task(self._rejoin())

    async def _rejoin(self) -> None:
        await self.scheduler.settled()
        await self._until_idle()
        failures = 0
        while True:
            try:
                await self._join()
                break
            except StoreError as error:
                failures += 1
                if failures == 1:
                    self._logger.warning("the node waits for the store to join again: %s", error)
                await self._clock.sleep(pause_after(failures))
        self._logger.info("joined again as node %s", self.id)
        self.scheduler.reopen()

    # ------------------------------------------------------------ stop

    async def drained(self) -> None:
        """Return when no live task is left that this node could run."""
        while not self._has_stopped.is_set():
            asked_at = self._clock.monotonic()
            if not self.runner.running and not await self._has_work():
                break
            taken = self._clock.monotonic() - asked_at
            await self._clock.sleep(max(DRAIN_LOOK_SECONDS, taken / DRAIN_LOOK_SHARE))
        await self.completer.flushed()

    async def _has_work(self) -> bool:
        try:
            paused = {queue.name for queue in await self._store.queues() if queue.is_paused}
            counts = await self._store.counts()
        except StoreError:
            return True
        queues = self._settings.queues
        return any(
            state in LIVE and kind in self._kinds and queue not in paused and (queues is None or queue in queues)
            for queue, kind, state in counts
        )

    def refuse_stop_from_inside(self) -> None:
        """A body that stops its own node, and gives running bodies all the time they want, would wait for itself."""
        current = asyncio.current_task()
        if any(attempt.asyncio_task is current for attempt in self.runner.running.values()):
            raise SynergonError(
                "a body cannot stop its own engine with grace=None: it would wait for itself; give a grace"
            )

    async def stop(self, grace: float | None) -> None:
        """Stop in order; `grace` seconds for running bodies, None for as long as they take."""
        if self._stopping is None:
            self._stopping = self.loop.create_task(self._stop(grace))
        await asyncio.shield(self._stopping)

    async def stopped(self) -> None:
        """Return when somebody has stopped the node."""
        await self._has_stopped.wait()

    async def _stop(self, grace: float | None) -> None:
        if self._rejoining is not None:  # it would open the scheduler again
            self._rejoining.cancel()
        self.scheduler.close()
        await self.scheduler.settled()
        if not await self._idle_within(grace):
            self.runner.stop_all(Stop.SHUTDOWN)
            await self._wait_for_the_last()
        try:
            async with asyncio.timeout(self._settings.lease):
                await self.completer.flushed()
        except TimeoutError:
            self._logger.error("some outcomes could not be written before the lease was over; their tasks run again")
        await self._hooks.ended()
        for duty in self._duties:
            await duty.stop()
        await self._leave_for_good()

    async def _leave_for_good(self) -> None:
        if self._keeper is not None:
            await self._keeper.stop()
        if self._peers is not None:
            self._peers.say_goodbye()
            self._peers.resident = None
        try:
            await self._store.unregister(self.id)
        except StoreError as error:
            self._logger.warning("the node's row could not be removed: %s", error)
        if not self.was_abandoned:
            await self._slots.close()
            await self._executor.close()
        self._logger.info("node %s has stopped", self.id)
        self._has_stopped.set()

    async def _wait_for_the_last(self) -> None:
        """Coroutines and children end soon; a thread ends when it ends."""
        if await self._idle_within(LAST_SECONDS):
            return
        left = [f"{attempt.claim.id} ({attempt.claim.kind})" for attempt in self.runner.running.values()]
        if self._may_exit:
            self._logger.warning("gives back tasks whose bodies would not end: %s", ", ".join(left))
            self.was_abandoned = True
            self._give_back(attempt.claim for attempt in self.runner.running.values())
            return
        self._logger.warning("waits for bodies that will not end: %s", ", ".join(left))
        await self._until_idle()

    async def _idle_within(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._until_idle()
        except TimeoutError:
            return False
        return True

    async def _until_idle(self) -> None:
        while self.runner.running:
            self._freed.clear()
            await self._freed.wait()


class NodeLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the node's name to every record, beside what the call adds."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Join what the node and the call add."""
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs
