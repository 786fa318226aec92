"""A worker as a program, which ends with its starter: `python -m tests.cluster.apps.faults_worker '{"lease": 2}'`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sys
import threading

from tests.cluster.apps.faults_bodies import engine

from synergon import Engine


def main(engine: Engine) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    threading.Thread(target=end_with_starter, daemon=True).start()
    asyncio.run(engine.run(**json.loads(sys.argv[1])))


def end_with_starter() -> None:
    """The other end of the standard input is closed when the starter is gone, however that happened."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(99)


if __name__ == "__main__":
    main(engine)
