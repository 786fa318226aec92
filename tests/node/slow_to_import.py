"""A module whose import takes as long as an environment variable says."""

from __future__ import annotations

import os
import time
from typing import Final

from synergon import Engine

SECONDS: Final = "SLOW_TO_IMPORT_SECONDS"

time.sleep(float(os.environ.get(SECONDS, "0")))

engine = Engine("memory://")


@engine.task
def add_late(first: int, second: int) -> int:
    return first + second
