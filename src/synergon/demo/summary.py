"""The summary of the demo: compares the accepted ids, the history in the database and the tasks' own log.

The three must agree about each task. The summary uses no counter of the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from synergon.demo.task_log import Run, TaskLog
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskRecord

MAX_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class Summary:
    """The three sources, collected after all tasks have ended."""

    accepted: Collection[int]
    """The ids that enqueue returned."""
    cancelled: Collection[int]
    """The ids that the demo cancelled."""
    history: Mapping[int, TaskRecord]
    """The tasks in the database."""
    log: TaskLog
    """The tasks' own log."""

    # ------------------------------------------------------------ discrepancies

    def discrepancies(self) -> list[str]:
        """Everything in which the three sources disagree."""
        return [text for task_id in self._all_ids() for text in self._discrepancies_of(task_id)]

    def _all_ids(self) -> list[int]:
        return sorted({*self.accepted, *self.history, *self.log.by_task})

    def _discrepancies_of(self, task_id: int) -> Iterator[str]:
        record = self.history.get(task_id)
        if task_id not in self.accepted:
            yield f"task {task_id} was never accepted"
        if record is None:
            yield f"task {task_id} was accepted but is not in the database"
            return
        expected = State.CANCELLED if task_id in self.cancelled else State.SUCCEEDED
        if record.state is not expected:
            yield f"task {task_id} ({record.kind}) is {record.state}, not {expected}"
        else:
            yield from self._discrepancies_of_runs(record, self.log.by_task.get(task_id, []))

    @staticmethod
    def _discrepancies_of_runs(record: TaskRecord, runs: Sequence[Run]) -> Iterator[str]:
        name = f"task {record.id} ({record.kind})"
        finished = sum(run.is_finished for run in runs)
        logged_errors = sum(run.has_error for run in runs)
        errors = record.attempts - (record.state is State.SUCCEEDED)
        if record.state is State.SUCCEEDED and finished == 0:
            yield f"{name} succeeded in the database but did not finish in the log"
        if logged_errors < errors:
            yield f"{name} failed {errors} times in the database but {logged_errors} times in the log"
        # A process may die between the end of a task function and its commit; each claim explains one run.
        if len(runs) > record.claim_no:
            yield f"{name} was started {len(runs)} times in the log; the database has {record.claim_no} claims"

    # ------------------------------------------------------------ figures

    def retried_after_error(self) -> int:
        """The number of runs that ended with an error and were retried."""
        return sum(run.has_error for run in self.log.runs if run.task_id not in self.cancelled)

    def rerun_after_crash(self) -> int:
        """Number of tasks that ran again because their process had died."""
        return sum(_lost_its_process(record) and len(runs) > record.attempts for record, runs in self._in_both())

    def finished_twice(self) -> int:
        """The number of tasks whose function finished more than once: the process had died before the first finish was
        committed."""
        return sum(sum(run.is_finished for run in runs) > 1 for _, runs in self._in_both())

    def start_delays(self, kind: str) -> list[float]:
        """For each task of the kind, the seconds from the moment at which it could start to its start, sorted."""
        return sorted(
            runs[0].started_at - max(record.enqueued_at, record.run_at).timestamp()
            for record, runs in self._in_both()
            if record.kind == kind and record.claim_no == 1
        )

    def _in_both(self) -> Iterator[tuple[TaskRecord, Sequence[Run]]]:
        """The tasks that are in the database and in the log."""
        for task_id, runs in self.log.by_task.items():
            if task_id in self.history:
                yield self.history[task_id], runs

    def peak(self) -> int:
        """The largest number of tasks that finished within one second."""
        moments = sorted(self.log.finished_at())
        first = most = 0
        for last, moment in enumerate(moments):
            while moments[first] <= moment - 1:
                first += 1
            most = max(most, last - first + 1)
        return most

    def count(self, state: State) -> int:
        """The number of tasks in this state."""
        return sum(record.state is state for record in self.history.values())


def print_summary(summary: Summary, console: Console) -> bool:
    """Print the summary. Returns whether there are no discrepancies."""
    discrepancies = summary.discrepancies()
    console.print(_figures(summary))
    console.print(_delays(summary))
    console.print()
    if not discrepancies:
        text = "Database and log agree: no task was lost, and each ended exactly once."
        console.print(Text(text, style="bold green"))
        return True
    console.print(Text("Database and log disagree:", style="bold red"))
    for discrepancy in discrepancies[:MAX_LISTED]:
        console.print(Text(f"  {discrepancy}", style="red"))
    if len(discrepancies) > MAX_LISTED:
        console.print(Text(f"  and {len(discrepancies) - MAX_LISTED} more", style="red"))
    return False


def _figures(summary: Summary) -> Table:
    twice = summary.finished_twice()
    figures = {
        "enqueued": (len(summary.accepted), "ids that enqueue returned"),
        "ended (from the database)": (len(summary.history), f"{summary.count(State.CANCELLED)} cancelled"),
        "finished (from the tasks' own log)": (len({run.task_id for run in summary.log.runs if run.is_finished}), ""),
        "retried after an error": (summary.retried_after_error(), "by their retry policy"),
        "re-run after a process died": (
            summary.rerun_after_crash(),
            f"{twice} had finished before the commit" if twice else "",
        ),
        "most finished in one second": (summary.peak(), "every commit is synced to disk"),
    }
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    for name, (number, remark) in figures.items():
        table.add_row(name, f"{number:,}", remark)
    return table


def _delays(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("\ndelay from enqueue to start", no_wrap=True)
    for heading in ("\ntasks", "\np50", "\np99"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, label in {
        "alert": "alert (priority 100)",
        "charge": "charge (priority 10)",
        "mail": "mail (priority 0)",
        "remind": "remind (from its scheduled time)",
    }.items():
        delays = summary.start_delays(kind)
        if delays:
            table.add_row(label, f"{len(delays):,}", *(_milliseconds(delays, share) for share in (0.5, 0.99)))
    return table


def _lost_its_process(record: TaskRecord) -> bool:
    return any(error.type in ("NodeDied", "Crash") for error in record.errors)


def _milliseconds(ordered: Sequence[float], share: float) -> str:
    return f"{ordered[int(len(ordered) * share)] * 1000:,.0f} ms"
