"""One attempt in a child process: the job that the parent sends, its execution, and the answer."""

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
"""The message that the child sends when imports are done and the task function starts. The timeout starts, too."""


EXTENDS: Final = b"extend_timeout "
"""Beginning of a message of the child: its timeout is to be extended by the seconds that follow."""


class NoTransactionHere(NotAvailable):
    """The task function used ctx.transaction(), but only the parent process has the connection."""


class ChildJob(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that a child runs. Module and name are those of the registered function, never values from the
    database."""

    module: str
    """The module whose import registers the kind."""
    function_module: str
    """The module that defines the function."""
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
    scheduled_for: int | None = None


class ChildControl(msgspec.Struct, frozen=True):
    """A control exception, as the child sends it to the parent."""

    name: str
    message: str
    seconds: float = 0.0


class ChildAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a child to a job: the result and the child tasks, or an error or a control exception."""

    result: bytes | None = None
    children: tuple[NewTask, ...] = ()
    error: ErrorRecord | None = None
    control: ChildControl | None = None
    is_payload_error: bool = False
    """Whether the payload does not match the signature of the function."""
    wants_transaction: bool = False
    """Whether the function used ctx.transaction(), so that it can run only in the node's own process."""


class ChildLink(AttemptLink):
    """The link between the parent and a task function in a child: exchanges messages with the parent."""

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel
        self.wants_transaction = False
        """The task function has called `ctx.transaction()`."""

    @property
    def cancel_requested(self) -> bool:
        """Always False: a child is killed when its attempt is cancelled."""
        return False

    def report(self, progress: Progress) -> None:
        """Send progress to the parent."""
        self._channel.send(msgspec.json.encode(progress))

    def extend_timeout(self, seconds: float) -> None:
        """Ask the parent, which ends the child at its deadline."""
        self._channel.send(EXTENDS + str(seconds).encode())

    async def still_owned(self) -> bool:
        """Ask the parent whether the claim is still current, without blocking the event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, self.still_owned_sync)

    def still_owned_sync(self) -> bool:
        """Ask the parent whether the claim is still current."""
        return self._channel.request(b"still_owned") == b"yes"

    def transaction(self) -> OpenTransaction:
        """Raises NoTransactionHere: only the parent process has the connection. Notes the call, because the function
        may wrap the error or swallow it."""
        self.wants_transaction = True
        raise NoTransactionHere(
            'ctx.transaction() is not available in a child process; use runs_in="thread" or a coroutine'
        )


def run_attempt(job_bytes: bytes, channel: ChildChannel) -> bytes:
    """Run one job and return its answer. This is the entry function of the child."""
    job = msgspec.json.decode(job_bytes, type=ChildJob)
    for entry in job.path:
        if entry not in sys.path:
            sys.path.append(entry)
    return msgspec.json.encode(_run(job, channel))


def _run(job: ChildJob, channel: ChildChannel) -> ChildAnswer:
    link = ChildLink(channel)
    context = Context(
        link,
        task_id=job.task_id,
        kind=job.kind,
        queue=job.queue,
        attempt=job.attempt,
        claim_no=job.claim_no,
        tags=job.tags,
        meta=job.meta,
        server=job.server,
        scheduled_for=job.scheduled_for,
    )
    try:
        task_type = _find(job)
        _use_database_of_parent(task_type.engine, job.url)
        arguments = task_type.signature.decode(job.payload)
    except PayloadError as error:
        return ChildAnswer(error=describe(error, job.attempt, None), is_payload_error=True)
    try:
        value = _call(task_type, arguments, context, channel)
        result = task_type.signature.encode_result(value)
        return ChildAnswer(result=result, children=context.children, wants_transaction=link.wants_transaction)
    except PayloadError as error:
        return ChildAnswer(error=describe(error, job.attempt, None), wants_transaction=link.wants_transaction)
    except BaseException as error:  # noqa: BLE001  whatever the task function raised is its outcome
        return ChildAnswer(
            error=describe(error, job.attempt, None),
            control=_control(find_control(error)),
            wants_transaction=link.wants_transaction,
        )


def _use_database_of_parent(engine: Engine, url: str) -> None:
    """Use the parent's URL: the settings of this process may have another one."""
    engine.connection.is_in_child = True
    engine.settings = engine.settings.changed({"url": url}, "parent process")


def _find(job: ChildJob) -> AnyTask:
    importlib.import_module(job.module)
    found = REGISTERED.get((job.module, job.name, job.kind))
    if found is None:
        found = _attribute(importlib.import_module(job.function_module), job.name)
    if not isinstance(found, TaskType):
        raise LookupError(f"importing {job.module} does not register the kind {job.kind!r} with {job.name}")
    return found


def _attribute(found: Any, name: str) -> Any:
    """The attribute with this qualified name. Used if a function was registered again under another kind."""
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


async def _await(engine: Engine, running: Awaitable[Any]) -> Any:
    """Await the task function with the engine of its kind open, as in a worker. The engine connects when it is first
    used."""
    async with engine:
        return await running


def _control(control: Control | None) -> ChildControl | None:
    if control is None:
        return None
    # JSON has no infinity.
    seconds = min(control.seconds, LONGEST_SECONDS) if isinstance(control, Snooze | RetryAfter) else 0.0
    return ChildControl(type(control).__name__, str(control), seconds)
