"""The runner: runs one attempt, from its claim to its outcome.

Every attempt that is passed to `run` leads to exactly one outcome. Its slot is released only when the task function has
really ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from synergon.context import Context, fill_in
from synergon.errors import PayloadError, StoreError, SynergonError
from synergon.model.claims import LAST_CLAIM_NO, Claim
from synergon.model.clock import Clock
from synergon.model.lifecycle import State
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    Failed,
    HandedBack,
    KeyAssigned,
    Outcome,
    Refused,
    Retrying,
    Succeeded,
)
from synergon.model.record import READ_ERRORS
from synergon.model.requirements import (
    PROCESS,
    UNREADABLE_REQUIREMENTS,
    bound_cost,
    parse_requirements,
    with_kind_defaults,
)
from synergon.node.attempts import outcomes
from synergon.node.attempts.attempt import Attempt, LocalLink, Services, Stop, context_of
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.deadlines import Deadlines, Timeouts
from synergon.node.attempts.middleware import MiddlewareChain, wrap_child
from synergon.node.callbacks.hooks import Hooks
from synergon.node.capacity.bounds import bounds_by_kind
from synergon.node.capacity.preemption import Preemption
from synergon.node.claims.ledger import Ledger
from synergon.node.processes.child_attempts import ChildAttempts
from synergon.node.processes.executors import Executor
from synergon.node.signals import Signals
from synergon.options.overrides import NO_TIMEOUT, Overrides, RunsIn
from synergon.providers.server import Server
from synergon.stores.contention import Contention, RolledBack
from synergon.task import AnyTask

Value = TypeVar("Value")

_OVERRIDES: Final = msgspec.json.Decoder(Overrides)


async def _uninterrupted(work: Coroutine[Any, Any, Value]) -> Value:
    """Finish this coroutine even if the asyncio task is cancelled, so that a late cancellation cannot prevent the
    outcome."""
    doing = asyncio.ensure_future(work)
    while not doing.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(doing)
    return doing.result()


def _runs_in(task_type: AnyTask, requested: RunsIn) -> RunsIn:
    """Where the task function of this claim runs: on the event loop, in a thread or in a child process. Of the
    producer's answer (`requested`) only "process" is used: a producer that does not have the function cannot know
    whether it is a coroutine."""
    if requested == "process":
        return requested
    return "loop" if task_type.is_coroutine else "thread"


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
        signals: Signals,
    ) -> None:
        self._kinds = kinds
        self._services = services
        self._completer = completer
        self._executor = executor
        self._clock = clock
        self._logger = logger
        self._timeouts = timeouts
        self._hooks = hooks
        self._labels: dict[tuple[str, str], dict[str, Any]] = {}
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
        )
        self.running = running
        self.is_idle = asyncio.Event()
        """Set while no attempt runs."""
        self.is_idle.set()
        self.admitted = 0
        """How many attempts have been admitted since the node was made."""
        self.node_id = ""

    def admit(self, claims: list[Claim]) -> list[Attempt]:
        """Make an attempt of each claim, and take a slot and the capacity for it."""
        if self._hooks.feed.subscribers:
            self._hooks.feed.started(claims, self.node_id)
        attempts = [self._prepare(claim) for claim in claims]
        if self._preemption.is_needed:
            self._preemption.admit(attempts)
        else:
            for attempt in attempts:
                self._ledger.take(attempt.claim.kind, is_command=attempt.task_type.is_command, cost=attempt.cost)
        self.running.update((attempt.claim.id, attempt) for attempt in attempts)
        self.admitted += len(attempts)
        if attempts:
            self.is_idle.clear()
        return attempts

    async def run(self, attempt: Attempt) -> None:
        """Run an attempt to its outcome, and pass the outcome to the completer."""
        claim = attempt.claim
        outcome: Outcome | None
        try:
            outcome = await self._execute(attempt)
            if attempt.transaction is not None:
                outcome = await _uninterrupted(self._close_transaction(attempt, outcome))
        except Exception as error:  # noqa: BLE001  an error of the engine must not lose the claim
            outcome = outcomes.of_error(attempt, error, self.node_id, self._clock.chance)
        self.running.pop(claim.id, None)
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
        self._signals.capacity_freed()

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
        attempt = self.running.get(task_id)
        if attempt is not None:
            attempt.ask_to_stop(why)

    def set_extension(self, attempt: Attempt, extended_by: int) -> None:
        """Give an attempt the time, in microseconds, by which the row of its task says that its timeout is extended."""
        more = extended_by - attempt.extended_by
        if more > 0:
            attempt.extended_by = extended_by
            self._deadlines.extend(attempt, more / 1_000_000)

    # ------------------------------------------------------------ before the task function

    def _prepare(self, claim: Claim) -> Attempt:
        attempt = Attempt(claim, self._kinds[claim.kind])
        attempt.timeout = self._timeouts.of_kind(attempt.task_type)
        if attempt.task_type.is_limited:
            self._assign_key(attempt)
        if claim.requirements:
            self._apply_requirements(attempt)
        if self._bounds:
            attempt.cost = {**attempt.cost, **bound_cost(self._bounds.get(claim.kind, ()), claim.queue)}
        if claim.overrides is not None:
            try:
                self._apply(_OVERRIDES.decode(claim.overrides), attempt)
            except (*READ_ERRORS, SynergonError) as error:  # the other tasks of the claim can run
                attempt.misfit = PayloadError(f"the options of task {claim.kind!r} cannot be read: {error}")
        if claim.claim_no >= LAST_CLAIM_NO:
            attempt.is_unreadable = True
            attempt.misfit = PayloadError(f"the claim number of task {claim.kind!r} cannot grow any more")
        if claim.protected_for:
            attempt.protected_until = self._clock.monotonic() + claim.protected_for / 1_000_000
        if attempt.is_suspect and PROCESS in attempt.cost:
            attempt.is_isolated = attempt.runs_in != "process"
            attempt.runs_in = "process"
        return attempt

    @staticmethod
    def _apply_requirements(attempt: Attempt) -> None:
        """Use the requirements that the claim has used. A task whose requirements are unreadable is claimed to be
        ended."""
        parsed, task_type = parse_requirements(attempt.claim.requirements), attempt.task_type
        attempt.cost = with_kind_defaults(parsed, task_type.weight, is_isolable=task_type.is_isolable).cost
        attempt.is_suspect = parsed.is_suspect
        if parsed is UNREADABLE_REQUIREMENTS:
            attempt.is_unreadable = True
            attempt.misfit = PayloadError(f"the requirements of task {attempt.claim.kind!r} cannot be read")

    def _assign_key(self, attempt: Attempt) -> None:
        claim, task_type = attempt.claim, attempt.task_type
        if claim.server is not None and task_type.provider is not None:
            provider = task_type.provider.name
            labels = self._labels.setdefault((provider, claim.server), {})
            attempt.server = Server(claim.server, provider, claim.slot or 0, labels)
        if task_type.key_template is None or claim.limit_key is not None:
            return
        try:  # a producer without the task function could not compute the limit key
            attempt.limit_key = task_type.key_template.key(task_type.signature.decode(claim.payload))
        except PayloadError as error:
            attempt.misfit = error

    @staticmethod
    def _apply(overrides: Overrides, attempt: Attempt) -> None:
        if overrides.timeout is not None:
            attempt.timeout = None if overrides.timeout == NO_TIMEOUT else overrides.timeout
        attempt.retry = overrides.retry or attempt.retry
        attempt.scheduled_for = overrides.scheduled_for
        if overrides.runs_in is not None:
            attempt.runs_in = _runs_in(attempt.task_type, overrides.runs_in)

    # ------------------------------------------------------------ the task function

    async def _execute(self, attempt: Attempt) -> Outcome:
        is_given_up = (
            attempt.capacity_wait is not None and attempt.stop is None and not await self._gets_capacity(attempt)
        )
        if attempt.stop is not None:  # asked to end before it started
            return outcomes.of_stop(attempt, self.node_id, self._clock.chance)
        if is_given_up:
            return HandedBack()
        if attempt.misfit is None and attempt.limit_key is not None:
            return KeyAssigned(limit_key=attempt.limit_key)
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
            return await self._in_process(attempt, arguments)
        finally:
            self._deadlines.disarm(attempt)

    @staticmethod
    def _arguments(attempt: Attempt) -> dict[str, Any]:
        if attempt.misfit is not None:
            raise attempt.misfit
        return attempt.task_type.signature.decode(attempt.claim.payload)

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
        return await wrap_child(attempt, context, run, self._deadlines, partial(self._outcome_of, attempt, context))

    async def _in_process(self, attempt: Attempt, arguments: dict[str, Any]) -> Outcome:
        signature = attempt.task_type.signature
        context: Context | None = None
        if signature.injected or attempt.task_type.around:
            context = context_of(attempt, LocalLink(self._services, attempt))
            arguments.update(fill_in(signature.injected, context))
        positional = signature.take_positional(arguments)
        run = self._on_loop if attempt.runs_in == "loop" else self._in_thread
        if context is not None and attempt.task_type.around:
            body = partial(run, attempt, positional, arguments)
            value, error = await MiddlewareChain(attempt, context).run(body)
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
            try:
                return attempt.task_type.function(*positional, **arguments), None
            except BaseException as error:  # noqa: BLE001  whatever the task function raised is its outcome
                return None, error

        pair: tuple[Any, BaseException | None] = await self._executor.run_in_thread(
            partial(copy_context().run, run_function), is_command=attempt.task_type.is_command
        )
        return pair

    def _outcome_of(
        self, attempt: Attempt, context: Context | None, value: Any, error: BaseException | None
    ) -> Outcome:
        if attempt.stop is not None and self._is_stop_the_outcome(attempt, error):
            return outcomes.of_stop(attempt, self.node_id, self._clock.chance)
        if error is not None:
            return self._failing(attempt, error)
        try:
            result = attempt.task_type.signature.encode_result(value)
        except PayloadError as misfit:
            return outcomes.of_error(attempt, misfit, self.node_id, self._clock.chance)
        return Succeeded(result=result, children=context.children if context is not None else ())

    def _failing(self, attempt: Attempt, error: BaseException) -> Outcome:
        if attempt.transaction is not None and outcomes.find_control(error) is None:
            error = attempt.transaction.explain(error)
        if isinstance(error, RolledBack):
            self._logger.warning("task %d (%s) is not charged: %s", attempt.claim.id, attempt.claim.kind, error)
            return outcomes.of_rolled_back(attempt, error, self.node_id, self._clock.chance)
        return outcomes.of_error(attempt, error, self.node_id, self._clock.chance)

    @staticmethod
    def _is_stop_the_outcome(attempt: Attempt, error: BaseException | None) -> bool:
        """Whether the request to end is the outcome, and not what the task function returned or raised. If the function
        returned without knowing of a stop of the node or a preemption, its value is the result."""
        return attempt.stop in (Stop.TIMEOUT, Stop.CANCEL) or error is not None or attempt.has_seen_stop

    # ------------------------------------------------------------ after the task function

    def _note_failing(self, attempt: Attempt, outcome: Outcome) -> None:
        if attempt.stop is Stop.PREEMPTED and isinstance(outcome, HandedBack):
            self._preemption.hand_back_started(attempt)
        self._log(attempt, outcome)

    def _log(self, attempt: Attempt, outcome: Outcome) -> None:
        """Log an outcome that is an error."""
        match outcome:
            case Retrying(error=error, delay=delay):
                then = f"runs again in {delay / 1_000_000:.3g} s"
            case Failed(error=error, reason=reason):
                then = f"has failed for good ({reason})"
            case Crashed(error=error):
                then = "took its process down"
            case Refused(error=error):
                then = "is left to other nodes"
            case _:
                return
        claim = attempt.claim
        self._logger.warning(
            "task %d (%s), attempt %d of %d: %s: %s; it %s",
            claim.id,
            claim.kind,
            claim.attempts,
            attempt.max_attempts,
            error.type,
            error.message.partition("\n")[0],
            then,
            extra={"task_id": claim.id, "kind": claim.kind},
        )

    async def _close_transaction(self, attempt: Attempt, outcome: Outcome) -> Outcome | None:
        """Commit the writes of the task function together with its success, or roll them back. Returns the outcome that
        the completer must write; None if it was committed."""
        transaction = attempt.transaction
        assert transaction is not None
        if transaction.opened is None or not isinstance(outcome, Succeeded):
            await transaction.rollback()
            return outcome
        fenced = attempt.fenced(outcome)
        try:
            verdict = await transaction.finish(fenced)
        except Contention as error:  # the other transaction has committed: this one runs again, without a charge
            self._logger.info("task %d (%s) runs again: %s", attempt.claim.id, attempt.claim.kind, error)
            return HandedBack()
        except StoreError as error:
            return self._failing(attempt, error)
        if verdict.state is State.SUCCEEDED:
            self._completer.announce_now(fenced, verdict)
            return None
        return outcome if verdict.state is None else Cancelled()  # rolled back; the completer writes it
