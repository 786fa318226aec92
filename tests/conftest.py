"""What every test may use: an engine for each store, fresh, and an environment without settings."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
from tests.postgres_server import store_url
from tests.support import PATIENCE_SECONDS

from synergon import Engine

NewEngine = Callable[..., Engine]

# Hundreds of processes are started, and each would compile all of synergon anew where that may not be kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

WAITING: Final = ("chaos", "cluster", "contrib")
"""The rooms of the tests that start processes."""

# The suite tells the same stories each time, so that what it says of a change is about the change; the long form makes
# up new ones.
hypothesis.settings.register_profile("same", derandomize=True)
if not os.environ.get("SYNERGON_LONG"):
    hypothesis.settings.load_profile("same")


WORKERS_PER_CORE: Final = 2
"""Many tests wait for other processes or for time to pass, so a core serves two."""
MOST_WORKERS: Final = 8
"""Each worker has PostgreSQL servers of its own."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """`-n auto` means two workers for each core that this process may use, `-n logical` means one."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None  # xdist reads it
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_WORKERS, cores * (1 if config.option.numprocesses == "logical" else WORKERS_PER_CORE))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped and what to install for it, before the closing line of pytest."""
    skipped = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", ()))
    for reason, number in skipped.most_common():
        terminalreporter.write_line(f"skipped {number}: {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    assert isinstance(report.longrepr, tuple)
    return report.longrepr[2].removeprefix("Skipped: ")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests: mix modules that mostly wait with modules that mostly work, so that the
    machine is busy from the beginning to the end. Those with tests that may take very long begin first."""
    if not hasattr(config, "workerinput"):
        return
    modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    modules.sort(key=lambda tests: not any(test.get_closest_marker("timeout") for test in tests))
    waiting = [tests for tests in modules if tests[0].path.parent.name in WAITING]
    working = [tests for tests in modules if tests[0].path.parent.name not in WAITING]
    mixed = sorted([*_spread(waiting), *_spread(working)], key=itemgetter(0))
    items[:] = chain.from_iterable(tests for _, tests in mixed)


def _spread(modules: list[list[pytest.Item]]) -> Iterator[tuple[float, list[pytest.Item]]]:
    """Each with the share of all their tests that comes before it."""
    total, before = sum(map(len, modules)), 0
    for tests in modules:
        yield before / total, tests
        before += len(tests)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SYNERGON_") and not name.startswith("SYNERGON_TEST"):
            monkeypatch.delenv(name)


@pytest.fixture
def memory_url() -> str:
    """A store in memory that nobody else has."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that nobody else has."""
    return f"sqlite:///{tmp_path}/tasks.db"


@pytest.fixture
def postgres_url() -> str:
    """The schema of this test process, emptied."""
    return store_url()


@pytest.fixture(params=("memory", "sqlite"))
def url(request: pytest.FixtureRequest) -> str:
    """The URL of each store in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
async def new_engine() -> AsyncIterator[NewEngine]:
    """Makes engines that are stopped at the end of the test, whatever happens.

    They sweep so rarely that a test which needs the sweep fails: whoever wants it says so.
    """
    engines: list[Engine] = []

    def make(url: str, **settings: Any) -> Engine:
        engines.append(Engine(url, **{"sweep": 60, **settings}))
        return engines[-1]

    yield make
    for engine in engines:
        # A test that left something stuck has failed already; the next ones go on.
        async with asyncio.timeout(PATIENCE_SECONDS):
            await engine.stop(grace=0)


@pytest.fixture
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten renewals a second of a lease that lasts its thirty seconds.

    What comes with a heartbeat comes soon then, and a machine that stands still for a while ends no lease.
    """
    monkeypatch.setattr("synergon.node.liveness.lease.HEARTBEATS_PER_LEASE", 300)


@pytest.fixture
def engine(new_engine: NewEngine, url: str) -> Engine:
    """An engine on each store in turn, not connected yet."""
    return new_engine(url)
