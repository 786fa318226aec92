"""A node as a program, which ends with its starter: `python -m tests.chaos.worker '{"lease": 3}'`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from typing import Final

from tests.chaos.app import engine
from tests.chaos.journal import NODE_VARIABLE, STANDSTILLS, append

from synergon.errors import StoreError

PULSE_SECONDS: Final = 0.05
STANDSTILL_SECONDS: Final = 0.4


def main() -> None:
    os.environ[NODE_VARIABLE] = str(os.getpid())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    threading.Thread(target=end_with_starter, daemon=True).start()
    threading.Thread(target=watch_the_pulse, daemon=True).start()
    try:
        asyncio.run(engine.run(**json.loads(sys.argv[1])))
    except StoreError as error:  # it came at a bad time; what `synergon worker` says then
        logging.info("cannot start: %s", error)
        sys.exit(3)


def end_with_starter() -> None:
    """The other end of the standard input is closed when the starter is gone, however that happened."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(99)


def watch_the_pulse() -> None:
    """A process that gets no time from a busy machine stands still like one that was stopped; the auditor must know."""
    last = time.monotonic()
    while True:
        time.sleep(PULSE_SECONDS)
        now = time.monotonic()
        if now - last > STANDSTILL_SECONDS:
            append(STANDSTILLS, os.getpid(), f"{last:.6f}", f"{now:.6f}")
        last = now


if __name__ == "__main__":
    main()
