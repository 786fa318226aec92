"""A process that has imported synergon already and runs programs in children of its own, several at once.

Starting Python and importing synergon takes longer than most programs of the documentation. So this does both once and
then forks: a child is as good as a new interpreter, and ends like one.

Reads lines of JSON: `{"parallel": 4, "seconds": 30, "programs": [{"folder": "...", "script": "..."}]}`. A script is run
as `__main__`, or imported if `"imported"` is true; `"environment"` has more variables for it. Answers each line with
the list of `{"code", "output", "seconds"}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import runpy
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import synergon
import synergon.stores.memory
import synergon.stores.sqlite

WARM = (asyncio, sqlite3, synergon)


class Forked(Exception):
    """Raised in a child to leave the parent's loop."""

    def __init__(self, program: dict[str, Any]) -> None:
        self.program = program


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        answers = run_all(request["programs"], request["parallel"], request["seconds"])
        print(json.dumps(answers), flush=True)


def run_all(programs: list[dict[str, Any]], parallel: int, seconds: float) -> list[dict[str, Any]]:
    waiting = list(enumerate(programs))
    running: dict[int, tuple[int, float]] = {}
    answers: list[dict[str, Any]] = [{} for _ in programs]
    while waiting or running:
        while waiting and len(running) < parallel:
            index, program = waiting.pop(0)
            running[fork(program)] = (index, time.monotonic())
        for pid, (index, began) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            took = time.monotonic() - began
            if not ended and took > seconds:
                os.killpg(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0)
            if ended:
                del running[pid]
                output = Path(programs[index]["folder"], ".output").read_text(encoding="utf-8", errors="replace")
                code = os.waitstatus_to_exitcode(status)
                answers[index] = {"code": code, "output": output, "seconds": round(took, 2)}
        time.sleep(0.01)
    return answers


def fork(program: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        raise Forked(program)
    with contextlib.suppress(PermissionError, ProcessLookupError):  # it has done so itself, or has ended
        os.setpgid(pid, pid)
    return pid


def become(program: dict[str, Any]) -> None:
    """Be the program, from here to the end of the process."""
    os.setpgid(0, 0)
    os.chdir(program["folder"])
    os.environ.update(program["environment"])
    output = os.open(".output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[0] = program["folder"]
    sys.argv = [program["script"]]
    os.environ.update(program["environment"])
    if program["imported"]:
        importlib.import_module(".".join(Path(program["script"]).with_suffix("").parts))
    else:
        runpy.run_path(program["script"], run_name="__main__")


if __name__ == "__main__":
    try:
        serve()
    except Forked as forked:
        child = forked.program
    else:
        sys.exit()
    become(child)
