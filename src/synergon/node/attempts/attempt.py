"""An attempt while it runs: its claim, its deadline, and the reason to stop it, if any."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from synergon.context import AttemptLink, Context, OpenTransaction
from synergon.errors import PayloadError, SynergonError
from synergon.model.claims import Claim
from synergon.model.outcomes import Failed, FencedOutcome, Outcome, Progress, Retrying, Succeeded
from synergon.options.options import RunsIn
from synergon.policies import Retry
from synergon.providers.server import Server
from synergon.stores.base import TaskTransaction
from synergon.task import AnyTask

if TYPE_CHECKING:
    from synergon.node.attempts.task_transaction import NodeTaskTransaction
    from synergon.node.processes.child_pool import ChildRun


Value = TypeVar("Value")


class Stop(Enum):
    """Why an attempt was asked to end."""

    TIMEOUT = auto()
    CANCEL = auto()
    SHUTDOWN = auto()
    LEASE_LOST = auto()
    CORDON = auto()
    PREEMPTED = auto()
    """The attempt yields to an urgent task."""


class Attempt:
    """The state of a running attempt. It belongs to the node's event loop; task functions see it only through a
    Context."""

    __slots__ = (
        "asyncio_task",
        "capacity_wait",
        "child",
        "claim",
        "cost",
        "deadline",
        "has_begun",
        "has_seen_stop",
        "is_isolated",
        "is_own_fault",
        "limit_key",
        "misfit",
        "progress",
        "protected_until",
        "retry",
        "runs_in",
        "server",
        "started_at",
        "stop",
        "task_type",
        "timeout",
        "transaction",
    )

    def __init__(self, claim: Claim, task_type: AnyTask) -> None:
        self.claim = claim
        self.task_type = task_type
        self.runs_in: RunsIn = task_type.policy.runs_in
        self.retry: Retry = task_type.policy.retry
        self.timeout: float | None = None
        self.cost: Mapping[str, int] = task_type.weight.cost
        """The capacity that the attempt uses: resources, and a child process if its task function runs in one."""
        self.stop: Stop | None = None
        self.has_begun = False
        """The task function has started. Until then the task can be handed back as if it had never been claimed."""
        self.has_seen_stop = False
        """The task function has read `cancel_requested` while it was set."""
        self.asyncio_task: asyncio.Task[Any] | None = None
        """Set while an `async` task function runs."""
        self.child: ChildRun | None = None
        self.deadline: float | None = None
        """By the event loop's clock, while the task function runs."""
        self.progress: Progress | None = None
        """Progress that the task function has reported and that is not written yet."""
        self.server: Server | None = None
        self.capacity_wait: asyncio.Future[None] | None = None
        """Set while the attempt waits for capacity after its claim."""
        self.protected_until = 0.0
        """By the monotonic clock: until then the task is not preempted, because it has yielded before."""
        self.started_at = 0.0
        """By the monotonic clock; set only if a hook or event needs the duration."""
        self.transaction: NodeTaskTransaction | None = None
        self.misfit: PayloadError | None = None
        """Why the attempt cannot run on this node at all."""
        self.is_own_fault = False
        """The error does not count for the server's health: the task function asked for it, or a value did not fit."""
        self.is_isolated = False
        """The attempt runs in a child process because the task is suspect; it uses none of the pool's processes."""
        self.limit_key: str | None = None
        """The key queue that the task belongs to, if its producer did not know it."""

    @property
    def is_uninterruptible(self) -> bool:
        """Whether a stop of the node does not end the attempt. One that has not started can be handed back."""
        return self.has_begun and self.task_type.policy.uninterruptible

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts: from the task's row, otherwise from the policy."""
        return self.claim.max_attempts or self.retry.attempts

    def ask_to_stop(self, why: Stop) -> None:
        """Ask the attempt to end. A coroutine or child process is cancelled; a thread can only read the request. The
        first reason holds, but a stronger one replaces a request to yield or to leave a cordoned node."""
        if self.stop not in (None, Stop.CORDON, Stop.PREEMPTED) or self.stop is why:
            return
        self.stop = why
        if self.asyncio_task is not None:
            self.asyncio_task.cancel()
        if self.child is not None:
            self.child.kill()

    def request_hand_back(self) -> None:
        """Set the request to end when the task function asks for it; nothing is cancelled. Its return value is then no
        result."""
        if self.stop is None:
            self.stop = Stop.CORDON
        self.has_seen_stop = True

    def fenced(self, outcome: Outcome) -> FencedOutcome:
        """The outcome with the fence of the claim, for the store."""
        claim = self.claim
        if not self.task_type.is_limited and claim.group_id is None:
            return FencedOutcome(id=claim.id, claim_no=claim.claim_no, outcome=outcome, progress=self.progress)
        is_well = None if self.server is None else self._is_server_well(outcome)
        return FencedOutcome(
            id=claim.id,
            claim_no=claim.claim_no,
            outcome=outcome,
            progress=self.progress,
            limit_key=claim.limit_key,
            group_id=claim.group_id,
            server=(self.server.provider, self.server.address) if self.server and is_well is not None else None,
            is_server_well=is_well is not False,
            slot=claim.slot,
            kind=claim.kind,
        )

    def _is_server_well(self, outcome: Outcome) -> bool | None:
        """Whether the outcome shows a healthy server; None if it shows nothing."""
        match outcome:
            case Succeeded():
                return True
            case Failed() | Retrying():
                return None if self.is_own_fault else False
            case _:  # a crash is a failure of this process, anything else one of the task
                return None


class LocalLink(AttemptLink):
    """The link between a node and a task function in this process."""

    __slots__ = ("_attempt", "_node")

    def __init__(self, node: Services, attempt: Attempt) -> None:
        self._node = node
        self._attempt = attempt

    @property
    def cancel_requested(self) -> bool:
        """Whether the task function should end."""
        if self._attempt.stop is not None:
            self._attempt.has_seen_stop = True
            return True
        return False

    def report(self, progress: Progress) -> None:
        """Send progress to the node."""
        self._node.report_progress(self._attempt, progress)

    async def still_owned(self) -> bool:
        """Whether the claim is still current in the store."""
        return await self._node.still_owned(self._attempt) or self._note_stop_seen()

    def still_owned_sync(self) -> bool:
        """`still_owned` for a thread."""
        is_owned = self._node.call_from_thread(self._node.still_owned(self._attempt), "await ctx.still_owned()")
        return is_owned or self._note_stop_seen()

    def _note_stop_seen(self) -> Literal[False]:
        """Note that the task function has learned of the request to end, if there is one. What it returns then is no
        result."""
        self._attempt.has_seen_stop |= self._attempt.stop is not None
        return False

    def transaction(self) -> OpenTransaction:
        """The transaction that is committed with the success of the task."""
        from synergon.node.attempts.task_transaction import NodeTaskTransaction

        if self._attempt.transaction is None:
            self._attempt.transaction = NodeTaskTransaction(self._node)
        return self._attempt.transaction


class Services(ABC):
    """The services of a node for its running task functions."""

    loop: asyncio.AbstractEventLoop

    def call_from_thread(self, coroutine: Coroutine[Any, Any, Value], instead: str) -> Value:
        """Run a coroutine for a task function in a thread. Raises on the event loop itself, where it would block for
        ever."""
        if asyncio._get_running_loop() is self.loop:  # noqa: SLF001  the documented one raises where there is none
            coroutine.close()
            raise SynergonError(f"this would block the event loop; in a coroutine write `{instead}`")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    @abstractmethod
    def report_progress(self, attempt: Attempt, progress: Progress) -> None:
        """Store the progress soon."""

    @abstractmethod
    async def still_owned(self, attempt: Attempt) -> bool:
        """Whether the claim is still current in the store."""

    @abstractmethod
    async def begin(self) -> TaskTransaction:
        """Open a transaction of the store."""


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
    )
