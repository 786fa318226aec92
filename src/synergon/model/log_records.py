"""Log records of task functions: which task a record belongs to, and records as JSON."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from synergon.model.printable import LoggedTraceback, printable_json

FIELDS: Final = ("node", "task_id", "kind", "attempt", "trace_id")
"""The attributes that say which task a log record belongs to."""


class RunningTask(NamedTuple):
    """The attempt whose task function runs in this context, as log records name it."""

    node: str
    task_id: int
    kind: str
    attempt: int
    trace_id: str | None = None
    """None if the engine is not traced."""


running_task: Final[ContextVar[RunningTask | None]] = ContextVar("synergon_running_task", default=None)
"""Set while a task function runs: in its coroutine, its thread or its child process, and in what they start."""


class TaskLogFilter(logging.Filter):
    """Adds `node`, `task_id`, `kind`, `attempt` and, in a traced engine, `trace_id` to every record that code of a task
    function logs.

    Add it to a handler: `handler.addFilter(TaskLogFilter())`. A record that has one of these attributes keeps it.
    Records of other code get none.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes. Every record passes."""
        task = running_task.get()
        if task is not None:
            for name, value in zip(FIELDS, task, strict=True):
                if value is not None and not hasattr(record, name):
                    setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """A formatter that makes one JSON object on one line of each record."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON. Fields without a value are left out."""
        at = datetime.fromtimestamp(record.created, UTC)
        document: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _encodable(record.getMessage()),
            "node": self._node,
        }
        document |= {
            name: value if isinstance(value, int) else _encodable(str(value))
            for name in FIELDS
            if (value := getattr(record, name, None)) is not None
        }
        exception = self._exception(record)
        if exception:
            document["exception"] = _encodable(exception)
        return printable_json(msgspec.json.encode(document)).decode()

    def _exception(self, record: logging.LogRecord) -> str:
        text = record.exc_text or ""
        if record.exc_info and not text:
            error = record.exc_info[1]
            text = str(error) if isinstance(error, LoggedTraceback) else self.formatException(record.exc_info)
        return "\n".join(filter(None, (text, record.stack_info)))


def _encodable(text: str) -> str:
    """The text, with escapes for characters that UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()
