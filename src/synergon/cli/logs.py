"""Logging of the worker: lines on stderr with time, level and node, unless the app has configured logging itself."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Final

from synergon.model.printable import printable

FORMAT: Final = "%(asctime)s.%(msecs)03d %(levelname)-7s %(node)s  %(message)s"


class Level(StrEnum):
    """The log level."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class PrintableFormatter(logging.Formatter):
    """A formatter that escapes control characters, whatever logger made the record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, with control characters escaped. A traceback keeps its line breaks."""
        return printable(super().format(record), lines=True)


def configure(level: Level, node: str) -> None:
    """Log to stderr, unless the app has installed handlers. Called after the app was imported."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("synergon").setLevel(number)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter(FORMAT, "%Y-%m-%d %H:%M:%S", defaults={"node": node}))
    root.addHandler(handler)
    root.setLevel(number)
