"""Logging of the worker and the web API: lines on stderr with time, level and node, as text or as JSON, unless the app
has configured logging itself."""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.model.events import Event
from synergon.model.log_records import JsonFormatter, TaskLogFilter
from synergon.model.printable import printable, task_logger

FORMAT: Final = "%(asctime)s.%(msecs)03d %(levelname)-7s %(node)s  %(message)s"


class Level(StrEnum):
    """The log level."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class TaskLines(StrEnum):
    """For which tasks `synergon worker` logs a line when they end."""

    OFF = "off"
    FAILURES = "failures"
    ALL = "all"


class Format(StrEnum):
    """How records are written."""

    TEXT = "text"
    JSON = "json"


LevelOption = Annotated[
    Level,
    typer.Option(
        "--log-level", "-l", metavar="LEVEL", envvar="SYNERGON_LOG_LEVEL", help="debug, info, warning or error."
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        metavar="FORMAT", envvar="SYNERGON_LOG_FORMAT", help="text, or json: one object on each line of the log."
    ),
]


class PrintableFormatter(logging.Formatter):
    """A formatter that escapes control characters, whatever logger made the record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, with control characters escaped. A traceback keeps its line breaks."""
        return printable(super().format(record), lines=True)


def configure(level: Level, node: str, log_format: Format = Format.TEXT) -> None:
    """Log to stderr, unless the app has installed handlers. All handlers get the id of the task to which a record
    belongs. Called after the app was imported. Raises OptionError for a JSON format if the app has installed handlers,
    because these have formats of their own."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("synergon").setLevel(number)
    root = logging.getLogger()
    if root.handlers and log_format is Format.JSON:
        raise OptionError(
            "--log-format json has no effect, because the app installs handlers of the root logger itself; remove them "
            "(logging.basicConfig, dictConfig), or leave the option out"
        )
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        text = PrintableFormatter(FORMAT, "%Y-%m-%d %H:%M:%S", defaults={"node": node})
        handler.setFormatter(JsonFormatter(node) if log_format is Format.JSON else text)
        root.addHandler(handler)
        root.setLevel(number)
    for installed in root.handlers:
        installed.addFilter(TaskLogFilter())


def log_tasks(engine: Engine, lines: TaskLines, node: str) -> None:
    """Log tasks of the engine's node as they end: none, those that fail, or all; with all, also starts on the level
    DEBUG. Every line of a task that ends well costs time, so that is not the default."""
    logger = task_logger(engine.logger)
    if lines is TaskLines.OFF:
        logger.setLevel(logging.CRITICAL)
    elif lines is TaskLines.ALL:
        engine.on_event(TaskLog(logger, node))


class TaskLog:
    """A subscriber that logs starts and ends. The runner logs failures, with their errors."""

    def __init__(self, logger: logging.Logger, node: str) -> None:
        self._logger = logger
        self._node = node
        self._started: dict[int, datetime] = {}

    def __call__(self, event: Event) -> None:
        """Log the event."""
        fields = {"node": self._node, "task_id": event.task_id, "kind": event.kind}
        if event.name == "started":
            self._started[event.task_id] = event.at
            self._logger.debug("task %d (%s) starts", event.task_id, event.kind, extra=fields)
            return
        started = self._started.pop(event.task_id, event.at)
        if event.name not in ("failed", "retried", "crashed"):
            what = event.name.replace("_", " ")
            seconds = (event.at - started).total_seconds()
            self._logger.info("task %d (%s) %s after %.3f s", event.task_id, event.kind, what, seconds, extra=fields)
