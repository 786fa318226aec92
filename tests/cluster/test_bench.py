"""The benchmarks run, check themselves and clean up. How fast anything is, no test says."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final

import pytest
from benchmarks import __main__ as benchmarks
from benchmarks.bars import BARS, NOT_MEASURED, Bar, unmeasured
from benchmarks.figures import Figure, Measured, merge
from benchmarks.newest_python import newest_python
from benchmarks.pages import PAGES
from benchmarks.postgres import measures, systems
from benchmarks.postgres.systems import SYSTEMS
from benchmarks.postgres.tally import Tally
from benchmarks.report import Report
from benchmarks.sizes import Sizes
from rich.console import Console

from synergon.cli import bench

TINY: Final = Sizes(
    name="tiny",
    repeats=1,
    tasks=200,
    thread_tasks=50,
    process_tasks=10,
    latency_samples=5,
    scheduled_tasks=5,
    batch_items=200,
    huey_tasks=50,
    huey_latency_samples=2,
    raw_tasks=2000,
    raw_single_tasks=20,
    postgres_tasks=200,
    postgres_latency_samples=2,
    backlog=1000,
    idle_seconds=0.2,
    customers=10,
    customer_tasks=100,
    customer_nodes=2,
    server_tasks=100,
    tenant_tasks=100,
    one_at_a_time=5,
    raises=2,
    flows=2,
    history=400,
    waiting=100,
    page_samples=2,
    viewed_tasks=50,
)

OF_A_STORE: Final = {
    "bulk_enqueue",
    "drain",
    "drain_cpu",
    "awaited_enqueue",
    "awaited_enqueue.p50",
    "awaited_enqueue.p99",
    "drain_in_threads",
    "drain_in_processes",
    "idle_start.p50",
    "idle_start.p99",
    "scheduled_lateness.p50",
    "scheduled_lateness.p99",
}
OF_HUEY: Final = {"bulk_enqueue", "drain", "idle_start.p50", "idle_start.p99"}
OF_A_BACKLOG: Final = {
    "fill",
    "claim_of_100.p50",
    "claim_of_100.p99",
    "first_tenth",
    "last_tenth",
    "last_tenth_to_first",
    "claim_while_draining.p50",
    "claim_while_draining.p99",
    "node_memory",
}
ON_POSTGRES: Final = {
    "bulk_enqueue",
    "drain_with_1_node",
    "drain_with_2_nodes",
    "idle_start.p50",
    "idle_start.p99",
    "scheduled_lateness.p50",
    "scheduled_lateness.p99",
}
OF_FLOWS: Final = {"flows.drain", "flows_to_plain"}
OF_STATISTICS: Final = {"drain_cpu_with_statistics", "drain_cpu_without_statistics", "statistics_to_without"}
OF_BATCHES: Final = {
    f"{what}_{function}"
    for what in ("items_one_by_one", "items_in_batches", "batches_to_one_by_one")
    for function in ("5ms", "no_op")
}
OF_PAGES: Final = {
    *(f"{name}.p95" for name in PAGES),
    "drain_without_viewers",
    "drain_with_viewers",
    "viewers_to_without",
    "viewers_cpu_in_a_second",
}
OF_SERVERS: Final = {
    "without_servers",
    "without_servers_cpu",
    "servers",
    "servers_cpu",
    "servers_to_without_servers",
}
OF_TENANTS: Final = {"tenants_without_turns", "tenants", "tenants_to_without_turns"}
OF_LIMITS: Final = {
    *OF_SERVERS,
    *OF_TENANTS,
    "customers_without_limit",
    "customers",
    "customers_to_without_limit",
    "customers_first_done_to_last",
    "raised_limit.p50",
    "raised_limit.p99",
    "raised_line.p50",
    "raised_line.p99",
    "one_at_a_time_by_name",
    "one_at_a_time_in_a_line",
    "one_at_a_time_on_a_server",
}
RIVALS: Final = [name for name, system in SYSTEMS.items() if name != "synergon" and system.version() is not None]
"""Only `make bench` installs them."""
RATIOS_TO_PGQUEUER: Final = {"ratio.bulk_enqueue_to_pgqueuer"}
EXPECTED: Final = {"sqlite.idle_node", "pg_synergon.idle_node"} | {
    *(f"{store}.schedule_lateness.{which}" for store in ("sqlite", "pg_synergon") for which in ("p50", "p99")),
    *(f"{store}.{what}" for store in ("sqlite", "pg_synergon") for what in (*OF_FLOWS, *OF_BATCHES, *OF_STATISTICS)),
    *(f"{store}.{what}" for store in ("sqlite", "memory") for what in OF_A_STORE),
    *(f"huey.{workers}.{what}" for workers in ("thread", "process") for what in OF_HUEY),
    *(f"raw.{what}" for what in ("sync.p50", "sync.p99", "one_by_one", "in_hundreds", "in_thousands")),
    *(f"{store}.{what}" for store in ("pages", "pg_pages") for what in OF_PAGES),
    *(f"{store}.{what}" for store in ("backlog", "pg_backlog") for what in OF_A_BACKLOG),
    *(f"pg_{system}.{what}" for system in ("synergon", *RIVALS) for what in ON_POSTGRES),
    *(f"pg_{name}.settled_after_last_body" for name in ("synergon", *RIVALS) if SYSTEMS[name].is_over),
    *(f"ratio.drain_to_{rival}" for rival in RIVALS),
    *(name for name in RATIOS_TO_PGQUEUER if "pgqueuer" in RIVALS),
    *(f"{store}.{what}" for store in ("limits", "pg_limits") for what in OF_LIMITS),
    *(f"memory.{what}" for what in (*OF_SERVERS, *OF_TENANTS)),
    "hints.idle_start.p50",
    "hints.idle_start.p99",
    "hints.idle_start_by_a_resting_loop.p50",
    "hints.idle_start_by_a_resting_loop.p99",
    "ratio.drain_to_huey",
    "ratio.bulk_enqueue_to_huey",
    "ratio.drain_to_bare_sqlite_in_hundreds",
}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, empty. It is not below the folder of pytest: each run of pytest that starts closes that to
    other users, and where the tests run as root the servers run as another user."""
    with tempfile.TemporaryDirectory(prefix="synergon-bench-") as path, monkeypatch.context() as patch:
        patch.chdir(path)
        yield Path(path)


@pytest.mark.timeout(900)  # a dozen servers and workers start in it, one after the other; the machine may be busy
def test_a_run_measures_every_figure_passes_its_checks_and_leaves_nothing_behind(folder: Path) -> None:
    missing = set(SYSTEMS) - {"synergon", *RIVALS}  # what is said of those, another test says
    report = benchmarks.run(TINY, [subject for subject in benchmarks.SUBJECTS if subject not in missing])

    assert report.failed == []
    assert any("synced" in check.what for check in report.checks)
    assert set(report.figures) == EXPECTED
    ratios = {f"ratio.drain_to_{rival}" for rival in missing} | (RATIOS_TO_PGQUEUER if "pgqueuer" in missing else set())
    assert set(BARS) - EXPECTED <= ratios
    assert list(folder.iterdir()) == []

    report.write(folder / "results.json")
    written = json.loads((folder / "results.json").read_text())
    assert set(written) == {"machine", "sizes", "figures", "checks", "notes"}
    assert report.notes == {}
    assert set(SYSTEMS) - missing <= set(written["machine"])
    assert "fsync=on" in written["machine"]["PostgreSQL"]
    assert {"python", "SQLite", "cores", "platform", "load before", "load after"} <= set(written["machine"])
    assert set(written["figures"]) == EXPECTED
    assert {"unit", "best", "samples", "bar", "met"} == set(written["figures"]["sqlite.awaited_enqueue"])

    page = StringIO()
    report.print(Console(file=page, width=120))
    assert "awaited enqueue p99" in page.getvalue()
    assert "checks passed" in page.getvalue()
    assert re.search(r"bars (met|missed): \d+", page.getvalue())


def test_a_subject_that_breaks_down_is_a_failed_check_and_the_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(benchmarks.SUBJECTS, "raw", int)  # takes no folder and no sizes

    assert benchmarks.main(["--quick", "--only", "raw", "--json", "results.json"]) == 1

    assert "check failed: raw" in capsys.readouterr().out
    assert json.loads((folder / "results.json").read_text())["checks"][0]["passed"] is False


def test_a_system_that_is_not_installed_is_named_and_not_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systems, "RIVALS_PYTHON", folder / "nowhere")

    measured = measures.subject("oban")(folder, TINY)

    assert measured.figures == []
    assert measured.facts == {"oban": "not installed, not measured"}


async def test_bodies_are_counted_whoever_runs_them_and_the_wait_for_them_ends(tmp_path: Path) -> None:
    tally = Tally.make(tmp_path / "tally", 30)
    for number in (12, 11, 12, 3):  # one twice, and one of an earlier fill
        Tally(tmp_path / "tally").mark(number)
    numbers = range(10, 14)
    assert tally.count(numbers) == 2
    assert await tally.full(numbers, seconds=0.01) is None

    for number in numbers:
        tally.mark(number)
    began = time.monotonic()
    ended = await tally.full(numbers, seconds=60)
    assert ended is not None
    assert ended >= began


def test_a_system_that_did_not_end_has_a_line_that_says_so_and_no_ratio() -> None:
    figures = {"pg_synergon.drain_with_1_node": Figure("pg_synergon.drain_with_1_node", "/s", (100.0,))}
    measured = Measured(notes={"pg_awa.drain_with_1_node": "did not end within 90 s (ran 7 of 20,000)"})
    notes = merge([measured]).notes
    notes |= dict.fromkeys(unmeasured(figures, notes), NOT_MEASURED)
    report = Report(machine={}, sizes=TINY, figures=figures, checks=[], notes=notes)

    page = StringIO()
    report.print(Console(file=page, width=160))

    assert re.search(r"drain with 1 node .*did not end within 90 s \(ran 7 of 20,000\)", page.getvalue())
    assert re.search(r"drain to awa .*not measured", page.getvalue())
    assert "bars not measured: 1 (ratio drain to awa)" in page.getvalue()


def test_the_newest_python_at_hand_is_one_that_works() -> None:
    code = "import sys; print(sys.version_info >= (3, 11))"

    assert subprocess.run([newest_python(), "-c", code], capture_output=True, check=True).stdout == b"True\n"


def test_the_best_sample_counts_and_the_spread_is_kept() -> None:
    first, second = Measured(), Measured()
    for run, rate, latency in ((first, 10.0, 3.0), (second, 20.0, 5.0)):
        run.add("sqlite.drain", "/s", rate)
        run.add("sqlite.idle_start.p50", "ms", latency)

    rate_figure, latency_figure = merge([first, second]).figures

    assert (rate_figure.best, rate_figure.worst) == (20.0, 10.0)
    assert (latency_figure.best, latency_figure.worst) == (3.0, 5.0)


def test_a_bar_is_met_on_its_own_side_only() -> None:
    rate = Figure("sqlite.awaited_enqueue", "/s", (40_000.0,))

    assert Bar("≥", 40_000).is_met(rate)
    assert not Bar("<", 40_000).is_met(rate)
    assert Bar("≤", 40_000).is_met(rate)


def test_synergon_bench_measures_a_new_file_and_removes_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(None, 100, as_json=True)

    found = json.loads(capsys.readouterr().out)
    assert set(found) == set(bench.Results.__struct_fields__)
    assert found["store"]["synchronous"] == "FULL"
    assert found["succeeded"] == 100 + 100 + 100
    assert list(folder.iterdir()) == []


def test_synergon_bench_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main("memory://", 100, as_json=False)

    assert "from enqueue to start" in capsys.readouterr().out


def test_synergon_bench_keeps_no_task_in_a_store_that_was_given(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.main(sqlite_url, 100, as_json=True)

    with sqlite3.connect(tmp_path / "tasks.db") as connection:
        for table in ("synergon_task", "synergon_history", "synergon_node"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    connection.close()
