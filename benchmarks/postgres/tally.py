"""What has run, seen without asking any system: every body marks its own number, and whoever measures counts marks.

The same for every system, and it always ends: a system whose tables do not tell what they have done is measured like
one whose tables do. Numbers are never given twice, so a body that runs again, of this fill or an earlier one, adds
nothing. Standard library only: bodies run where nothing of ours is installed.
"""

from __future__ import annotations

import asyncio
import mmap
import time
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 0.002
"""Between two looks at the marks; a look reads memory, and stops at the first that is missing."""


class Tally:
    """One byte for each number, shared by all processes that open the file."""

    def __init__(self, file: Path) -> None:
        with file.open("r+b") as opened:
            self._marks = mmap.mmap(opened.fileno(), 0)

    @staticmethod
    def make(file: Path, numbers: int) -> Tally:
        """A file in which nothing has run yet."""
        file.write_bytes(bytes(numbers))
        return Tally(file)

    def mark(self, number: int) -> None:
        """The body of this number runs; nanoseconds, from any thread."""
        self._marks[number] = 1

    def count(self, numbers: range) -> int:
        """How many of them have run."""
        return self._marks[numbers.start : numbers.stop].count(1)

    async def full(self, numbers: range, seconds: float) -> float | None:
        """The moment at which all of them have run; None: not within that time."""
        until = time.monotonic() + seconds
        missing = numbers.start
        while (missing := self._marks.find(b"\0", missing, numbers.stop)) >= 0:
            if time.monotonic() > until:
                return None
            await asyncio.sleep(LOOK_SECONDS)
        return time.monotonic()
