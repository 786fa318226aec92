"""Bodies that child processes import by name."""

from __future__ import annotations

from synergon import Engine

_engine = Engine("memory://")  # a child looks for a task under the function's name, whatever engine it belongs to


@_engine.task(runs_in="process")
def echo_in_process(number: int) -> int:
    return number


def echo_in_thread(number: int) -> int:
    return number
