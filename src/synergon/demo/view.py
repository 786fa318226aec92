"""The output of the demo while it runs: a live view on a terminal, plain lines elsewhere. It fits into 80 columns."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from synergon.demo.app import engine
from synergon.demo.task_log import TaskLog
from synergon.demo.worker_processes import WorkerProcess
from synergon.model.lifecycle import FINAL, State

SHOWN_LINES: Final = 7
RATE_SECONDS: Final = 1.0
COLUMNS: Final = {
    "ready": ({State.READY}, "bold"),
    "scheduled": ({State.SCHEDULED}, "yellow"),
    "running": ({State.RUNNING}, "cyan"),
    "ended": (FINAL, "green"),
}

Counts = Mapping[tuple[str, str, State], int]


class View:
    """Draws the state of the demo, and prints lines that stay on the screen after the live view is removed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_at = time.monotonic()
        self._lines: list[Text] = []
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stderr=False)

    def __enter__(self) -> View:
        self._console.print(Text.assemble(("synergon demo", "bold"), "  one SQLite file, two worker processes\n"))
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            for line in self._lines:
                self._console.print(line)
        self._console.print()

    def print(self, text: str, style: str = "") -> None:
        """Print a line with the seconds since the start."""
        line = Text.assemble((f"{time.monotonic() - self._started_at:5.1f} s  ", "dim"), (text, style))
        self._lines.append(line)
        if self._live is None:
            self._console.print(line)

    def draw(self, counts: Counts, log: TaskLog, workers: Sequence[WorkerProcess], accepted: int) -> None:
        """Update the live view. Does nothing without a terminal."""
        if self._live is None:
            return
        now = time.time()
        parts = (_progress(counts, log, accepted, now), _kinds(counts), _workers(workers, log, now), self._last_lines())
        self._live.update(Group(*parts), refresh=True)

    def _last_lines(self) -> RenderableType:
        lines = self._lines[-SHOWN_LINES:]
        return Group(*lines, *[Text()] * (SHOWN_LINES - len(lines)))


def _progress(counts: Counts, log: TaskLog, accepted: int, now: float) -> RenderableType:
    ended = sum(number for (_, _, state), number in counts.items() if state in FINAL)
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_row(
        ProgressBar(total=max(accepted, 1), completed=ended, width=30, complete_style="green", finished_style="green"),
        Text.assemble((f"{ended:,}", "bold green"), f" of {accepted:,} ended"),
        Text(f"{_rate(log.finished_at(), now):,} per second", style="bold cyan"),
    )
    return line


def _kinds(counts: Counts) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("\nkind", "\nruns in"):
        table.add_column(heading, width=10)
    for heading in ("\npriority", *(f"\n{name}" for name in COLUMNS)):
        table.add_column(heading, justify="right", width=9)
    for kind, task_type in engine.kinds.items():
        numbers = [_number(counts, kind, states, style) for states, style in COLUMNS.values()]
        table.add_row(Text(kind, style="bold"), task_type.policy.runs_in, str(task_type.policy.priority), *numbers)
    return table


def _number(counts: Counts, kind: str, states: Collection[State], style: str) -> Text:
    number = sum(count for (_, its_kind, state), count in counts.items() if its_kind == kind and state in states)
    return Text(f"{number:,}", style=style if number else "dim")


def _workers(workers: Sequence[WorkerProcess], log: TaskLog, now: float) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for worker in workers:
        finished_at = log.finished_at(worker.name)
        running = len(log.running_on(worker.name))
        is_alive = worker.killed_at is None
        table.add_row(
            Text("●" if is_alive else "✖", style="green" if is_alive else "bold red"),
            Text(worker.name, style="bold"),
            Text(f"pid {worker.pid}", style="dim"),
            Text(f"{running} running") if is_alive else Text(f"killed with {running} running", style="bold red"),
            f"{len(finished_at):,} finished",
            Text(f"{_rate(finished_at, now):,} per second", style="cyan") if is_alive else "",
        )
    return Group(Text(), table, Text())


def _rate(moments: Sequence[float], now: float) -> int:
    return round(sum(moment > now - RATE_SECONDS for moment in moments) / RATE_SECONDS)
