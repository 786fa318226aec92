"""Functions for traced child processes. A child imports this module and traces its engine, as an application does; its
spans go to the file that `SPANS_FILE` names."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from synergon import Context, Engine, RetryAfter, Snooze, TaskType
from synergon.contrib import otel


class FileExporter(SpanExporter):
    """Appends spans to the file, one on each line."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if (file := os.environ.get("SPANS_FILE")) is not None:
            with Path(file).open("a") as lines:
                lines.writelines(f"{span.to_json(indent=None)}\n" for span in spans)
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
engine = Engine("memory://")
otel.instrument(engine, tracer_provider=provider)


def on(target: Engine, task_type: TaskType[..., Any, Any, Any], **options: Any) -> TaskType[..., Any, Any, Any]:
    """The function as a kind of another engine."""
    registered: TaskType[..., Any, Any, Any] = target.task(**options)(task_type.function)
    return registered


def spans_of(file: Path) -> list[dict[str, Any]]:
    """The spans in the file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


@engine.task
def leaf() -> None: ...


@engine.task
def work(ctx: Context) -> None:
    """Makes a span, a log line and a child."""
    with provider.get_tracer("shop").start_as_current_span("own work"):
        logging.getLogger("shop").warning("hi")
        ctx.enqueue(leaf.call())


@engine.task
def fail(how: str) -> None:
    match how:
        case "snooze":
            raise Snooze(3600)
        case "retry":
            raise RetryAfter(3600)
        case _:
            raise ValueError(how)
