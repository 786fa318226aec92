"""Strangers as real processes, which attack the port of a node until they are ended."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast
from urllib.parse import urlsplit

from tests.cluster.support import REPOSITORY


class Stranger:
    """A process that attacks an address, and how many rounds of it have ended."""

    def __init__(self, name: str, address: str) -> None:
        parts = urlsplit(address)
        self.rounds = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.apps.stranger", name, str(parts.hostname), str(parts.port)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._count, daemon=True)
        self._reader.start()

    def _count(self) -> None:
        for _ in cast("IO[str]", self._process.stdout):
            self.rounds += 1

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        cast("IO[str]", self._process.stdout).close()


@contextmanager
def stranger(name: str, address: str) -> Iterator[Stranger]:
    """A stranger for the duration of a `with`."""
    made = Stranger(name, address)
    try:
        yield made
    finally:
        made.end()
