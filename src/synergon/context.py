"""The context of a running task function: what the function can read and do about its own task."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from synergon.errors import OptionError, PayloadError
from synergon.model.attempts import BatchItem
from synergon.model.dependencies import Dependency
from synergon.model.outcomes import Progress
from synergon.model.record import storable, to_datetime
from synergon.model.tasks import NewTask
from synergon.options.durations import Duration, seconds
from synergon.providers.server import Server

if TYPE_CHECKING:
    from synergon.call import Call
    from synergon.model.tracer import Tracer

injected: Final[Any] = None
"""A default for parameters that synergon fills in, so that type checkers allow callers to leave them out: `def send(to:
str, ctx: Context = injected)`."""


class AttemptLink(Protocol):
    """Connects a context with the node that runs the attempt, or with the parent of a child process."""

    @property
    def cancel_requested(self) -> bool:
        """Whether the task function should end."""

    @property
    def tracer(self) -> Tracer | None:
        """Makes spans for children. None if the engine is not traced."""
        return None

    @property
    def stopped_by(self) -> str | None:
        """Why the end of the attempt was requested. None if it was not."""
        return None

    def report(self, progress: Progress) -> None:
        """Pass progress to the node. Safe from any thread."""

    def extend_timeout(self, seconds: float) -> None:
        """Move the deadline of the attempt. Safe from any thread."""

    async def still_owned(self) -> bool:
        """Whether the claim is still current in the store, and the attempt may go on."""

    def still_owned_sync(self) -> bool:
        """`still_owned` for task functions without an event loop."""

    def transaction(self) -> OpenTransaction:
        """The transaction that is committed together with the success of the task."""


class OpenTransaction(AbstractContextManager[Any], AbstractAsyncContextManager[Any]):
    """The transaction of a task function. Both `with` and `async with` return the driver's connection: that of sqlite3
    or of asyncpg. With asyncpg in a thread, `with` returns an object with execute, executemany, fetch, fetchrow and
    fetchval without `await`.

    The transaction is committed when the task function returns, not when the block ends. If the attempt fails, it is
    rolled back.
    """


class Queued:
    """The return value of `ctx.enqueue`. It may be awaited, but need not be."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class Context:
    """The running attempt. To receive it, annotate a parameter with `Context`, anywhere in the signature."""

    __slots__ = (
        "_children",
        "_items",
        "_link",
        "_meta",
        "_scheduled_for",
        "attempt",
        "claim_no",
        "dependencies",
        "kind",
        "queue",
        "server",
        "tags",
        "task_id",
    )

    def __init__(
        self,
        link: AttemptLink,
        *,
        task_id: int,
        kind: str,
        queue: str,
        attempt: int,
        claim_no: int,
        tags: tuple[str, ...] = (),
        meta: bytes | None = None,
        server: Server | None = None,
        scheduled_for: int | None = None,
        dependencies: tuple[Dependency, ...] = (),
        items: tuple[BatchItem, ...] = (),
    ) -> None:
        self.task_id: int = task_id
        self.kind: str = kind
        self.queue: str = queue
        self.attempt: Final = attempt
        """The number of the attempt, from 1. A retry counts one more; a snooze or a crash does not."""
        self.claim_no: int = claim_no
        """The number of the claim. Each run of the task has a higher one, so an outside system can reject what an
        earlier run sends."""
        self.server: Final = server
        """The server on which the task runs. None if its kind has no provider."""
        self.tags: Final = tags
        self.dependencies: Final = dependencies
        """The tasks that this one depends on, in order, with their states and results. For the task that follows a
        group: the tasks of the group."""
        self._items = items
        self._link = link
        self._meta = meta
        self._scheduled_for = scheduled_for
        self._children: list[NewTask] = []

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata that the caller attached."""
        decoded: dict[str, Any] = msgspec.json.decode(self._meta) if self._meta else {}
        return decoded

    @property
    def items(self) -> tuple[BatchItem, ...]:
        """The tasks of the batch, in the order of the list that the task function gets. For a task that runs alone,
        only itself."""
        return self._items or (BatchItem(task_id=self.task_id, attempt=self.attempt, meta_json=self._meta),)

    @property
    def scheduled_for(self) -> datetime | None:
        """The nominal moment of the occurrence for which a schedule created the task; None for any other task."""
        return None if self._scheduled_for is None else to_datetime(self._scheduled_for)

    @property
    def cancel_requested(self) -> bool:
        """Whether the task function should end: because of a cancellation, its deadline, a preemption, or a node that
        stops."""
        return self._link.cancel_requested

    @property
    def stopped_by(self) -> str | None:
        """Why the end of the attempt was requested: "timeout", "cancel", "shutdown", "lease_lost", "cordon",
        "preempted" or "no_child". None if it was not, and always in a child process. For middleware: a task function
        reads `cancel_requested`, from which the node learns that the function ends for this reason."""
        return self._link.stopped_by

    @property
    def children(self) -> tuple[NewTask, ...]:
        """The tasks that were passed to `enqueue` so far."""
        return tuple(self._children)

    def progress(self, fraction: float, message: str = "") -> None:
        """Report progress from 0 to 1. It is stored at most a few times a second; the last report is always stored."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise OptionError(f"progress must be a number from 0 to 1, got {fraction!r}")
        self._link.report(Progress(fraction=float(fraction), message=storable(str(message))))

    def extend_timeout(self, duration: Duration) -> None:
        """Give this attempt more time: its deadline moves by `duration`. Extensions add up; after the deadline they
        have no effect."""
        self._link.extend_timeout(seconds(duration, "extend_timeout", positive=True))

    def enqueue(self, *calls: Call[Any]) -> Queued:
        """Enqueue children. They are stored only together with this task's success."""
        self._children += [self._child(call) for call in calls]
        return Queued()

    def _child(self, call: Call[Any]) -> NewTask:
        if call.placement.conn is not None:
            raise OptionError("conn cannot be given to ctx.enqueue: children are committed with the task itself")
        child = call.to_new_task()
        if child.on_conflict != "return":
            raise PayloadError('children of a task can only use on_conflict="return"')
        if self._link.tracer is not None:
            with self._link.tracer.producer_span((child,), "create") as span:
                (child,) = span.tasks
        return child

    async def still_owned(self) -> bool:
        """Whether this attempt's outcome would still be accepted. Call it before an effect that cannot be undone."""
        return await self._link.still_owned()

    def still_owned_sync(self) -> bool:
        """`still_owned` for plain functions."""
        return self._link.still_owned_sync()

    def transaction(self) -> OpenTransaction:
        """A transaction of the engine's database. The writes of the task function, its children and its success are
        committed together when the function returns. If the attempt fails, they are rolled back."""
        return self._link.transaction()


def fill_in(injected_types: Mapping[str, type], context: Context) -> dict[str, Any]:
    """The values of the parameters that synergon fills in, by name."""
    return {name: context.server if wanted is Server else context for name, wanted in injected_types.items()}
