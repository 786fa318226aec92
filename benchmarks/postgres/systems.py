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


class System(msgspec.Struct, frozen=True, kw_only=True):
    """One of them, and how to see from outside what it has done."""

    name: str
    package: str
    is_over: str | None
    """Whether its tables say that nothing is left to do; None: they do not tell, and only what bodies say counts."""
    succeeded: str | None
    """How many tasks have succeeded; None: its tables do not tell for long."""
    share: float = 1.0
    """How many of the tasks it gets: one that takes minutes for what others do in a second gets fewer."""

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
            is_over="SELECT NOT EXISTS (SELECT FROM synergon.task)",
            succeeded="SELECT coalesce(sum(count), 0)::bigint FROM synergon.tally WHERE state = 'succeeded'",
        ),
        System(
            name="pgqueuer",
            package="pgqueuer",
            is_over="SELECT NOT EXISTS (SELECT FROM pgqueuer)",
            succeeded="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
        ),
        System(
            name="procrastinate",
            package="procrastinate",
            is_over="SELECT NOT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
            succeeded="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
            share=0.05,
        ),
        System(
            name="awa",
            package="awa-pg",
            # Its view of ended jobs takes seconds, which would be its time, and its tables forget them after a while.
            is_over=None,
            succeeded=None,
        ),
        System(
            name="oban",
            package="oban",
            is_over=(
                "SELECT NOT EXISTS (SELECT FROM oban_jobs"
                " WHERE state IN ('available', 'executing', 'scheduled', 'retryable'))"
            ),
            succeeded="SELECT count(*) FROM oban_jobs WHERE state = 'completed'",
            share=0.25,
        ),
    )
}
