"""One attempt in a child process: the job that the parent sends, its execution, and the answer."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synergon.context import AttemptLink, Context, OpenTransaction, fill_in
from synergon.errors import BatchErrors, Control, NotAvailable, PayloadError, RetryAfter, Snooze
from synergon.model.attempts import BatchItem
from synergon.model.dependencies import Dependency
from synergon.model.log_records import RunningTask, running_task
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.tasks import NewTask
from synergon.model.tracer import Trace, Tracer
from synergon.node.attempts.batch_results import ends_of_items
from synergon.node.attempts.outcomes import describe, find_control
from synergon.node.processes.child_logs import name_no_job, send_lines_to_parent
from synergon.node.processes.child_main import ChildChannel
from synergon.options.durations import LONGEST_SECONDS
from synergon.options.payload import Signature
from synergon.providers.server import Server
from synergon.task import REGISTERED, AnyTask, TaskType

if TYPE_CHECKING:
    from synergon.engine import Engine


_entered: Final[set[Engine]] = set()
"""The engines whose process lifespans this process has entered."""

BEGINS: Final = b"begins"
"""The message that the child sends when imports are done and the task function starts. The timeout starts, too."""


EXTENDS: Final = b"extend_timeout "
"""The prefix of the message by which a child requests a longer timeout. The seconds follow."""


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
    items: tuple[bytes, ...] = ()
    """The payloads of all items, if the function runs batches."""
    batch_items: tuple[BatchItem, ...] = ()
    attempt: int
    claim_no: int
    node: str
    """The name of the node."""
    trace: Trace | None = None
    """The trace of the attempt. None if the engine is not traced."""
    log_level: int
    """The level of the parent's root logger."""
    tags: tuple[str, ...]
    meta: bytes | None
    server: Server | None = None
    scheduled_for: int | None = None
    dependencies: tuple[Dependency, ...] = ()
    """The dependencies of the task, without their results."""
    results: tuple[bytes | None, ...] = ()
    """The results of the dependencies, as JSON."""


_JOB: Final = msgspec.json.Decoder(ChildJob)


class ChildControl(msgspec.Struct, frozen=True):
    """A control exception, as the child sends it to the parent."""

    name: str
    message: str
    seconds: float = 0.0


class ChildItemEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How one item of a batch ended: with a result, or with an error, which may be a control exception."""

    result: bytes | None = None
    error: ErrorRecord | None = None
    control: ChildControl | None = None
    is_retried: bool = True
    """Whether the kind retries errors of this type."""


class ChildAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a child to a job: the result and the child tasks, or an error or a control exception."""

    result: bytes | None = None
    items: tuple[ChildItemEnd, ...] | None = None
    """The ends of all items, if the function runs batches."""
    children: tuple[NewTask, ...] = ()
    error: ErrorRecord | None = None
    control: ChildControl | None = None
    is_payload_error: bool = False
    """Whether the payload does not match the signature of the function."""
    is_retried: bool = True
    """Whether the kind retries errors of this type."""
    wants_transaction: bool = False
    """Whether the function used ctx.transaction(), so that it can run only in the node's own process."""


class ChildLink(AttemptLink):
    """The link between the parent and a task function in a child: exchanges messages with the parent."""

    tracer: Tracer | None = None

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel
        self.wants_transaction: bool = False
        """Whether the task function has called `ctx.transaction()`."""

    @property
    def cancel_requested(self) -> bool:
        """Always False: a child is killed when its attempt is cancelled."""
        return False

    def report(self, progress: Progress) -> None:
        """Send progress to the parent."""
        self._channel.send(msgspec.json.encode(progress))

    def extend_timeout(self, seconds: float) -> None:
        """Ask the parent for a longer timeout: the parent ends the child at its deadline."""
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
    job = _JOB.decode(job_bytes)
    for entry in job.path:
        if entry not in sys.path:
            sys.path.append(entry)
    try:
        return msgspec.json.encode(_run(job, channel))
    finally:
        name_no_job()


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
        dependencies=tuple(
            msgspec.structs.replace(entry, result_json=None if result is None else msgspec.Raw(result))
            for entry, result in zip(job.dependencies, job.results, strict=True)
        ),
        items=job.batch_items,
    )
    try:
        task_type = _find(job)
        _enter_lifespans(task_type.engine)
        send_lines_to_parent(job, channel)
        _use_database_of_parent(task_type.engine, job.url)
        link.tracer = task_type.engine._connection.tracer
        arguments = _arguments(task_type.signature, job)
    except PayloadError as error:
        return ChildAnswer(error=describe(error, job.attempt, None), is_payload_error=True)
    trace_id = None if job.trace is None else job.trace.id
    token = running_task.set(RunningTask(job.node, job.task_id, job.kind, job.attempt, trace_id))
    try:
        with _resumed(link.tracer, job.trace):
            answer = _answer(task_type, job, lambda: _call(task_type, arguments, context, channel))
        return msgspec.structs.replace(answer, children=context.children, wants_transaction=link.wants_transaction)
    except PayloadError as error:
        return ChildAnswer(error=describe(error, job.attempt, None), wants_transaction=link.wants_transaction)
    except BaseException as error:  # noqa: BLE001  whatever the task function raised is its outcome
        return ChildAnswer(
            error=describe(error, job.attempt, None),
            control=_control(find_control(error)),
            is_retried=task_type.policy.retry.retries(error),
            wants_transaction=link.wants_transaction,
        )
    finally:
        running_task.reset(token)


def _resumed(tracer: Tracer | None, trace: Trace | None) -> AbstractContextManager[None]:
    return nullcontext() if tracer is None or trace is None else tracer.resume(trace.headers)


def _arguments(signature: Signature, job: ChildJob) -> dict[str, Any]:
    if signature.list_name is None:
        return signature.decode(job.payload)
    return signature.join_items(map(signature.decode, job.items))


def _answer(task_type: AnyTask, job: ChildJob, call: Callable[[], Any]) -> ChildAnswer:
    """Call the task function. Returns its result, or the ends of the items of its batch."""
    signature = task_type.signature
    if signature.list_name is None:
        return ChildAnswer(result=task_type.encode_result(call()))
    value, errors = None, None
    try:
        value = call()
    except BatchErrors as error:
        errors = error
    ends = ends_of_items(signature, job.kind, len(job.items), value, errors)
    return ChildAnswer(items=tuple(item_end(task_type, end, job.attempt) for end in ends))


def item_end(task_type: AnyTask, end: bytes | BaseException, attempt: int) -> ChildItemEnd:
    """The end of one item, as the child sends it."""
    if isinstance(end, bytes):
        return ChildItemEnd(result=end)
    return ChildItemEnd(
        error=describe(end, attempt, None),
        control=_control(find_control(end)),
        is_retried=task_type.policy.retry.retries(end),
    )


def _use_database_of_parent(engine: Engine, url: str) -> None:
    """Use the parent's URL: the settings of this process may have another one."""
    engine._connection.is_in_child = True
    if engine.settings.url != url:
        engine.settings = engine.settings.changed({"url": url}, "parent process")


def _enter_lifespans(engine: Engine) -> None:
    """Enter the engine's process lifespans, once in this process. When the process exits normally, it leaves them."""
    if engine in _entered:
        return
    with ExitStack() as stack:
        for make in engine._process_lifespans:
            stack.enter_context(make())
        atexit.register(stack.pop_all().close)
    _entered.add(engine)


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
    # A subclass is sent as the class of synergon that it derives from.
    name = next(base.__name__ for base in type(control).__mro__ if base.__module__ == Control.__module__)
    return ChildControl(name, str(control), seconds)
