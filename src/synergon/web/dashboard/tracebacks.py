"""Tracebacks for people: the frames of the application first, those of libraries and of synergon apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LIBRARY: Final = re.compile(r"site-packages|dist-packages|[/\\]lib[/\\]python\d|[/\\]synergon[/\\]|^<frozen|^<string>")
FRAME: Final = re.compile(r'^\s*File "(?P<path>[^"\n]*)", line (?P<line>\d+), in (?P<function>[^\n]*)$')
MARKS: Final = re.compile(r"^\s*[~^]+\s*$")


@dataclass(slots=True)
class Frame:
    """One frame of a traceback."""

    path: str
    line: int
    function: str
    is_own: bool
    """Whether it is in the code of the application."""
    code: str = ""


def frames_of(traceback: str) -> list[Frame]:
    """The frames of a traceback, the innermost first."""
    found: list[Frame] = []
    for text in traceback.splitlines():
        match = FRAME.match(text)
        if match is not None:
            path = match["path"]
            found.append(Frame(path, int(match["line"]), match["function"], LIBRARY.search(path) is None))
        elif found and not found[-1].code and text.startswith("    ") and not MARKS.match(text):
            found[-1].code = text.strip()
    return found[::-1]
