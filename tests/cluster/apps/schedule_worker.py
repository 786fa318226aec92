"""A worker whose code declares schedules of one second: `python -m tests.cluster.apps.schedule_worker '{}'`."""

from __future__ import annotations

import os
from datetime import datetime

from tests.cluster.apps.faults_worker import main

from synergon import Engine

engine = Engine()


@engine.task
async def tick(name: str) -> str:
    """What every schedule creates."""
    return name


def declare() -> None:
    """The schedules that the environment asks for."""
    starts_at, ends_at = (datetime.fromisoformat(os.environ[name]) for name in ("SCHEDULES_START", "SCHEDULES_END"))
    for number in range(int(os.environ["SCHEDULES_CODED"])):
        name = f"coded-{number}"
        engine.schedule(
            name,
            tick.call(name),
            every="1s",
            starts_at=starts_at,
            ends_at=ends_at,
            overlap="queue",
            missed="all",
        )


if __name__ == "__main__":
    declare()
    main(engine)
