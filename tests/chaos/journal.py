"""What the processes of an arena write down. One line is one write, so that lines of many processes do not mix.

All times are CLOCK_MONOTONIC, which the processes of one host share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.chaos.evidence import Acceptance, BatchLine, Event, Line, Pause

from synergon import Context

FOLDER_VARIABLE: Final = "CHAOS_FOLDER"
NODE_VARIABLE: Final = "CHAOS_NODE"
"""The pid of the node, which its child processes inherit."""

EXECUTIONS: Final = "executions"
STANDSTILLS: Final = "standstills"
ACCEPTED: Final = "accepted"
BATCHES: Final = "batches"
RETRIED: Final = "retried"


def append(name: str, *words: object, sync: bool = False) -> None:
    """One more line in the file of this name; on the disk when it returns, if `sync`."""
    path = Path(os.environ[FOLDER_VARIABLE]) / name
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def note(event: Event, ctx: Context) -> None:
    """A body says what it does."""
    words = (ctx.task_id, ctx.claim_no, os.getpid(), os.environ[NODE_VARIABLE], f"{time.monotonic():.6f}")
    append(EXECUTIONS, event, *words)


@contextmanager
def recorded(ctx: Context) -> Iterator[None]:
    """Write down how an execution begins and ends."""
    note(Event.BEGINS, ctx)
    try:
        yield
    except Exception:
        note(Event.RAISES, ctx)
        raise
    except BaseException:
        note(Event.IS_STOPPED, ctx)
        raise
    note(Event.RETURNS, ctx)


def note_accepted(task_ids: Iterable[int]) -> None:
    """A producer says what it was given; it is on the disk when this returns."""
    append(ACCEPTED, os.getpid(), f"{time.monotonic():.6f}", *task_ids, sync=True)


def note_batch(ctx: Context, tokens: Iterable[str]) -> None:
    """The function of a batch says which items it got."""
    append(BATCHES, ctx.task_id, ctx.claim_no, *tokens)


def mend(label: str) -> None:
    """From now on the step with this label can succeed."""
    (Path(os.environ[FOLDER_VARIABLE]) / f"mended-{label}").touch()


def is_mended(label: str) -> bool:
    """Whether the step with this label can succeed."""
    return (Path(os.environ[FOLDER_VARIABLE]) / f"mended-{label}").exists()


def note_retried(label: str) -> None:
    """A producer says that the flow with this label was retried after its step was mended."""
    append(RETRIED, label, sync=True)


# ------------------------------------------------------------ reading


def executions(folder: Path) -> Iterator[Line]:
    """What bodies wrote down, in the order in which they did."""
    for event, task_id, claim_no, pid, node_pid, at in _words(folder / EXECUTIONS):
        yield Line(Event(event), int(task_id), int(claim_no), int(pid), int(node_pid), float(at))


def standstills(folder: Path) -> Iterator[Pause]:
    """When nodes got no time from the operating system."""
    for node_pid, began, ended in _words(folder / STANDSTILLS):
        yield Pause(int(node_pid), float(began), float(ended))


def acceptances(folder: Path) -> Iterator[Acceptance]:
    """What producers were given, in the order in which they wrote it down."""
    for pid, at, *task_ids in _words(folder / ACCEPTED):
        yield Acceptance(int(pid), float(at), tuple(map(int, task_ids)))


def accepted(folder: Path) -> list[int]:
    """The ids that an enqueue has returned."""
    return [task_id for acceptance in acceptances(folder) for task_id in acceptance.task_ids]


def batches(folder: Path) -> Iterator[BatchLine]:
    """Which items each batch had."""
    for leader_id, claim_no, *tokens in _words(folder / BATCHES):
        yield BatchLine(int(leader_id), int(claim_no), tuple(tokens))


def retried(folder: Path) -> list[str]:
    """The labels of the flows that were retried after their step was mended."""
    return [label for (label,) in _words(folder / RETRIED)]


def _words(path: Path) -> Iterable[list[str]]:
    if not path.exists():
        return []
    # The last line of a process that was killed is whole or not there: it was one write.
    return [line.split() for line in path.read_text().splitlines()]
