"""Makes text safe to print on a terminal or to log.

Errors, progress, reasons and names come from task functions, servers and other users. A terminal obeys some of their
characters, and a line break in a log looks like a new record. `printable` escapes all such characters.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Final

_UNSAFE: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, with CR, BEL and the ESC of CSI and OSC, and C1, where both are one character
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # they change the direction of the text that follows
    "\u2028\u2029"  # line breaks
    "\ud800-\udfff"  # no terminal's encoding has them
    "\U000e0000-\U000e007f"  # invisible copies of ASCII
    "]"
)


def printable(text: str, *, lines: bool = False) -> str:
    r"""The text with its control characters escaped, such as `\x1b`. With `lines`, line breaks and tabs remain."""
    return _UNSAFE.sub(lambda found: found[0] if lines and found[0] in "\n\t" else _escape(found[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def printable_json(document: bytes) -> bytes:
    """The JSON document with control characters escaped as JSON does it. Outside strings, only line breaks can occur,
    and they remain."""
    text = document.decode()
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text).encode()


class LoggedTraceback(Exception):
    """The traceback of a task function as text, to be logged as `exc_info`. The exception may have been raised in
    another process."""

    @classmethod
    def info(cls, text: str) -> tuple[type[BaseException], BaseException, None] | None:
        """The value of `exc_info` for a text. None if the text is empty."""
        return (cls, cls(text.rstrip("\n")), None) if text else None


class PrintableRecords(logging.Filter):
    """A filter that escapes control characters in every log record, before a handler gets it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the message, its arguments and the traceback. The traceback keeps its line breaks."""
        if isinstance(record.msg, str):
            record.msg = printable(record.msg)
        if isinstance(record.args, tuple):
            record.args = tuple(map(_printable_argument, record.args))
        if record.exc_info and record.exc_text is None:
            error = record.exc_info[1]
            text = str(error) if isinstance(error, LoggedTraceback) else _FORMATTER.formatException(record.exc_info)
            record.exc_text = printable(text, lines=True)
        return True


def _printable_argument(argument: object) -> object:
    return printable(str(argument)) if isinstance(argument, str | BaseException) else argument


_FORMATTER: Final = logging.Formatter()
_RECORDS: Final = PrintableRecords()


def printing(logger: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
    """Make this logger escape control characters in all its records."""
    while isinstance(logger, logging.LoggerAdapter):
        logger = logger.logger
    logger.addFilter(_RECORDS)


def task_logger(logger: logging.Logger) -> logging.Logger:
    """The logger for lines about single tasks. It is a child of the engine's logger, so that its level can be set
    separately."""
    child = logger.getChild("tasks")
    printing(child)
    return child
