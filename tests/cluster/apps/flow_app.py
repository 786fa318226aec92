"""The flow of the guide, whose worker is killed in the task that the environment names, once."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from synergon import Engine, Flow

engine = Engine()


@dataclass
class Row:
    region: str
    number: int


def note(name: str) -> None:
    """Kill the worker if it is in this task for the first time."""
    killed = Path(os.environ.get("FLOW_KILLED", ""))
    if name == os.environ.get("FLOW_KILL") and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@engine.task
async def fetch(region: str) -> list[Row]:
    note(f"fetch {region}")
    return [Row(region, number) for number in range(2)]


@engine.task
async def merge(first: list[Row], second: list[Row]) -> list[Row]:
    note("merge")
    return first + second


@engine.task
async def render(row: Row) -> str:
    note(f"render {row.region} {row.number}")
    return f"{row.region}{row.number}"


@engine.task
async def publish(pages: list[str]) -> list[str]:
    note("publish")
    return pages


def new_flow() -> Flow:
    """The flow of the guide."""
    flow = engine.flow("import")
    first, second = flow.add(fetch.call("eu")), flow.add(fetch.call("us"))
    both = flow.add(merge.call(first.result, second.result))
    flow.add(publish.call(flow.map(render, over=both).results), if_dependency_fails="run")
    return flow
