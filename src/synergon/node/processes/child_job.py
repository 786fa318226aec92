"""One attempt inside a child process: what the parent sends, what the child answers."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synergon.context import AttemptLink, Context, OpenTransaction, fill_in
from synergon.errors import Control, NotAvailable, PayloadError, RetryAfter, Snooze
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.tasks import NewTask
from synergon.node.attempts.outcomes import describe, find_control
from synergon.node.processes.child_main import ChildChannel
from synergon.options.durations import LONGEST_SECONDS
from synergon.providers.server import Server
from synergon.task import REGISTERED, AnyTask, TaskType

if TYPE_CHECKING:
    from synergon.engine import Engine


BEGINS: Final = b"begins"
"""Everything is imported, and the body's time starts."""


class NoTransactionHere(NotAvailable):
    """The body asked for a transaction, and the connection is in another process."""


class ChildJob(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to be run. Module and name are the registered function's, never something from the database."""

    module: str
    """Its import registers the kind."""
    home: str
    """Where the function itself stands."""
    name: str
    path: list[str]
    url: str
    task_id: int
    kind: str
    queue: str
    payload: bytes
    attempt: int
    claim_no: int
    tags: tuple[str, ...]
    meta: bytes | None
    server: Server | None = None


class ChildControl(msgspec.Struct, frozen=True):
    """A control exception on its way to the parent."""

    name: str
    message: str
    seconds: float = 0.0


class ChildAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended."""

    result: bytes | None = None
    children: tuple[NewTask, ...] = ()
    error: ErrorRecord | None = None
    control: ChildControl | None = None
    is_misfit: bool = False
    """The payload, or the result, did not fit."""
    wants_transaction: bool = False
    """It failed because it can only run in the node's own process."""


class ChildLink(AttemptLink):
    """The link of a body in a child: messages to the parent."""

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel

    @property
    def cancel_requested(self) -> bool:
        """A child is killed rather than asked, so while it runs nobody wants it to end."""
        return False

    def report(self, progress: Progress) -> None:
        """Pass progress on."""
        self._channel.send(msgspec.json.encode(progress))

    async def still_owned(self) -> bool:
        """Ask the parent."""
        return await asyncio.get_running_loop().run_in_executor(None, self.still_owned_sync)

    def still_owned_sync(self) -> bool:
        """Ask the parent."""
        return self._channel.request(b"still_owned") == b"yes"

    def transaction(self) -> OpenTransaction:
        """The connection belongs to the parent."""
        raise NoTransactionHere(
            'ctx.transaction() is not available in a process body; use runs_in="thread" or a coroutine'
        )


def run_attempt(job_bytes: bytes, channel: ChildChannel) -> bytes:
    """The entry that a child runs for each job."""
    job = msgspec.json.decode(job_bytes, type=ChildJob)
    for entry in job.path:
        if entry not in sys.path:
            sys.path.append(entry)
    return msgspec.json.encode(_run(job, channel))


def _run(job: ChildJob, channel: ChildChannel) -> ChildAnswer:
    context = Context(
        ChildLink(channel),
        task_id=job.task_id,
        kind=job.kind,
        queue=job.queue,
        attempt=job.attempt,
        claim_no=job.claim_no,
        tags=job.tags,
        meta=job.meta,
        server=job.server,
    )
    try:
        task_type = _find(job)
        _settle_in(task_type.engine, job.url)
        arguments = task_type.signature.decode(job.payload)
    except PayloadError as error:
        return ChildAnswer(error=describe(error, job.attempt, None), is_misfit=True)
    try:
        value = _call(task_type, arguments, context, channel)
        return ChildAnswer(result=task_type.signature.encode_result(value), children=context.children)
    except PayloadError as error:
        return ChildAnswer(error=describe(error, job.attempt, None))
    except BaseException as error:  # noqa: BLE001  whatever the body raised is its outcome
        return ChildAnswer(
            error=describe(error, job.attempt, None),
            control=_control(find_control(error)),
            wants_transaction=isinstance(error, NoTransactionHere),
        )


def _settle_in(engine: Engine, url: str) -> None:
    """Work on the database that the parent works on, whatever the settings here say."""
    engine.connection.is_in_child = True
    engine.settings = engine.settings.changed({"url": url}, "parent process")


def _find(job: ChildJob) -> AnyTask:
    importlib.import_module(job.module)
    found = REGISTERED.get((job.module, job.name, job.kind))
    if found is None:
        found = _attribute(importlib.import_module(job.home), job.name)
    if not isinstance(found, TaskType):
        raise LookupError(f"importing {job.module} does not register the kind {job.kind!r} with {job.name}")
    return found


def _attribute(found: Any, name: str) -> Any:
    """What stands under the function's own name: the same function, if it was registered again under another kind."""
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _call(task_type: AnyTask, arguments: dict[str, Any], context: Context, channel: ChildChannel) -> Any:
    arguments.update(fill_in(task_type.signature.injected, context))
    positional = task_type.signature.take_positional(arguments)
    channel.send(BEGINS)
    if task_type.is_coroutine:
        return asyncio.run(_await(task_type.engine, task_type.function(*positional, **arguments)))
    return copy_context().run(task_type.function, *positional, **arguments)


async def _await(engine: Engine, body: Awaitable[Any]) -> Any:
    """The body's value. It finds its engine connected, as in the worker; a connection is made if it uses it."""
    async with engine:
        return await body


def _control(control: Control | None) -> ChildControl | None:
    if control is None:
        return None
    # JSON has no infinity.
    seconds = min(control.seconds, LONGEST_SECONDS) if isinstance(control, Snooze | RetryAfter) else 0.0
    return ChildControl(type(control).__name__, str(control), seconds)
