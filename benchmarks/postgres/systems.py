"""The systems that are measured on PostgreSQL, and the Python that each is installed in."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

HERE: Final = Path(__file__).resolve().parent.parent.parent

RIVALS_PYTHON: Final = Path(os.environ.get("BENCH_RIVALS", HERE / "build" / "rivals")) / "bin" / "python"
"""Where `make bench` has installed the others; they are no dependencies of ours."""


AWA_COMPLETED: Final = (
    "SELECT (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)::int"
    " + (SELECT count(*) FROM awa.done_entries WHERE state = 'completed')::int"
)


class System(msgspec.Struct, frozen=True, kw_only=True):
    """One of them, and how to see from outside what it has done."""

    name: str
    package: str
    is_drained: str
    """A cheap question for the end of all `nothing` tasks; $1 is how many there have been."""
    succeeded: str | None
    """How many tasks have succeeded; None: its tables do not tell for long, and only what bodies say is checked."""
    is_slow: bool = False
    """It gets fewer tasks, so that a run ends."""

    @property
    def python(self) -> str:
        """The Python that has it."""
        return sys.executable if self.package == "synergon" else str(RIVALS_PYTHON)

    def version(self) -> str | None:
        """Which one is installed; None: it is not."""
        if not Path(self.python).exists():
            return None
        return _versions(self.python).get(self.package)


@cache
def _versions(python: str) -> dict[str, str]:
    code = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    found = subprocess.run([python, "-c", code], capture_output=True, check=True).stdout
    return msgspec.json.decode(found, type=dict[str, str])


SYSTEMS: Final = {
    system.name: system
    for system in (
        System(
            name="synergon",
            package="synergon",
            is_drained="SELECT $1::int IS NOT NULL AND NOT EXISTS (SELECT FROM synergon.task)",
            succeeded="SELECT coalesce(sum(count), 0)::bigint FROM synergon.tally WHERE state = 'succeeded'",
        ),
        System(
            name="pgqueuer",
            package="pgqueuer",
            is_drained="SELECT $1::int IS NOT NULL AND NOT EXISTS (SELECT FROM pgqueuer)",
            succeeded="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
        ),
        System(
            name="procrastinate",
            package="procrastinate",
            is_drained=(
                "SELECT $1::int IS NOT NULL"
                " AND NOT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
            ),
            succeeded="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
            is_slow=True,
        ),
        System(
            name="awa",
            package="awa-pg",
            # Its view of ended jobs takes seconds, which would be its time.
            is_drained=f"SELECT ({AWA_COMPLETED}) >= $1::int",
            succeeded=None,  # what was scheduled, or ended a while ago, is not in these tables
        ),
        System(
            name="oban",
            package="oban",
            is_drained=(
                "SELECT $1::int IS NOT NULL AND NOT EXISTS ("
                "SELECT FROM oban_jobs WHERE state IN ('available', 'executing', 'scheduled', 'retryable'))"
            ),
            succeeded="SELECT count(*) FROM oban_jobs WHERE state = 'completed'",
        ),
    )
}
