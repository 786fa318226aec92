"""Context: what a running body sees of its own task."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from synergon.errors import OptionError, PayloadError
from synergon.model.outcomes import Progress
from synergon.model.record import storable
from synergon.model.tasks import NewTask
from synergon.providers.server import Server

if TYPE_CHECKING:
    from synergon.task import Call

injected: Final[Any] = None
"""A default for parameters that synergon fills in, so that type checkers let callers leave them out:
`def send(to: str, ctx: Context = injected)`."""


class AttemptLink(Protocol):
    """The way from a body back to whoever runs it: the node, or the parent of a child process."""

    @property
    def cancel_requested(self) -> bool:
        """Whether the body should end."""

    def report(self, progress: Progress) -> None:
        """Pass progress on; safe from any thread."""

    async def still_owned(self) -> bool:
        """Whether the claim is still the one in the store."""

    def still_owned_sync(self) -> bool:
        """The same for bodies without a loop."""

    def transaction(self) -> OpenTransaction:
        """The transaction that success is committed with."""


class OpenTransaction(AbstractContextManager[Any], AbstractAsyncContextManager[Any]):
    """The body's own transaction. Both `with` and `async with` give the driver's connection: of sqlite3, or of asyncpg
    (for `with`, in a thread: its execute, executemany, fetch, fetchrow and fetchval without `await`).

    It is committed when the body returns, not when the block ends; whatever makes the attempt fail rolls it back.
    """


class Queued:
    """What `ctx.enqueue` returns: it may be awaited, and need not be."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class Context:
    """The running attempt. Ask for it by annotating a parameter, anywhere in the signature."""

    __slots__ = ("_children", "_link", "_meta", "attempt", "claim_no", "kind", "queue", "server", "tags", "task_id")

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
    ) -> None:
        self.task_id = task_id
        self.kind = kind
        self.queue = queue
        self.attempt = attempt
        """1 for the first; a retry counts one more, a snooze or a crash does not."""
        self.claim_no = claim_no
        """New at each run: a number to make outside effects idempotent with."""
        self.server = server
        """The server that it was given, if its kind has a provider."""
        self.tags = tags
        self._link = link
        self._meta = meta
        self._children: list[NewTask] = []

    @property
    def meta(self) -> dict[str, Any]:
        """What the caller attached."""
        decoded: dict[str, Any] = msgspec.json.decode(self._meta) if self._meta else {}
        return decoded

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody wants this body to end: a cancel, its deadline, or the node that stops."""
        return self._link.cancel_requested

    @property
    def children(self) -> tuple[NewTask, ...]:
        """What `enqueue` was given so far."""
        return tuple(self._children)

    def progress(self, fraction: float, message: str = "") -> None:
        """Tell how far it is, from 0 to 1. Stored at most a few times a second; the last word is always stored."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise OptionError(f"progress must be a number from 0 to 1, got {fraction!r}")
        self._link.report(Progress(fraction=float(fraction), message=storable(str(message))))

    def enqueue(self, *calls: Call[Any]) -> Queued:
        """Enqueue children: they are committed together with this task's success, and not otherwise."""
        for call in calls:
            if call.placement.conn is not None:
                raise OptionError("conn cannot be given to ctx.enqueue: children are committed with the task itself")
            if call.placement.on_conflict != "return":
                raise PayloadError('children of a task can only use on_conflict="return"')
            self._children.append(call.to_new_task())
        return Queued()

    async def still_owned(self) -> bool:
        """Whether this attempt's outcome would still be accepted; ask before doing what cannot be undone."""
        return await self._link.still_owned()

    def still_owned_sync(self) -> bool:
        """`still_owned` for plain functions."""
        return self._link.still_owned_sync()

    def transaction(self) -> OpenTransaction:
        """A transaction of the engine's database in which the body's own writes, its children and its success are
        committed together when it returns; whatever makes it fail rolls them back."""
        return self._link.transaction()


def fill_in(injected_types: Mapping[str, type], context: Context) -> dict[str, Any]:
    """What synergon gives to the parameters that ask for it by their type."""
    return {name: context.server if wanted is Server else context for name, wanted in injected_types.items()}
