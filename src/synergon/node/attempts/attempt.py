"""An attempt while it runs: its claim, its deadline, and the reason to stop it, if any."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from enum import Enum, auto
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from synergon.context import AttemptLink, Context, OpenTransaction
from synergon.errors import PayloadError, SynergonError
from synergon.model.attempts import BatchItem, UnfinishedTask
from synergon.model.claims import Claim
from synergon.model.dependencies import Dependency
from synergon.model.outcomes import Failed, FencedOutcome, Outcome, Progress, Retrying, ServerFault, Succeeded
from synergon.options.overrides import Overrides, RunsIn
from synergon.policies import Retry
from synergon.providers.server import Server
from synergon.stores.base import TaskTransaction
from synergon.task import AnyTask

if TYPE_CHECKING:
    from synergon.model.tracer import Tracer
    from synergon.node.attempts.dependency_results import DependencyReader
    from synergon.node.attempts.task_transaction import NodeTaskTransaction
    from synergon.node.processes.child_pool import ChildRun


Value = TypeVar("Value")


class Stop(Enum):
    """The reasons for which a running attempt is asked to end."""

    TIMEOUT = auto()
    CANCEL = auto()
    SHUTDOWN = auto()
    LEASE_LOST = auto()
    CORDON = auto()
    PREEMPTED = auto()
    """The attempt yields to an urgent task."""
    NO_CHILD = auto()
    """The task was claimed ahead, and no child process has become free for it in time."""


class Attempt:
    """The state of a running attempt. Only the node's event loop uses it; a task function uses a Context."""

    __slots__ = (
        "asyncio_task",
        "capacity_wait",
        "child",
        "claim",
        "cost",
        "deadline",
        "dependencies",
        "dependency_error",
        "extended_by",
        "fixed_outcome",
        "has_begun",
        "has_seen_stop",
        "held_back_by",
        "is_discarded",
        "is_isolated",
        "is_own_fault",
        "is_suspect",
        "is_unreadable",
        "leader",
        "limit_key",
        "members",
        "misfit",
        "outcome",
        "overrides",
        "progress",
        "protected_until",
        "retry",
        "runs_in",
        "scheduled_for",
        "server",
        "started_at",
        "stop",
        "task_type",
        "thread",
        "timeout",
        "transaction",
        "waits_for_child",
    )

    def __init__(self, claim: Claim, task_type: AnyTask) -> None:
        self.claim: Claim = claim
        self.task_type: Final = task_type
        self.runs_in: RunsIn = task_type.policy.runs_in
        self.retry: Retry = task_type.policy.retry
        self.timeout: float | None = None
        self.cost: Mapping[str, int] = task_type.weight.cost
        """The capacity that the attempt uses: resources, and a child process if its task function runs in one."""
        self.stop: Stop | None = None
        self.has_begun: bool = False
        """Whether the task function has started. Before that, the task can be handed back as if it had never been
        claimed."""
        self.has_seen_stop: bool = False
        """Whether the task function knows of the request to end. If so, what it returns is not a result."""
        self.asyncio_task: asyncio.Task[Any] | None = None
        """The asyncio task that a request to end cancels. None if there is none to cancel."""
        self.thread: threading.Thread | None = None
        """The thread that runs the task function, set and cleared by that thread."""
        self.child: ChildRun | None = None
        self.waits_for_child: bool = False
        """Whether the task was claimed ahead and waits for a child process to become free."""
        self.deadline: float | None = None
        """The moment, by the event loop's clock, at which the attempt times out. None while the task function does not
        run."""
        self.extended_by: int = 0
        """How many microseconds of the extension in the task's row the timeout already includes."""
        self.progress: Progress | None = None
        """Progress that the task function has reported and that is not written yet."""
        self.server: Server | None = None
        self.capacity_wait: asyncio.Future[None] | None = None
        """The future that resolves when the attempt gets its capacity. None if the attempt does not wait for
        capacity."""
        self.protected_until: float = 0.0
        """The moment, by the monotonic clock, until which the task is not preempted, because it has yielded before."""
        self.scheduled_for: int | None = None
        """The nominal moment of the occurrence for which a schedule created the task."""
        self.overrides: Overrides | None = None
        """The options of the task that replace those of its kind. None if it has none."""
        self.dependencies: tuple[Dependency, ...] = ()
        """The dependencies of the task. They are read before the task function starts, if the function or its arguments
        need them."""
        self.dependency_error: BaseException | None = None
        """Why the dependencies could not be read. None if they were read, or are not needed."""
        self.held_back_by: DependencyReader | None = None
        """The reader that holds the attempt back until its dependencies are read. None if the attempt is not held
        back."""
        self.started_at: float = 0.0
        """When the attempt started, by the monotonic clock. Set only for kinds with hooks or an `on_final_failure`
        function, which get the duration."""
        self.transaction: NodeTaskTransaction | None = None
        self.misfit: PayloadError | None = None
        """Why the attempt cannot run: its options or arguments do not fit the task function. None if they do."""
        self.is_own_fault: bool = False
        """Whether an error says nothing about the server's health, because the task function asked for it or a value
        did not fit."""
        self.is_unreadable: bool = False
        """Whether the row of the task is damaged, so that no other node could run the task either."""
        self.is_suspect: bool = False
        """Whether the process of the last attempt died. A child process that runs this attempt then runs no other
        task."""
        self.is_isolated: bool = False
        """Whether the attempt runs in a child process only because the task is a suspect."""
        self.limit_key: str | None = None
        """The limit key of a task whose producer could not compute it. The attempt only assigns the key; the task
        function does not run."""
        self.members: list[Attempt] = []
        """The other items of the batch that this attempt leads. The leader alone has the slot, the capacity and the
        deadline; its members have a claim and an outcome of their own."""
        self.leader: Attempt | None = None
        """The attempt that leads the batch of this member. None for a leader, and for a task that runs alone."""
        self.is_discarded: bool = False
        """Whether the task was cancelled while its batch runs: its result is discarded."""
        self.fixed_outcome: Outcome | None = None
        """The outcome of an item that is left out of its batch, for instance because its payload does not fit.
        Otherwise None."""
        self.outcome: Outcome | None = None
        """The outcome of a member. None if the member has the outcome of its leader."""

    @property
    def is_uninterruptible(self) -> bool:
        """Whether the attempt goes on when the node stops: its function is uninterruptible and has started."""
        return self.has_begun and self.task_type.policy.uninterruptible

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts: that of the task's row, otherwise that of its retry policy."""
        return self.claim.max_attempts or self.retry.attempts

    @property
    def is_batch(self) -> bool:
        """Whether the task function takes a list of items."""
        return self.task_type.policy.batch is not None

    @property
    def tracer(self) -> Tracer | None:
        """The tracer of the engine. None if it is not traced."""
        return self.task_type.engine._connection.tracer

    @property
    def items(self) -> list[Attempt]:
        """This attempt, followed by the members of the batch that it leads."""
        return [self, *self.members]

    @property
    def included(self) -> list[Attempt]:
        """The items that the task function gets, without those that are left out."""
        return [item for item in self.items if item.fixed_outcome is None]

    @property
    def batch_items(self) -> tuple[BatchItem, ...]:
        """The included items as records for the task function. Empty if the function does not run batches."""
        if not self.is_batch:
            return ()
        claims = (item.claim for item in self.included)
        return tuple(BatchItem(task_id=one.id, attempt=one.attempts, meta_json=one.meta) for one in claims)

    def cancel(self) -> None:
        """Discard the result of this task. The task function is asked to end only if all items of its batch are
        discarded."""
        self.is_discarded = True
        execution = self.leader or self
        if all(item.is_discarded for item in execution.items):
            execution.ask_to_stop(Stop.CANCEL)

    def ask_to_stop(self, why: Stop) -> None:
        """Request the end of the attempt. A coroutine is cancelled, and a child process is killed; a function in a
        thread can only read the request. The first reason counts, but any other reason replaces CORDON and
        PREEMPTED."""
        if self.stop not in (None, Stop.CORDON, Stop.PREEMPTED) or self.stop is why:
            return
        self.stop = why
        if self.asyncio_task is not None:
            self.asyncio_task.cancel()
        if self.child is not None:
            self.child.kill()
        if self.held_back_by is not None:
            self.held_back_by.let_go(self)

    def request_hand_back(self) -> None:
        """Note that a cordoned node wants the task function to end, and that the function knows it. From then on, what
        the function returns is not a result. Nothing is cancelled."""
        if self.stop is None:
            self.stop = Stop.CORDON
        self.has_seen_stop = True

    def unfinished(self) -> UnfinishedTask:
        """The thread that runs the task function, and the line that it executes, for the report of unfinished tasks."""
        thread = self.thread
        frame = None if thread is None else sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  documented
        location = None if frame is None else location_of(frame)
        name = None if thread is None else thread.name
        return UnfinishedTask(id=self.claim.id, kind=self.claim.kind, thread=name, location=location)

    def fenced(self, outcome: Outcome) -> FencedOutcome:
        """The outcome with the fence of the claim, for the store."""
        claim = self.claim
        if not self.task_type.is_limited and claim.group_id is None and not claim.has_dependents:
            return FencedOutcome(id=claim.id, claim_no=claim.claim_no, outcome=outcome, progress=self.progress)
        is_well = None if self.server is None else self._is_server_well(outcome)
        return FencedOutcome(
            id=claim.id,
            claim_no=claim.claim_no,
            outcome=outcome,
            progress=self.progress,
            limit_key=claim.limit_key,
            group_id=claim.group_id,
            has_dependents=claim.has_dependents,
            server=(self.server.provider, self.server.address) if self.server and is_well is not None else None,
            is_server_well=is_well is not False,
            slot=claim.slot,
            kind=claim.kind,
        )

    def _is_server_well(self, outcome: Outcome) -> bool | None:
        """Whether the outcome shows that the server is healthy. None if the outcome says nothing about the server."""
        match outcome:
            case Succeeded() if not self.task_type.is_command:
                return True
            case _ if self.task_type.is_command:  # a command repairs a server, or takes it down
                return None
            case ServerFault():
                return False
            case Failed() | Retrying():
                return None if self.is_own_fault else False
            case _:  # a crash is a failure of this process, anything else one of the task
                return None


class LocalLink(AttemptLink):
    """The link between the node and a task function that runs in this process."""

    __slots__ = ("_attempt", "_node")

    def __init__(self, node: Services, attempt: Attempt) -> None:
        self._node = node
        self._attempt = attempt

    @property
    def cancel_requested(self) -> bool:
        """Whether the end of the attempt was requested. Notes that the task function has read the request."""
        if self._attempt.stop is not None:
            self._attempt.has_seen_stop = True
            return True
        return False

    @property
    def tracer(self) -> Tracer | None:
        """The tracer of the engine."""
        return self._attempt.tracer

    @property
    def stopped_by(self) -> str | None:
        """Why the end of the attempt was requested. None if it was not."""
        stop = self._attempt.stop
        return None if stop is None else stop.name.lower()

    def report(self, progress: Progress) -> None:
        """Pass progress to the node, which writes it to the store."""
        self._node.report_progress(self._attempt, progress)

    def extend_timeout(self, seconds: float) -> None:
        """Move the deadline of the attempt."""
        self._node.extend_timeout(self._attempt, seconds)

    async def still_owned(self) -> bool:
        """Whether the claim is still current in the store and the attempt may go on."""
        return await self._node.still_owned(self._attempt) or self._note_stop_seen()

    def still_owned_sync(self) -> bool:
        """`still_owned` for a task function in a thread."""
        is_owned = self._node.call_from_thread(self._node.still_owned(self._attempt), "await ctx.still_owned()")
        return is_owned or self._note_stop_seen()

    def _note_stop_seen(self) -> Literal[False]:
        """Note that the task function knows of the request to end, if there is one. What it returns then is not a
        result. Always returns False."""
        self._attempt.has_seen_stop |= self._attempt.stop is not None
        return False

    def transaction(self) -> OpenTransaction:
        """The transaction that is committed together with the success of the task."""
        from synergon.node.attempts.task_transaction import NodeTaskTransaction

        if self._attempt.transaction is None:
            self._attempt.task_type.uses_transaction = True
            self._attempt.transaction = NodeTaskTransaction(self._node)
        return self._attempt.transaction


class Services(ABC):
    """The services that a node offers to its running task functions."""

    loop: asyncio.AbstractEventLoop

    def call_from_thread(self, coroutine: Coroutine[Any, Any, Value], instead: str) -> Value:
        """Run a coroutine on the event loop for a task function in a thread, and wait for it. Raises if it is called on
        the event loop, which it would block for ever."""
        if asyncio._get_running_loop() is self.loop:  # noqa: SLF001  the documented one raises where there is none
            coroutine.close()
            raise SynergonError(f"this would block the event loop; in a coroutine write `{instead}`")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    @abstractmethod
    def report_progress(self, attempt: Attempt, progress: Progress) -> None:
        """Queue the progress of an attempt; the completer writes it to the store."""

    @abstractmethod
    def extend_timeout(self, attempt: Attempt, seconds: float) -> None:
        """Move the deadline of the attempt."""

    @abstractmethod
    async def still_owned(self, attempt: Attempt) -> bool:
        """Whether the claim is still current in the store and the attempt may go on."""

    @abstractmethod
    async def begin(self) -> TaskTransaction:
        """Open a transaction of the store."""


def location_of(frame: FrameType) -> str:
    """The file, line and function that a frame executes, as text."""
    last = traceback.extract_stack(frame)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"


def context_of(attempt: Attempt, link: AttemptLink) -> Context:
    """The context that the task function gets."""
    claim = attempt.claim
    return Context(
        link,
        task_id=claim.id,
        kind=claim.kind,
        queue=claim.queue,
        attempt=claim.attempts,
        claim_no=claim.claim_no,
        tags=claim.tags,
        meta=claim.meta,
        server=attempt.server,
        scheduled_for=attempt.scheduled_for,
        dependencies=attempt.dependencies,
        items=attempt.batch_items,
    )
