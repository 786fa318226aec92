"""What a benchmark hands back: figures, and the checks without which they would mean nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from synergon.cli.bench import Percentiles

Unit = Literal["/s", "ms", "µs", "MB", "×", "calls/s"]

MORE_IS_BETTER: Final[frozenset[Unit]] = frozenset({"/s", "×"})


class Check(msgspec.Struct, frozen=True):
    """Something that must hold for the figures to count."""

    what: str
    passed: bool
    found: str


class Figure(msgspec.Struct, frozen=True):
    """One quantity, measured once or several times."""

    name: str
    """The subject, a dot, and what was measured of it: `sqlite.drain`, `sqlite.idle_start.p99`."""
    unit: Unit
    samples: tuple[float, ...]

    @property
    def subject(self) -> str:
        """Whose figure it is."""
        return self.name.partition(".")[0]

    @property
    def best(self) -> float:
        """The best sample: on a shared machine others can only make a sample worse."""
        return max(self.samples) if self.unit in MORE_IS_BETTER else min(self.samples)

    @property
    def worst(self) -> float:
        """The other end of the spread."""
        return min(self.samples) if self.unit in MORE_IS_BETTER else max(self.samples)


class Measured(msgspec.Struct):
    """What one run of a subject came to."""

    figures: list[Figure] = msgspec.field(default_factory=list)
    checks: list[Check] = msgspec.field(default_factory=list)
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """What a reader should know about how it was measured."""
    notes: dict[str, str] = msgspec.field(default_factory=dict)
    """Why a figure of this name is not there."""

    def add(self, name: str, unit: Unit, value: float) -> None:
        """Note a sample."""
        self.figures.append(Figure(name, unit, (value,)))

    def add_percentiles(self, name: str, percentiles: Percentiles) -> None:
        """Note both."""
        self.add(f"{name}.p50", "ms", percentiles.p50)
        self.add(f"{name}.p99", "ms", percentiles.p99)

    def check(self, what: str, *, expected: object, found: object) -> None:
        """Note whether something is as it must be."""
        self.checks.append(Check(what, expected == found, str(found)))


def merge(runs: Iterable[Measured]) -> Measured:
    """Several runs as one: the samples of each figure side by side, and every check that was made."""
    merged: dict[str, Figure] = {}
    checks: list[Check] = []
    facts: dict[str, str] = {}
    notes: dict[str, str] = {}
    for run in runs:
        checks.extend(run.checks)
        facts |= run.facts
        notes |= run.notes
        for figure in run.figures:
            earlier = merged.get(figure.name)
            samples = (*earlier.samples, *figure.samples) if earlier is not None else figure.samples
            merged[figure.name] = Figure(figure.name, figure.unit, samples)
    return Measured(list(merged.values()), checks, facts, notes)
