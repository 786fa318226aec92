"""A task system on PostgreSQL, in the few words that the measures are written in.

Each system runs in the Python that it is installed in, which may have nothing of ours: standard library only here.
What a process has to say goes to its standard output, a line of JSON each. Moments are of the monotonic clock, which
is the same in every process of a host; only what is due is told by the wall clock.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.postgres.tally import Tally

CONCURRENCY: Final = 500
TALLY: Final = "BENCH_TALLY"
"""The environment variable that names the file in which bodies mark that they have run."""


class App(ABC):
    """One system. A `nothing` is a task that does nothing, a `stamp` is one that tells when it began."""

    package: ClassVar[str]
    """What it is called where packages are installed from."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._has_begun = False
        self._tally = Tally(Path(os.environ[TALLY])) if TALLY in os.environ else None

    @abstractmethod
    async def set_up(self) -> None:
        """Make the tables."""

    @abstractmethod
    async def connect(self) -> None:
        """Be ready to enqueue."""

    async def disconnect(self) -> None:
        """The end of `connect`, for systems that want one."""
        return

    @abstractmethod
    async def fill(self, numbers: Sequence[int]) -> None:
        """Enqueue many `nothing` tasks with the best call that there is for it."""

    @abstractmethod
    async def enqueue(self, number: int) -> None:
        """Enqueue one `stamp`."""

    @abstractmethod
    async def schedule(self, number: int, due: datetime) -> None:
        """Enqueue one `stamp` that is due then."""

    @abstractmethod
    async def work(self) -> None:
        """Run tasks until the process is killed."""

    def nothing(self, number: int) -> None:
        """The body of a `nothing`; the first of a process is told, because the start of the process does not count."""
        if not self._has_begun:
            self._has_begun = True
            tell(first=time.monotonic())
        if self._tally is not None:
            self._tally.mark(number)

    def stamp(self, number: int) -> None:
        """The body of a `stamp`."""
        tell(number=number, moment=time.monotonic(), wall=time.time())


def tell(**what: object) -> None:
    """A line for whoever measures."""
    print(json.dumps(what), flush=True)
