"""Traces with OpenTelemetry: `instrument(engine)`. Needs the extra `otel`.

A producer span covers the store call of `enqueue`, and the context is kept in the metadata of the task. Each attempt
has a consumer span, which the worker makes: it continues the trace of the producer and links to it. Spans of the task
function's own code are inside the consumer span, also in threads and child processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Literal

import msgspec

try:
    from opentelemetry import trace
    from opentelemetry.context import Context as OtelContext
    from opentelemetry.context import attach, detach
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        f'traces need the package {_error.name!r}: pip install "synergon[otel]"', name=_error.name
    ) from _error

from synergon.context import Context
from synergon.contrib.attempt_errors import errors_of
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.model.attempts import BatchItem
from synergon.model.log_records import running_task
from synergon.model.outcomes import ErrorRecord
from synergon.model.record import READ_ERRORS
from synergon.model.tasks import Insertion, NewTask
from synergon.model.tracer import ProducerSpan, Trace
from synergon.node.attempts.outcomes import describe
from synergon.options.middleware_checks import CallNext
from synergon.policies import PAYLOAD_LIMIT_BYTES
from synergon.version import VERSION


class TracedMeta(msgspec.Struct):
    """The part of a task's metadata that belongs to tracing."""

    trace_context: dict[str, str] = {}
    """The headers of the producer: `traceparent` and others."""


_META: Final = msgspec.json.Decoder(TracedMeta)


def instrument(engine: Engine, *, tracer_provider: TracerProvider | None = None) -> None:
    """Trace the tasks of this engine. Call it where the engine is made, before other middleware is added, so that child
    processes do so, too, and the span covers that middleware. `tracer_provider` is the global one by default."""
    if engine._connection.tracer is not None:
        raise OptionError("the engine is traced already; call instrument(engine) once, where it is made")
    tracer = OtelTracer(trace.get_tracer("synergon", VERSION, tracer_provider))
    engine._connection.tracer = tracer
    engine.middleware(tracer.consume)


class OtelTracer:
    """Makes the spans of one engine."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def producer_span(self, tasks: Sequence[NewTask], operation: Literal["send", "create"]) -> ProducerSpan:
        """Start the producer span of `tasks`, which are stored together."""
        kinds = {task.kind for task in tasks}
        queues = {task.queue for task in tasks}
        attributes: dict[str, Any] = _attributes(operation, "enqueue")
        if len(kinds) == 1:
            attributes["messaging.synergon.kind"] = tasks[0].kind
        if len(queues) == 1:
            attributes["messaging.destination.name"] = tasks[0].queue
        if len(tasks) > 1:
            attributes["messaging.batch.message_count"] = len(tasks)
        name = f"enqueue {tasks[0].kind}" if len(kinds) == 1 else "enqueue"
        return OtelProducerSpan(self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes), tasks)

    def current(self) -> Trace | None:
        """The trace of the calling code. None without a valid span."""
        headers: dict[str, str] = {}
        inject(headers)
        found = trace.get_current_span().get_span_context()
        return Trace(id=trace.format_trace_id(found.trace_id), headers=headers) if found.is_valid else None

    @contextmanager
    def resume(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Continue the trace of the parent process."""
        token = attach(extract(headers, OtelContext()))
        try:
            yield
        finally:
            detach(token)

    async def consume(self, ctx: Context, call_next: CallNext) -> object:
        """The middleware that makes the span of an attempt."""
        span, context = self._start(ctx)
        token = attach(context)
        task, found = running_task.get(), span.get_span_context()
        if task is not None and found.is_valid:
            running_task.set(task._replace(trace_id=trace.format_trace_id(found.trace_id)))
        try:
            value = await call_next()
        except GeneratorExit:  # closed with its event loop, and in another context, which does not know the token
            raise
        except BaseException as error:
            _note_errors(span, [one.record for one in errors_of(ctx, error)])
            span.end()
            detach(token)
            raise
        span.end()
        detach(token)
        return value

    def _start(self, ctx: Context) -> tuple[trace.Span, OtelContext]:
        """A started span, with the context in which the function runs. A task continues the trace of its producer. A
        batch has several producers: it begins a trace of its own, with a link to each."""
        items = ctx.items
        contexts = [extract(_headers(item), OtelContext()) for item in items]
        attributes: dict[str, Any] = _attributes("process", "process")
        attributes |= {
            "messaging.destination.name": ctx.queue,
            "messaging.synergon.kind": ctx.kind,
            "messaging.synergon.attempt": ctx.attempt,
        }
        task = running_task.get()
        if task is not None:
            attributes["messaging.client.id"] = task.node
        if len(items) == 1:
            attributes["messaging.message.id"] = str(ctx.task_id)
            parent = contexts[0]
        else:
            attributes["messaging.batch.message_count"] = len(items)
            parent = OtelContext()  # not that of the code that started the worker
        span = self._tracer.start_span(
            f"process {ctx.kind}",
            parent,
            SpanKind.CONSUMER,
            attributes,
            [*_links(items, contexts)],
        )
        return span, trace.set_span_in_context(span, parent)


class OtelProducerSpan(ProducerSpan):
    """The span around the write that stores tasks."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span, tasks: Sequence[NewTask]) -> None:
        self._span = span
        headers: dict[str, str] = {}
        inject(headers, trace.set_span_in_context(span))
        super().__init__([_with_headers(task, headers) for task in tasks] if headers else tasks)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the span, with the error if the tasks were not stored."""
        if isinstance(error, Exception):
            _note_errors(self._span, [describe(error, 0, None)])
        self._span.end()

    def note_stored(self, inserted: Sequence[Insertion]) -> None:
        """Add the id of the task to the span, if there is only one."""
        if len(inserted) == 1:
            self._span.set_attribute("messaging.message.id", str(inserted[0].id))


def _attributes(operation: str, name: str) -> dict[str, Any]:
    return {
        "messaging.system": "synergon",
        "messaging.operation.type": operation,
        "messaging.operation.name": name,
    }


def _with_headers(task: NewTask, headers: Mapping[str, str]) -> NewTask:
    """The task with the headers in its metadata. Without them, and so without a trace, if they
    would make the metadata too large."""
    meta = msgspec.json.decode(task.meta) if task.meta else {}
    encoded = msgspec.json.encode({**meta, "trace_context": headers})
    return task if len(encoded) > PAYLOAD_LIMIT_BYTES else msgspec.structs.replace(task, meta=encoded)


def _headers(item: BatchItem) -> Mapping[str, str]:
    """The headers of the producer. Empty if there are none: a schedule has created the task, or its producer is not
    traced."""
    try:
        return {} if item.meta_json is None else _META.decode(item.meta_json).trace_context
    except READ_ERRORS:  # the user has used the name for something else
        return {}


def _links(items: Sequence[BatchItem], contexts: Sequence[OtelContext]) -> Iterator[Link]:
    for item, context in zip(items, contexts, strict=True):
        producer = trace.get_current_span(context).get_span_context()
        if producer.is_valid:
            yield Link(producer, {"messaging.message.id": str(item.task_id)})


def _note_errors(span: trace.Span, errors: Sequence[ErrorRecord]) -> None:
    for error in errors:
        texts = {"type": error.type, "message": error.message, "stacktrace": error.traceback}
        span.add_event("exception", {f"exception.{name}": text for name, text in texts.items()})
    if errors:
        span.set_attribute("error.type", errors[0].type)
        span.set_status(Status(StatusCode.ERROR, f"{errors[0].type}: {errors[0].message}"))
