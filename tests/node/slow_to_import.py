"""A module whose import in a child takes as long as an environment variable says, is written down, or kills it."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from synergon import Engine

SECONDS: Final = "SLOW_TO_IMPORT_SECONDS"
IMPORTS: Final = "SLOW_TO_IMPORT_JOURNAL"
"""A file that gets a `+` when an import begins, and a `-` when it ends."""
DIES: Final = "SLOW_TO_IMPORT_DIES"


def write_down(sign: str) -> None:
    """With one write, so that the signs of several processes are in order."""
    if IMPORTS in os.environ:
        journal = os.open(os.environ[IMPORTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(journal, sign.encode())
        os.close(journal)


write_down("+")
time.sleep(float(os.environ.get(SECONDS, "0")))
if DIES in os.environ:
    os.kill(os.getpid(), signal.SIGKILL)
write_down("-")

engine = Engine("memory://")


@engine.task
def add_late(first: int, second: int) -> int:
    return first + second
