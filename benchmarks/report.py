"""The figures as a table for people and as JSON for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.bars import BARS, verdicts
from benchmarks.figures import Check, Figure, Unit
from benchmarks.sizes import Sizes

SUBJECTS: Final = {
    "ratio": "ratios",
    "sqlite": "synergon on SQLite",
    "memory": "synergon in memory",
    "huey": "Huey on SQLite",
    "raw": "bare SQLite",
    "backlog": "{backlog:,} tasks wait on SQLite",
    "pages": "pages of the dashboard on SQLite, {history:,} tasks in the history",
    "hints": "synergon on SQLite, producer in another process",
    "pg_synergon": "synergon on PostgreSQL",
    "pg_pgqueuer": "PgQueuer",
    "pg_procrastinate": "Procrastinate",
    "pg_awa": "Awa",
    "pg_oban": "Oban",
    "pg_backlog": "{backlog:,} tasks wait on PostgreSQL",
    "pg_pages": "pages of the dashboard on PostgreSQL, {history:,} tasks in the history",
    "limits": "limits on SQLite",
    "pg_limits": "limits on PostgreSQL",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run found."""

    machine: dict[str, str]
    sizes: Sizes
    figures: dict[str, Figure]
    checks: list[Check]
    notes: dict[str, str] = {}
    """Why some figures are not there."""

    @property
    def failed(self) -> list[Check]:
        """The checks that make the figures worthless."""
        return [check for check in self.checks if not check.passed]

    def write(self, file: Path) -> None:
        """As JSON, with every sample."""
        file.write_bytes(msgspec.json.format(msgspec.json.encode(self._as_json())) + b"\n")

    def _as_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "sizes": self.sizes,
            "figures": {name: _figure_as_json(figure) for name, figure in self.figures.items()},
            "checks": self.checks,
            "notes": self.notes,
        }

    def print(self, console: Console) -> None:
        """As a table, grouped by subject."""
        console.print(", ".join(f"{name} {fact}" for name, fact in self.machine.items()), style="dim")
        table = Table("", "best", "worst", "bar", "", title=f"{self.sizes.name} run, {self.sizes.repeats} repeats")
        for column in table.columns[1:4]:
            column.justify = "right"
        for subject in SUBJECTS:
            self._add_subject(table, subject)
        console.print(table)
        self._print_bars(console)
        for check in self.failed:
            console.print(f"check failed: {check.what}: found {check.found}", style="bold red")
        if not self.failed:
            console.print(f"all {len(self.checks)} checks passed")

    def _print_bars(self, console: Console) -> None:
        """Which of them hold, in a line each way."""
        found: dict[str, list[str]] = {}
        for name, verdict in verdicts(self.figures, self.notes):
            found.setdefault(verdict, []).append(name.replace("_", " ").replace(".", " "))
        for verdict, names in found.items():
            console.print(f"bars {verdict}: {len(names)}" + (f" ({', '.join(names)})" if verdict != "met" else ""))

    def _add_subject(self, table: Table, subject: str) -> None:
        figures = [figure for figure in self.figures.values() if figure.subject == subject]
        notes = {name: why for name, why in self.notes.items() if name.partition(".")[0] == subject}
        if figures or notes:
            title = SUBJECTS[subject].format(backlog=self.sizes.backlog, history=self.sizes.history)
            table.add_section()
            table.add_row(f"[bold]{title}")
        for figure in figures:
            worst = _text(figure.worst, figure.unit) if len(figure.samples) > 1 else ""
            table.add_row(f"  {_what(figure.name)}", _text(figure.best, figure.unit), worst, *_verdict(figure))
        for name, why in notes.items():
            table.add_row(f"  {_what(name)}", "", "", "", f"[yellow]{why}")


def _figure_as_json(figure: Figure) -> dict[str, Any]:
    bar = BARS.get(figure.name)
    entry: dict[str, Any] = {"unit": figure.unit, "best": figure.best, "samples": figure.samples}
    if bar is not None:
        entry |= {"bar": f"{bar.sign} {bar.limit:g}", "met": bar.is_met(figure)}
    return entry


def _verdict(figure: Figure) -> tuple[str, str]:
    bar = BARS.get(figure.name)
    if bar is None:
        return "", ""
    return f"{bar.sign} {_text(bar.limit, figure.unit)}", "[green]met" if bar.is_met(figure) else "[red]missed"


def _what(name: str) -> str:
    return " ".join(name.split(".")[1:]).replace("_", " ")


def _text(value: float, unit: Unit) -> str:
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2
    return f"{value:,.{digits}f} {unit}"
