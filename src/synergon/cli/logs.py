"""The worker's log: lines on stderr with time, level and node. An app that has set up logging keeps its own."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Final

FORMAT: Final = "%(asctime)s.%(msecs)03d %(levelname)-7s %(node)s  %(message)s"


class Level(StrEnum):
    """How much is said."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure(level: Level, node: str) -> None:
    """Log to stderr. Call it after the app was imported: handlers that are there by then are the app's own wish."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("synergon").setLevel(number)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, "%Y-%m-%d %H:%M:%S", defaults={"node": node}))
    root.addHandler(handler)
    root.setLevel(number)
