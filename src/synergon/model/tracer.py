"""The port of traces: what an engine asks of a tracer. `synergon.contrib.otel` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec

from synergon.model.tasks import Insertion, NewTask


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The position of running code in its trace."""

    id: str
    """The trace id, as log records name it."""
    headers: dict[str, str]
    """What another process needs to continue the trace: `traceparent` and others."""


class ProducerSpan:
    """The span in which tasks are stored. This base class has no span and leaves the tasks as they are."""

    __slots__ = ("tasks",)

    def __init__(self, tasks: Sequence[NewTask]) -> None:
        self.tasks: Sequence[NewTask] = tasks
        """The tasks to store. Inside a span, each carries the context of the span in its metadata."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the span."""

    def note_stored(self, inserted: Sequence[Insertion]) -> None:
        """Note the ids of the tasks."""


class Tracer(Protocol):
    """Makes spans for the work of producers, and carries contexts into child processes."""

    def producer_span(self, tasks: Sequence[NewTask], operation: Literal["send", "create"]) -> ProducerSpan:
        """The span of a producer: `send` stores tasks, `create` adds one child to a running task."""

    def current(self) -> Trace | None:
        """The trace of the calling code. None if it has none."""

    def resume(self, headers: Mapping[str, str]) -> AbstractContextManager[None]:
        """Continue a trace of another process inside the `with` block."""
