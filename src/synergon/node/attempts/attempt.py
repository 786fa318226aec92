"""One attempt while it runs: its claim, its deadline, and why it should stop, if it should."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from synergon.context import AttemptLink, Context, OpenTransaction
from synergon.errors import PayloadError, SynergonError
from synergon.model.claims import Claim
from synergon.model.outcomes import Progress
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
    """It yields to an urgent task."""


class Attempt:
    """What the node knows of a running attempt. Lives on the node's loop; bodies see it only through a Context."""

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
        """What it uses of the node while it runs: resources, and a child process if its body is to run in one."""
        self.stop: Stop | None = None
        self.has_begun = False
        """Its body runs, or has run; until then it can be given back as if it had never been claimed."""
        self.has_seen_stop = False
        """The body looked and was told to end."""
        self.asyncio_task: asyncio.Task[Any] | None = None
        """Set while a coroutine body runs."""
        self.child: ChildRun | None = None
        self.deadline: float | None = None
        """By the loop's clock, while its body runs."""
        self.progress: Progress | None = None
        """Reported by the body and not written yet."""
        self.server: Server | None = None
        self.capacity_wait: asyncio.Future[None] | None = None
        """While it is claimed and there is no room for its body yet."""
        self.protected_until = 0.0
        """By the monotonic clock; it has yielded lately, and need not again before that."""
        self.started_at = 0.0
        """By the monotonic clock; only where somebody wants to know how long it took."""
        self.transaction: NodeTaskTransaction | None = None
        self.misfit: PayloadError | None = None
        """Why it cannot run at all."""
        self.is_own_fault = False
        """Its error says nothing about its server: the body asked for it, or something did not fit."""
        self.is_isolated = False
        """It runs in a child only because a process has died under it before, and takes none of the others' places."""
        self.limit_key: str | None = None
        """The line in which it should have stood before it was claimed."""

    @property
    def is_undisturbed(self) -> bool:
        """Whether it ends only by itself when its node stops; what has not begun can go back."""
        return self.has_begun and self.task_type.policy.uninterruptible

    @property
    def max_attempts(self) -> int:
        """The row's word, else the policy's."""
        return self.claim.max_attempts or self.retry.attempts

    def ask_to_stop(self, why: Stop) -> None:
        """End the body if that can be done; a thread can only be told. The first reason given stands; but one that was
        told to leave a cordoned node, or to yield, and has not, can be made to end for a better reason."""
        if self.stop not in (None, Stop.CORDON, Stop.PREEMPTED) or self.stop is why:
            return
        self.stop = why
        if self.asyncio_task is not None:
            self.asyncio_task.cancel()
        if self.child is not None:
            self.child.kill()

    def ask_to_leave(self) -> None:
        """The body has asked, and is told to end; nothing ends it. What it returns then is not a result."""
        if self.stop is None:
            self.stop = Stop.CORDON
        self.has_seen_stop = True


class LocalLink(AttemptLink):
    """The link of a body in this process."""

    __slots__ = ("_attempt", "_node")

    def __init__(self, node: Services, attempt: Attempt) -> None:
        self._node = node
        self._attempt = attempt

    @property
    def cancel_requested(self) -> bool:
        """Whether the body should end."""
        if self._attempt.stop is not None:
            self._attempt.has_seen_stop = True
            return True
        return False

    def report(self, progress: Progress) -> None:
        """Pass progress on."""
        self._node.report_progress(self._attempt, progress)

    async def still_owned(self) -> bool:
        """Whether the claim is still the one in the store."""
        return await self._node.still_owned(self._attempt) or self._is_told_to_end()

    def still_owned_sync(self) -> bool:
        """The same from a thread."""
        is_owned = self._node.call_from_thread(self._node.still_owned(self._attempt), "await ctx.still_owned()")
        return is_owned or self._is_told_to_end()

    def _is_told_to_end(self) -> Literal[False]:
        """A body that ends because it was told so has no result."""
        self._attempt.has_seen_stop |= self._attempt.stop is not None
        return False

    def transaction(self) -> OpenTransaction:
        """The transaction that success is committed with."""
        from synergon.node.attempts.task_transaction import NodeTaskTransaction

        if self._attempt.transaction is None:
            self._attempt.transaction = NodeTaskTransaction(self._node)
        return self._attempt.transaction


class Services:
    """What a running body may ask of its node."""

    loop: asyncio.AbstractEventLoop

    def call_from_thread(self, coroutine: Coroutine[Any, Any, Value], instead: str) -> Value:
        """What the coroutine returns, for a body in a thread; on the loop itself that would wait for ever."""
        if asyncio._get_running_loop() is self.loop:  # noqa: SLF001  the documented one raises where there is none
            coroutine.close()
            raise SynergonError(f"this would block the event loop; in a coroutine write `{instead}`")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def report_progress(self, attempt: Attempt, progress: Progress) -> None:
        """Store it soon."""
        raise NotImplementedError

    async def still_owned(self, attempt: Attempt) -> bool:
        """Whether the claim is still the one in the store."""
        raise NotImplementedError

    async def begin(self) -> TaskTransaction:
        """A store transaction."""
        raise NotImplementedError


def context_of(attempt: Attempt, link: AttemptLink) -> Context:
    """What the body sees."""
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
