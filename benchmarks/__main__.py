"""`python -m benchmarks`: runs every subject, prints the table, and exits with 1 if a figure cannot be trusted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks import (
    backlog,
    batches,
    counting,
    flows,
    huey_bench,
    idle,
    isolation,
    machine,
    pages,
    raw_sqlite,
    schedules,
    synergon_bench,
)
from benchmarks.bars import NOT_MEASURED, ratios, unmeasured
from benchmarks.figures import Check, Measured, merge
from benchmarks.limits import measures as limits
from benchmarks.postgres import measures
from benchmarks.report import Report
from benchmarks.sizes import FULL, QUICK, Sizes

Subject = Callable[[Path, Sizes], Measured]

SUBJECTS: Final[dict[str, Subject]] = {
    "sqlite": synergon_bench.sqlite,
    "memory": synergon_bench.memory,
    "huey": huey_bench.measure,
    "raw": raw_sqlite.measure,
    "backlog": backlog.sqlite,
    "idle": idle.sqlite,
    "schedules": schedules.sqlite,
    "flows": flows.sqlite,
    "batches": batches.sqlite,
    "statistics": counting.sqlite,
    "pages": pages.sqlite,
    "hints": measures.on_sqlite,
    "postgres": measures.subject("synergon"),
    "pgqueuer": measures.subject("pgqueuer"),
    "procrastinate": measures.subject("procrastinate"),
    "awa": measures.subject("awa"),
    "oban": measures.subject("oban"),
    "postgres-backlog": backlog.postgres,
    "postgres-idle": idle.postgres,
    "postgres-schedules": schedules.postgres,
    "postgres-flows": flows.postgres,
    "postgres-batches": batches.postgres,
    "postgres-statistics": counting.postgres,
    "postgres-pages": pages.postgres,
    "limits": limits.sqlite,
    "one-at-a-time": limits.one_at_a_time_on_sqlite,
    "postgres-limits": limits.postgres,
    "postgres-one-at-a-time": limits.one_at_a_time_on_postgres,
    "memory-limits": limits.memory,
}

ONCE: Final = frozenset(
    {
        *("backlog", "idle", "postgres-backlog", "postgres-idle", "one-at-a-time", "postgres-one-at-a-time"),
        *("statistics", "postgres-statistics", "pages", "postgres-pages"),
    }
)
"""Long enough to even out what else the machine does."""

_progress: Final = Console(stderr=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for; the exit code."""
    options = _parser().parse_args(arguments)
    report = run(QUICK if options.quick else FULL, options.only or list(SUBJECTS))
    report.print(Console())
    if options.json is not None:
        report.write(options.json)
    return 1 if report.failed else 0


def run(sizes: Sizes, subjects: Sequence[str]) -> Report:
    """Measure these subjects."""
    if sizes is QUICK:
        _progress.print(f"quick: fewer tasks, and a backlog of {sizes.backlog:,} instead of {FULL.backlog:,}")
    facts = machine.facts(Path.cwd())
    measured = merge(_measure(turn, sizes) for turn in _turns(subjects, sizes.repeats))
    facts |= measured.facts
    facts["load after"] = machine.load()
    figures = {figure.name: figure for figure in measured.figures}
    figures |= {figure.name: figure for figure in ratios(figures)}
    notes = measured.notes | dict.fromkeys(unmeasured(figures, measured.notes), NOT_MEASURED)
    return Report(machine=facts, sizes=sizes, figures=figures, checks=measured.checks, notes=notes)


def _turns(subjects: Sequence[str], repeats: int) -> Iterator[str]:
    """All subjects, then all of them again: what disturbs the machine for a while should not hit one of them alone."""
    for number in range(1, repeats + 1):
        for subject in subjects:
            if number == 1 or subject not in ONCE:
                _progress.print(f"round {number} of {repeats}: {subject}")
                yield subject


def _measure(subject: str, sizes: Sizes) -> Measured:
    """In a process and a folder of its own. If it breaks down, that is a failed check, and the others still run."""
    with _progress.status("measures"), isolation.empty_folder() as folder:
        try:
            return isolation.in_new_process(SUBJECTS[subject], folder, sizes)
        except Exception as error:  # noqa: BLE001  whatever it was, it is told
            _progress.print_exception()
            return Measured(checks=[Check(f"{subject}: runs to its end", passed=False, found=repr(error))])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="The figures of synergon, and its bars.")
    parser.add_argument("--quick", action="store_true", help=f"fewer tasks; a backlog of {QUICK.backlog:,}")
    parser.add_argument(
        "--only", nargs="+", action="extend", choices=SUBJECTS, metavar="SUBJECT", help=f"only these of {[*SUBJECTS]}"
    )
    parser.add_argument(
        "--json", nargs="?", const=Path("bench-results.json"), type=Path, metavar="FILE", help="write every sample too"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
