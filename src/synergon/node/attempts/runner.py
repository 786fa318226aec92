"""The runner: runs one attempt, from its claim to its outcome.

Every attempt that is passed to `run` leads to exactly one outcome. Its slot is released only when the task function has
really ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from synergon.context import Context, fill_in
from synergon.errors import BatchErrors, PayloadError, StoreError
from synergon.model.claims import LAST_CLAIM_NO, Claim
from synergon.model.clock import Clock
from synergon.model.log_records import RunningTask, running_task
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    Failed,
    HandedBack,
    KeyAssigned,
    Outcome,
    Refused,
    Retrying,
    ServerFault,
    Succeeded,
)
from synergon.model.printable import LoggedTraceback, task_logger
from synergon.model.requirements import (
    PROCESS,
    bound_cost,
)
from synergon.node.attempts import claim_options, outcomes
from synergon.node.attempts.attempt import Attempt, LocalLink, Services, Stop, context_of
from synergon.node.attempts.batch_results import ends_of_items
from synergon.node.attempts.claim_options import ServerLabels
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.deadlines import Deadlines, Timeouts
from synergon.node.attempts.dependency_results import (
    NotEndedError,
    describe_unsuccessful,
    fill_in_results,
    items_of_map,
)
from synergon.node.attempts.final_failure import FinalFailures
from synergon.node.attempts.middleware import MiddlewareChain, wrap_child
from synergon.node.callbacks.hooks import Hooks
from synergon.node.capacity.bounds import bounds_by_kind
from synergon.node.capacity.preemption import Preemption
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.short_kinds import ShortKinds
from synergon.node.logger import NodeLogger
from synergon.node.metrics import Metrics
from synergon.node.processes.child_attempts import ChildAttempts
from synergon.node.processes.executors import Executor
from synergon.node.signals import Signals
from synergon.options.overrides import Overrides
from synergon.stores.contention import Contention, RolledBack
from synergon.stores.rules.finish import is_committed
from synergon.task import AnyTask

Value = TypeVar("Value")

NO_OVERRIDES: Final = Overrides()
DEPENDENCIES_DELAY: Final = 1_000_000
"""For how many microseconds a task is deferred if the results that it needs cannot be read."""


async def _uninterrupted(work: Coroutine[Any, Any, Value]) -> Value:
    """Finish this coroutine even if the asyncio task is cancelled, so that a late cancellation cannot prevent the
    outcome."""
    doing = asyncio.ensure_future(work)
    while not doing.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(doing)
    return doing.result()


class Runner:
    """Runs attempts, and holds those that are running."""

    def __init__(
        self,
        kinds: Mapping[str, AnyTask],
        services: Services,
        running: dict[int, Attempt],
        ledger: Ledger,
        preemption: Preemption,
        completer: Completer,
        executor: Executor,
        clock: Clock,
        logger: logging.LoggerAdapter[logging.Logger],
        *,
        url: str,
        timeouts: Timeouts,
        deadlines: Deadlines,
        hooks: Hooks,
        short_kinds: ShortKinds,
        final_failures: FinalFailures,
        signals: Signals,
        metrics: Metrics,
    ) -> None:
        self._kinds = kinds
        self._metrics = metrics
        self._services = services
        self._completer = completer
        self._executor = executor
        self._clock = clock
        self._logger = logger
        self._task_logger = NodeLogger(task_logger(logger.logger), logger.extra)
        self._node_name = str((logger.extra or {}).get("node", ""))
        self._timeouts = timeouts
        self._hooks = hooks
        self._final_failures = final_failures
        self._server_labels = ServerLabels()
        self._signals = signals
        self._loop = asyncio.get_running_loop()
        self._ledger = ledger
        self._bounds = bounds_by_kind(kinds, ledger.totals)
        self._preemption = preemption
        self._deadlines = deadlines
        self._child_attempts = ChildAttempts(
            services,
            executor,
            clock,
            logger,
            url=url,
            max_children=ledger.processes,
            deadlines=self._deadlines,
            short_kinds=short_kinds,
        )
        self._has_batches = any(task_type.policy.batch is not None for task_type in kinds.values())
        self.running = running
        self.members: dict[int, Attempt] = {}
        """The running members of batches. Their leaders are in `running`."""
        self.is_idle: Final = asyncio.Event()
        """Set while no attempt runs."""
        self.is_idle.set()
        self.admitted: int = 0
        """How many attempts have been admitted since the node was made."""
        self.node_id = ""

    def admit(self, claims: list[Claim]) -> list[Attempt]:
        """Make an attempt of each claim, and take a slot and the capacity for it."""
        if self._hooks.feed.subscribers:
            self._hooks.feed.started(claims, self.node_id)
        attempts = [self._prepare(claim) for claim in claims]
        if self._has_batches:
            attempts = self._lead_batches(attempts)
        if self._preemption.is_needed:
            self._preemption.admit(attempts)
        else:
            for attempt in attempts:
                self._ledger.take(attempt.claim.kind, is_command=attempt.task_type.is_command, cost=attempt.cost)
        self.running.update((attempt.claim.id, attempt) for attempt in attempts)
        self.admitted += len(attempts)
        if attempts:
            self.is_idle.clear()
        self._metrics.note_started(claims)
        return attempts

    def _lead_batches(self, attempts: list[Attempt]) -> list[Attempt]:
        """Add the members of batches to their leaders. Returns the attempts that need a slot: the leaders, and tasks
        without a batch."""
        executions: dict[int, Attempt] = {}
        for attempt in attempts:
            leader = executions.get(attempt.claim.batch_id or 0)
            if leader is None:
                executions[attempt.claim.id] = attempt
            else:
                attempt.leader = leader
                leader.members.append(attempt)
                self.members[attempt.claim.id] = attempt
        return list(executions.values())

    def find(self, task_id: int) -> Attempt | None:
        """The running attempt of this task, also if it is a member of a batch."""
        return self.running.get(task_id) or self.members.get(task_id)

    async def run(self, attempt: Attempt) -> None:
        """Run an attempt to its outcome, and pass the outcome to the completer."""
        claim = attempt.claim
        outcome: Outcome | None
        began_at = self._clock.monotonic()
        if attempt.task_type.final_failure is not None:
            attempt.started_at = began_at
        try:
            outcome = await self._execute(attempt)
            if attempt.transaction is not None:
                outcome = await _uninterrupted(self._close_transaction(attempt, outcome))
            if attempt.task_type.final_failure is not None and outcome is not None:
                outcome = await _uninterrupted(self._end_with_function(attempt, outcome))
        except Exception as error:  # noqa: BLE001  an error of the engine must not lose the claim
            outcome = outcomes.of_error(attempt, error, self.node_id, self._clock.chance)
        ran_for = self._clock.monotonic() - began_at
        self._metrics.note_run(claim, ran_for)
        self.running.pop(claim.id, None)
        for member in attempt.members:
            self._metrics.note_run(member.claim, ran_for)
            self.members.pop(member.claim.id, None)
        if not self.running:
            self.is_idle.set()
        if self._preemption.is_needed:
            self._preemption.release(attempt)
        else:
            self._ledger.release(claim.kind, is_command=attempt.task_type.is_command, cost=attempt.cost)
        if outcome is not None:
            if not isinstance(outcome, Succeeded):
                self._note_failing(attempt, outcome)
            self._completer.add(attempt.fenced(outcome))
            if attempt.members:
                self._end_members(attempt, outcome)
        self._signals.capacity_freed()

    def _end_members(self, attempt: Attempt, outcome: Outcome) -> None:
        for member in attempt.members:
            member.progress = attempt.progress
            own = outcomes.outcome_of_item(member, outcome)
            if not outcomes.is_same_error(own, outcome):  # one error of the whole batch is logged once
                self._log(member, own)
            self._completer.add(member.fenced(own))

    def announce_stop(self) -> None:
        """Note that the node is going to stop. Safe from any thread and from a signal handler."""
        self._child_attempts.is_stopping = True

    def stop_all(self, why: Stop) -> None:
        """Request the end of every running attempt. If the node stops, uninterruptible attempts that have started go
        on."""
        for attempt in list(self.running.values()):
            if why is not Stop.SHUTDOWN or not attempt.is_uninterruptible:
                attempt.ask_to_stop(why)

    def stop_waiting(self, why: Stop) -> None:
        """Request the end of all attempts whose task functions have not started: they wait for capacity, for a child
        process or for the event loop."""
        for attempt in list(self.running.values()):
            if not attempt.has_begun:
                attempt.ask_to_stop(why)

    def stop_one(self, task_id: int, why: Stop) -> None:
        """Request the end of one attempt, if it runs."""
        attempt = self.find(task_id)
        if attempt is not None and why is Stop.CANCEL:
            attempt.cancel()
        elif attempt is not None:
            attempt.ask_to_stop(why)

    def set_extension(self, attempt: Attempt, extended_by: int) -> None:
        """Extend the timeout of an attempt to `extended_by`, the extension in the row of its task, in microseconds."""
        more = extended_by - attempt.extended_by
        if more > 0:
            attempt.extended_by = extended_by
            self._deadlines.extend(attempt.leader or attempt, more / 1_000_000)

    # ------------------------------------------------------------ before the task function

    def _prepare(self, claim: Claim) -> Attempt:
        attempt = Attempt(claim, self._kinds[claim.kind])
        attempt.timeout = self._timeouts.of_kind(attempt.task_type)
        if attempt.task_type.is_limited:
            self._server_labels.assign(attempt)
            claim_options.assign_key(attempt)
        if claim.requirements:
            claim_options.apply_requirements(attempt)
        if self._bounds:
            attempt.cost = {**attempt.cost, **bound_cost(self._bounds.get(claim.kind, ()), claim.queue)}
        if claim.overrides is not None:
            claim_options.apply_overrides(attempt, claim.overrides)
        if claim.claim_no >= LAST_CLAIM_NO:
            attempt.is_unreadable = True
            attempt.misfit = PayloadError(f"the claim number of task {claim.kind!r} cannot grow any more")
        if claim.protected_for:
            attempt.protected_until = self._clock.monotonic() + claim.protected_for / 1_000_000
        if attempt.is_suspect and PROCESS in attempt.cost:
            attempt.is_isolated = attempt.runs_in != "process"
            attempt.runs_in = "process"
        return attempt

    # ------------------------------------------------------------ the task function

    async def _execute(self, attempt: Attempt) -> Outcome:
        is_given_up = (
            attempt.capacity_wait is not None and attempt.stop is None and not await self._gets_capacity(attempt)
        )
        if attempt.stop is not None:  # asked to end before it started
            return outcomes.of_stop(attempt, self.node_id, self._clock.chance)
        if is_given_up:
            return outcomes.of_all(attempt, HandedBack())
        if attempt.misfit is None and attempt.claim.has_dependencies:
            outcome = self._take_in_dependencies(attempt)
            if outcome is not None:
                return outcome
        if attempt.misfit is None and attempt.limit_key is not None:
            return KeyAssigned(limit_key=attempt.limit_key)
        if attempt.is_batch:
            return await self._execute_batch(attempt)
        if attempt.misfit is None and attempt.runs_in == "process":
            if attempt.task_type.hooks:
                self._hooks.started(attempt, self.node_id)
            return await self._in_child(attempt)
        try:
            arguments = self._arguments(attempt)
        except PayloadError as misfit:
            if attempt.task_type.hooks:
                self._hooks.watch(attempt, self.node_id)
            return outcomes.of_payload(attempt, misfit, self.node_id)
        if attempt.task_type.hooks:
            self._hooks.started(attempt, self.node_id)
        attempt.has_begun = True
        self._deadlines.arm(attempt)
        try:
            return await self._as_running_task(attempt, self._call_function(attempt, arguments))
        finally:
            self._deadlines.disarm(attempt)

    async def _execute_batch(self, attempt: Attempt) -> Outcome:
        """Run the task function with a list of all items whose payload fits. The others get their own outcome."""
        decoded: list[dict[str, Any]] = []
        for item in attempt.items:
            if item is not attempt and item.claim.has_dependencies:
                item.fixed_outcome = self._take_in_dependencies(item)
            try:
                if item.fixed_outcome is None:
                    decoded.append(self._arguments(item))
            except PayloadError as misfit:
                item.fixed_outcome = outcomes.of_payload(item, misfit, self.node_id)
            if item.task_type.hooks:
                watch = self._hooks.started if item.fixed_outcome is None else self._hooks.watch
                watch(item, self.node_id)
        if not decoded:
            return outcomes.of_each(attempt, lambda item: item.fixed_outcome or HandedBack())
        if attempt.runs_in == "process":
            return await self._in_child(attempt)
        attempt.has_begun = True
        self._deadlines.arm(attempt)
        try:
            arguments = attempt.task_type.signature.join_items(decoded)
            return await self._as_running_task(attempt, self._call_function(attempt, arguments))
        finally:
            self._deadlines.disarm(attempt)

    @staticmethod
    def _arguments(attempt: Attempt) -> dict[str, Any]:
        if attempt.misfit is not None:
            raise attempt.misfit
        try:
            return attempt.task_type.signature.decode(attempt.claim.payload)
        except PayloadError as misfit:
            if not attempt.dependencies or attempt.overrides is None:
                raise
            why = describe_unsuccessful(attempt.overrides, attempt.dependencies)
            raise PayloadError(f"{misfit}{why}") from misfit

    def _take_in_dependencies(self, attempt: Attempt) -> Outcome | None:
        """Put the results of dependencies into the arguments. Returns the outcome if the attempt ends here, because it
        is a map or its dependencies could not be read; otherwise None."""
        overrides, task_type, claim = attempt.overrides or NO_OVERRIDES, attempt.task_type, attempt.claim
        try:
            if attempt.dependency_error is not None:
                raise attempt.dependency_error
            if overrides.item is not None:
                items = items_of_map(overrides.item, task_type, claim, attempt.dependencies)
                return Succeeded(result=str(len(items)).encode(), children=items, is_map=True)
            if overrides.results or overrides.result_items:
                payload = fill_in_results(claim.payload, overrides, attempt.dependencies)
                attempt.claim = msgspec.structs.replace(claim, payload=payload)
            claim_options.assign_key(attempt, has_results=True)
        except PayloadError as misfit:
            attempt.misfit = misfit
        except (StoreError, NotEndedError) as error:
            self._logger.warning("task %d (%s) waits for its dependencies: %s", claim.id, claim.kind, error)
            return HandedBack(delay=DEPENDENCIES_DELAY)
        return None

    async def _gets_capacity(self, attempt: Attempt) -> bool:
        attempt.asyncio_task = asyncio.current_task()  # so that a cancellation ends the wait
        try:
            return await self._preemption.wait_for_capacity(attempt)
        except asyncio.CancelledError:
            if attempt.stop is None:
                raise
            return False
        finally:
            attempt.asyncio_task = None

    async def _in_child(self, attempt: Attempt) -> Outcome:
        if not attempt.task_type.around:
            return await self._child_attempts.run(attempt, self.node_id)
        context = context_of(attempt, LocalLink(self._services, attempt))
        run = partial(self._child_attempts.run, attempt, self.node_id)
        outcome_of = partial(self._outcome_of, attempt, context)
        return await self._as_running_task(attempt, wrap_child(attempt, context, run, self._deadlines, outcome_of))

    async def _as_running_task(self, attempt: Attempt, work: Coroutine[Any, Any, Value]) -> Value:
        """Await `work`. Log records that it writes name the task."""
        token = running_task.set(self._named(attempt))
        try:
            value = await work
        except GeneratorExit:  # closed with its event loop, and in another context, which does not know the token
            raise
        except BaseException:
            running_task.reset(token)
            raise
        running_task.reset(token)
        return value

    def _named(self, attempt: Attempt) -> RunningTask:
        return RunningTask(self._node_name, attempt.claim.id, attempt.claim.kind, attempt.claim.attempts)

    async def _call_function(self, attempt: Attempt, arguments: dict[str, Any]) -> Outcome:
        signature = attempt.task_type.signature
        context: Context | None = None
        if signature.injected or attempt.task_type.around:
            context = context_of(attempt, LocalLink(self._services, attempt))
            arguments.update(fill_in(signature.injected, context))
        positional = signature.take_positional(arguments)
        run = self._on_loop if attempt.runs_in == "loop" else self._in_thread
        if context is not None and attempt.task_type.around:
            call_function = partial(run, attempt, positional, arguments)
            value, error = await MiddlewareChain(attempt, context).run(call_function)
        else:
            value, error = await run(attempt, positional, arguments)
        return self._outcome_of(attempt, context, value, error)

    async def _on_loop(
        self, attempt: Attempt, positional: list[Any], arguments: dict[str, Any]
    ) -> tuple[Any, BaseException | None]:
        attempt.asyncio_task = asyncio.current_task(self._loop)
        try:
            return await attempt.task_type.function(*positional, **arguments), None
        except GeneratorExit as error:
            if not self._loop.is_running():  # it is being torn down
                raise
            return None, error
        except BaseException as error:  # noqa: BLE001  whatever the task function raised is its outcome
            return None, error
        finally:
            attempt.asyncio_task = None

    async def _in_thread(
        self, attempt: Attempt, positional: list[Any], arguments: dict[str, Any]
    ) -> tuple[Any, BaseException | None]:
        def run_function() -> tuple[Any, BaseException | None]:
            attempt.thread = threading.current_thread()
            try:
                return attempt.task_type.function(*positional, **arguments), None
            except BaseException as error:  # noqa: BLE001  whatever the task function raised is its outcome
                return None, error
            finally:
                attempt.thread = None

        pair: tuple[Any, BaseException | None] = await self._executor.run_in_thread(
            partial(copy_context().run, run_function), is_command=attempt.task_type.is_command
        )
        return pair

    def _outcome_of(
        self, attempt: Attempt, context: Context | None, value: Any, error: BaseException | None
    ) -> Outcome:
        if attempt.stop is not None and self._is_stop_the_outcome(attempt, error):
            return outcomes.of_stop(attempt, self.node_id, self._clock.chance)
        children = context.children if context is not None else ()
        signature = attempt.task_type.signature
        errors = error if attempt.is_batch and isinstance(error, BatchErrors) else None
        if error is not None and errors is None:
            return self._failing(attempt, error)
        try:
            if attempt.is_batch:
                ends = ends_of_items(signature, attempt.claim.kind, len(attempt.included), value, errors)
                return outcomes.of_items(attempt, ends, children, self.node_id, self._clock.chance)
            return Succeeded(result=attempt.task_type.encode_result(value), children=children)
        except PayloadError as misfit:
            return outcomes.of_error(attempt, misfit, self.node_id, self._clock.chance)

    def _failing(self, attempt: Attempt, error: BaseException) -> Outcome:
        if attempt.transaction is not None and outcomes.find_control(error) is None:
            error = attempt.transaction.explain(error)
        if isinstance(error, RolledBack):
            self._logger.warning("task %d (%s) is not charged: %s", attempt.claim.id, attempt.claim.kind, error)
            return outcomes.of_rolled_back(attempt, error, self.node_id, self._clock.chance)
        return outcomes.of_error(attempt, error, self.node_id, self._clock.chance)

    @staticmethod
    def _is_stop_the_outcome(attempt: Attempt, error: BaseException | None) -> bool:
        """Whether the outcome follows from the request to end, and not from what the task function returned or raised.
        If the function returned without knowing that the node stops or preempts it, its value is the result."""
        return attempt.stop in (Stop.TIMEOUT, Stop.CANCEL) or error is not None or attempt.has_seen_stop

    # ------------------------------------------------------------ after the task function

    def _note_failing(self, attempt: Attempt, outcome: Outcome) -> None:
        if attempt.stop is Stop.PREEMPTED and isinstance(outcome, HandedBack):
            self._preemption.hand_back_started(attempt)
        self._log(attempt, outcome)

    def _log(self, attempt: Attempt, outcome: Outcome) -> None:
        """Log an outcome that is an error. The final failure of a task is logged with its traceback."""
        level, traceback = logging.WARNING, None
        match outcome:
            case Retrying(error=error, delay=delay):
                then = f"runs again in {delay / 1_000_000:.3g} s"
            case Failed(error=error, reason=reason):
                then = f"has failed for good ({reason})"
                level, traceback = logging.ERROR, LoggedTraceback.info(error.traceback)
            case Crashed(error=error):
                then = "took its process down"
            case ServerFault(error=error):
                then = "blames its server, and runs again"
            case Refused(error=error):
                then = "is left to other nodes"
            case _:
                return
        claim = attempt.claim
        self._task_logger.log(
            level,
            "task %d (%s), attempt %d of %d: %s: %s; it %s",
            claim.id,
            claim.kind,
            claim.attempts,
            attempt.max_attempts,
            error.type,
            error.message.partition("\n")[0],
            then,
            exc_info=traceback,
            extra={"task_id": claim.id, "kind": claim.kind},
        )

    async def _end_with_function(self, attempt: Attempt, outcome: Outcome) -> Outcome | None:
        """Call `on_final_failure` if the outcome ends the task `failed`. Returns the outcome that the completer must
        write; None if the outcome is committed already."""
        left = await self._final_failures.end(attempt, outcome, self.node_id)
        if left is None:
            self._log(attempt, outcome)
        return left

    async def _close_transaction(self, attempt: Attempt, outcome: Outcome) -> Outcome | None:
        """Commit the writes of the task function together with its success, or roll them back. Returns the outcome that
        the completer must write; None if the outcome is committed already."""
        transaction = attempt.transaction
        assert transaction is not None
        ended = [(item, outcomes.outcome_of_item(item, outcome)) for item in attempt.items]
        if transaction.opened is None or not any(isinstance(own, Succeeded) for _, own in ended):
            await transaction.rollback()
            return outcome
        fenced = [item.fenced(own) for item, own in ended]
        try:
            verdicts = await transaction.finish(fenced)
        except Contention as error:  # the other transaction has committed: this one runs again, without a charge
            self._logger.info("task %d (%s) runs again: %s", attempt.claim.id, attempt.claim.kind, error)
            return outcomes.of_all(attempt, HandedBack())
        except StoreError as error:
            return self._failing(attempt, error)
        if is_committed(fenced, verdicts):
            for one, verdict in zip(fenced, verdicts, strict=True):
                self._completer.announce_now(one, verdict)
            return None
        is_stale = any(verdict.state is None for verdict in verdicts)  # rolled back; the completer writes what is left
        return outcomes.of_all(attempt, HandedBack() if is_stale else Cancelled())
