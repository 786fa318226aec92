"""Log lines of child processes: a child sends its log records to its parent, which logs them with node and task.

A child that has root handlers, because the application installs them when it is imported, logs for itself. What a child
logs while it imports the application is not sent.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import msgspec

from synergon.node.processes.child_main import ChildChannel

if TYPE_CHECKING:
    from synergon.node.processes.child_job import ChildJob

_FORMATTER: Final = logging.Formatter()


class ChildLine(msgspec.Struct, frozen=True, kw_only=True):
    """A log record, as a child sends it."""

    logger: str
    level: int
    created: float
    message: str
    traceback: str | None
    path: str
    line: int
    function: str
    task_id: int | None
    """The task that the child ran. None between two jobs."""
    kind: str
    attempt: int | None
    trace_id: str | None = None


_LINE: Final = msgspec.json.Decoder(ChildLine)


class ParentHandler(logging.Handler):
    """The root log handler of a child: sends records to the parent. A record that cannot be sent is printed on stderr,
    as logging does without handlers."""

    def __init__(self) -> None:
        super().__init__()
        self._process_id = os.getpid()
        self._channel: ChildChannel | None = None
        self._job: ChildJob | None = None

    def begin(self, job: ChildJob, channel: ChildChannel) -> None:
        """Add this job to the records that follow."""
        self._channel, self._job = channel, job

    def end(self) -> None:
        """Add no job to the records that follow."""
        self._job = None

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record to the parent."""
        try:
            line = msgspec.json.encode(_line_of(record, self._job))
            # A fork of this process shares the stream, and what both write would mix.
            if self._channel is not None and os.getpid() == self._process_id and self._channel.send_log(line):
                return
            if logging.lastResort is not None:
                logging.lastResort.handle(record)
        except Exception:  # noqa: BLE001  as every handler: a log call does not raise
            self.handleError(record)


def _line_of(record: logging.LogRecord, job: ChildJob | None) -> ChildLine:
    traceback = record.exc_text or (_FORMATTER.formatException(record.exc_info) if record.exc_info else None)
    return ChildLine(
        logger=record.name,
        level=record.levelno,
        created=record.created,
        message=record.getMessage().encode(errors="backslashreplace").decode(),
        traceback=None if traceback is None else traceback.encode(errors="backslashreplace").decode(),
        path=record.pathname,
        line=record.lineno,
        function=record.funcName or "",
        task_id=None if job is None else job.task_id,
        kind="" if job is None else job.kind,
        attempt=None if job is None else job.attempt,
        trace_id=None if job is None or job.trace is None else job.trace.id,
    )


_handler: ParentHandler | None = None


def send_lines_to_parent(job: ChildJob, channel: ChildChannel) -> None:
    """Install the handler, unless the application has root handlers, and have it add this job to log records."""
    global _handler
    root = logging.getLogger()
    if _handler is None and not root.handlers:
        _handler = ParentHandler()
        root.addHandler(_handler)
    if _handler is not None and _handler in root.handlers:
        root.setLevel(job.log_level)
        _handler.begin(job, channel)


def name_no_job() -> None:
    """Have the handler add no job to the records that follow."""
    if _handler is not None:
        _handler.end()


def log_line(payload: bytes, node: str) -> None:
    """Log a record that a child has sent, in the parent."""
    line = _LINE.decode(payload)
    logger = logging.getLogger(line.logger)
    if not logger.isEnabledFor(line.level):
        return
    message = line.message if line.task_id is None else f"task {line.task_id} ({line.kind}): {line.message}"
    extra = {
        "node": node,
        "task_id": line.task_id,
        "kind": line.kind,
        "attempt": line.attempt,
        "trace_id": line.trace_id,
    }
    record = logger.makeRecord(
        line.logger, line.level, line.path, line.line, message, (), None, line.function, extra=extra
    )
    record.created = line.created
    record.msecs = line.created % 1 * 1000
    record.exc_text = line.traceback
    logger.handle(record)
