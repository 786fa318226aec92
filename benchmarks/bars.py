"""The bars that the figures are held against."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

from benchmarks.figures import Figure
from benchmarks.pages import PAGES

Sign = Literal["≥", "≤", "<"]

_COMPARE: Final = {"≥": operator.ge, "≤": operator.le, "<": operator.lt}


class Bar(msgspec.Struct, frozen=True):
    """A figure's best sample must be on this side of the limit."""

    sign: Sign
    limit: float

    def is_met(self, figure: Figure) -> bool:
        """Whether it is."""
        return bool(_COMPARE[self.sign](figure.best, self.limit))


BARS: Final[Mapping[str, Bar]] = {
    "ratio.drain_to_huey": Bar("≥", 12),
    "sqlite.awaited_enqueue": Bar("≥", 40_000),
    "sqlite.awaited_enqueue.p99": Bar("<", 10),
    "sqlite.idle_start.p50": Bar("≤", 3),
    "sqlite.idle_start.p99": Bar("≤", 15),
    "sqlite.scheduled_lateness.p50": Bar("≤", 5),
    "sqlite.scheduled_lateness.p99": Bar("≤", 25),
    "memory.drain": Bar("≥", 60_000),
    "memory.tenants_to_without_turns": Bar("≥", 0.9),
    "memory.scheduled_lateness.p50": Bar("≤", 5),
    "memory.scheduled_lateness.p99": Bar("≤", 25),
    "backlog.claim_of_100.p99": Bar("<", 5),
    "backlog.last_tenth_to_first": Bar("≥", 0.8),
    "backlog.node_memory": Bar("<", 150),
    "sqlite.schedule_lateness.p50": Bar("≤", 5),
    "sqlite.batches_to_one_by_one_5ms": Bar("≥", 20),
    "sqlite.batches_to_one_by_one_no_op": Bar("≥", 1),
    "sqlite.idle_node": Bar("≤", 0.5),
    "sqlite.statistics_to_without": Bar("≥", 0.97),
    "pg_synergon.statistics_to_without": Bar("≥", 0.97),
    "sqlite.flows_to_plain": Bar("≥", 0.5),
    "pg_synergon.flows_to_plain": Bar("≥", 0.5),
    "ratio.drain_to_pgqueuer": Bar("≥", 2),
    "ratio.bulk_enqueue_to_pgqueuer": Bar("≥", 1.3),
    "ratio.drain_to_awa": Bar("≥", 5),
    "ratio.drain_to_oban": Bar("≥", 5),
    "hints.idle_start.p50": Bar("≤", 3),
    "hints.idle_start.p99": Bar("≤", 15),
    "hints.idle_start_by_a_resting_loop.p50": Bar("≤", 3),
    "hints.idle_start_by_a_resting_loop.p99": Bar("≤", 15),
    "pg_synergon.idle_start.p50": Bar("≤", 3),
    "pg_synergon.idle_start.p99": Bar("≤", 15),
    "pg_synergon.scheduled_lateness.p50": Bar("≤", 5),
    "pg_synergon.scheduled_lateness.p99": Bar("≤", 25),
    "pg_synergon.schedule_lateness.p50": Bar("≤", 5),
    "pg_synergon.batches_to_one_by_one_5ms": Bar("≥", 20),
    "pg_synergon.batches_to_one_by_one_no_op": Bar("≥", 1),
    "pg_synergon.idle_node": Bar("≤", 0.5),
    **{f"{store}.{name}.p95": Bar("≤", 200) for store in ("pages", "pg_pages") for name in PAGES},
    "pages.viewers_to_without": Bar("≥", 0.95),
    "pg_pages.viewers_to_without": Bar("≥", 0.95),
    "pg_backlog.claim_of_100.p99": Bar("<", 5),
    "pg_backlog.last_tenth_to_first": Bar("≥", 0.8),
    "pg_backlog.node_memory": Bar("<", 150),
    **{
        f"{store}.{what}": bar
        for store in ("limits", "pg_limits")
        for what, bar in {
            "customers_to_without_limit": Bar("≥", 0.5),
            "servers_to_without_servers": Bar("≥", 0.5),
            "tenants_to_without_turns": Bar("≥", 0.9),
            "raised_limit.p50": Bar("≤", 50),
            "raised_line.p50": Bar("≤", 50),
            # Their bodies take 20 ms.
            "one_at_a_time_by_name": Bar("≤", 23),
            "one_at_a_time_in_a_line": Bar("≤", 23),
            "one_at_a_time_on_a_server": Bar("≤", 23),
        }.items()
    },
}


RATIOS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "ratio.drain_to_huey": ("sqlite.drain", ("huey.thread.drain", "huey.process.drain")),
    "ratio.bulk_enqueue_to_huey": (
        "sqlite.bulk_enqueue",
        ("huey.thread.bulk_enqueue", "huey.process.bulk_enqueue"),
    ),
    "ratio.drain_to_bare_sqlite_in_hundreds": ("sqlite.drain", ("raw.in_hundreds",)),
    **{
        f"ratio.drain_to_{rival}": ("pg_synergon.drain_with_1_node", (f"pg_{rival}.drain_with_1_node",))
        for rival in ("pgqueuer", "awa", "oban", "procrastinate")
    },
    "ratio.bulk_enqueue_to_pgqueuer": ("pg_synergon.bulk_enqueue", ("pg_pgqueuer.bulk_enqueue",)),
}
"""What is compared rather than measured: ours, and the others', of which the fastest counts."""

NOT_MEASURED: Final = "not measured"


def ratios(figures: Mapping[str, Figure]) -> Iterator[Figure]:
    """As far as both sides are there."""
    for name, (ours, others) in RATIOS.items():
        if figures.keys() >= {ours, *others}:
            fastest = max(figures[other].best for other in others)
            yield Figure(name, "×", (figures[ours].best / fastest,))


def unmeasured(figures: Mapping[str, Figure], notes: Mapping[str, str]) -> Iterator[str]:
    """The ratios of which a side was asked for and came to nothing."""
    for name, (ours, others) in RATIOS.items():
        if name not in figures and notes.keys() & {ours, *others}:
            yield name


def verdicts(figures: Mapping[str, Figure], notes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each bar of this run in words, and whether it holds."""
    for name, bar in BARS.items():
        if name in figures:
            yield name, "met" if bar.is_met(figures[name]) else "missed"
        elif name in notes:
            yield name, NOT_MEASURED
