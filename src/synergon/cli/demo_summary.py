"""The demo's reckoning: what was accepted, what the database says, and what the bodies wrote down themselves.

Three witnesses that must agree task by task. Nothing here trusts a counter of the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from synergon.cli.demo_log import Run, RunLog
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskRecord

LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class Summary:
    """All there is to compare, once everything has ended."""

    accepted: Collection[int]
    """The ids that enqueue gave out."""
    cancelled: Collection[int]
    """The ids that somebody cancelled."""
    history: Mapping[int, TaskRecord]
    """What the database says."""
    log: RunLog
    """What the bodies say."""

    # ------------------------------------------------------------ what does not add up

    def complaints(self) -> list[str]:
        """Everything in which the three do not agree; empty: it adds up."""
        return [complaint for task_id in self._all_ids() for complaint in self._complaints_about(task_id)]

    def _all_ids(self) -> list[int]:
        return sorted({*self.accepted, *self.history, *self.log.by_task})

    def _complaints_about(self, task_id: int) -> Iterator[str]:
        record = self.history.get(task_id)
        if task_id not in self.accepted:
            yield f"task {task_id} was never accepted"
        if record is None:
            yield f"task {task_id} was accepted, and the database does not know it"
            return
        expected = State.CANCELLED if task_id in self.cancelled else State.SUCCEEDED
        if record.state is not expected:
            yield f"task {task_id} ({record.kind}) is {record.state}, not {expected}"
        else:
            yield from self._complaints_about_runs(record, self.log.by_task.get(task_id, []))

    @staticmethod
    def _complaints_about_runs(record: TaskRecord, runs: Sequence[Run]) -> Iterator[str]:
        name = f"task {record.id} ({record.kind})"
        ends = sum(run.is_finished for run in runs)
        stops = sum(run.is_stopped for run in runs)
        errors = record.attempts - (record.state is State.SUCCEEDED)
        if record.state is State.SUCCEEDED and ends == 0:
            yield f"{name} succeeded, but no body of it has ended"
        if stops < errors:
            yield f"{name} failed {errors} times by the database, but {stops} times by its bodies"
        # A process may die between the end of a body and its commit: then, and only then, there is one run too many.
        if len(runs) > record.attempts + record.crashes:
            known = f"{record.attempts} attempts and {record.crashes} deaths are known"
            yield f"{name} was started {len(runs)} times; {known}"

    # ------------------------------------------------------------ figures

    def again_after_error(self) -> int:
        """How many starts followed an error of the body."""
        return sum(run.is_stopped for run in self.log.runs if run.task_id not in self.cancelled)

    def again_after_death(self) -> int:
        """How many tasks were started again because the process under them had died."""
        return sum(record.crashes > 0 and len(runs) > record.attempts for record, runs in self._known())

    def ended_twice(self) -> int:
        """How many processes died after the end of a body and before that was recorded."""
        return sum(sum(run.is_finished for run in runs) > 1 for _, runs in self._known())

    def start_delays(self, kind: str) -> list[float]:
        """Seconds from the moment at which each task could start to its first line, sorted."""
        return sorted(
            runs[0].started_at - max(record.enqueued_at, record.run_at).timestamp()
            for record, runs in self._known()
            if record.kind == kind and record.attempts == 1 and not record.crashes
        )

    def _known(self) -> Iterator[tuple[TaskRecord, Sequence[Run]]]:
        """The tasks that both the database and the bodies know."""
        for task_id, runs in self.log.by_task.items():
            if task_id in self.history:
                yield self.history[task_id], runs

    def peak(self) -> int:
        """The most bodies that ended within one second."""
        moments = sorted(self.log.finished())
        first = most = 0
        for last, moment in enumerate(moments):
            while moments[first] <= moment - 1:
                first += 1
            most = max(most, last - first + 1)
        return most

    def count(self, state: State) -> int:
        """How many tasks ended so."""
        return sum(record.state is state for record in self.history.values())


def show(reckoning: Summary, console: Console) -> bool:
    """Print the reckoning; whether it adds up."""
    complaints = reckoning.complaints()
    console.print(_figures(reckoning))
    console.print(_delays(reckoning))
    console.print()
    if not complaints:
        console.print(Text("It adds up: nothing is lost, and every task ended exactly once.", style="bold green"))
        return True
    console.print(Text("It does not add up:", style="bold red"))
    for complaint in complaints[:LISTED]:
        console.print(Text(f"  {complaint}", style="red"))
    if len(complaints) > LISTED:
        console.print(Text(f"  and {len(complaints) - LISTED} more", style="red"))
    return False


def _figures(reckoning: Summary) -> Table:
    unrecorded = reckoning.ended_twice()
    figures = {
        "accepted": (len(reckoning.accepted), "ids that enqueue returned"),
        "ended, by the database": (len(reckoning.history), f"{reckoning.count(State.CANCELLED)} of them cancelled"),
        "finished, by the bodies": (
            len({run.task_id for run in reckoning.log.runs if run.is_finished}),
            "who write that down themselves",
        ),
        "run again after an error": (reckoning.again_after_error(), "as their retry policy says"),
        "run again after a death": (
            reckoning.again_after_death(),
            "of their process" + (f"; {unrecorded} had ended unrecorded" if unrecorded else ""),
        ),
        "most in one second": (reckoning.peak(), "finished bodies; every commit is synced"),
    }
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    for name, (number, remark) in figures.items():
        table.add_row(name, f"{number:,}", remark)
    return table


def _delays(reckoning: Summary) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("\nfrom enqueue to start", no_wrap=True)
    for heading in ("\ntasks", "\np50", "\np99"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, label in {
        "alert": "alert, ahead of everything else",
        "charge": "charge, ahead of mail",
        "mail": "mail, among thousands",
        "remind": "remind, from its due moment on",
    }.items():
        delays = reckoning.start_delays(kind)
        if delays:
            table.add_row(label, f"{len(delays):,}", *(_milliseconds(delays, share) for share in (0.5, 0.99)))
    return table


def _milliseconds(ordered: Sequence[float], share: float) -> str:
    return f"{ordered[int(len(ordered) * share)] * 1000:,.0f} ms"
