"""Deploys: workers are told to stop and killed before their grace is over, or run beside newer ones, and that costs no
task anything.

The processes are real ones of `synergon worker`; what runs holds until the file `go` is there.
"""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell, Started, is_alive, until
from tests.support import PATIENCE_SECONDS

from synergon import Engine, State, TaskRecord

DEPLOYS = 3
"""As many crashes as a task has."""


def _is_gone(pid: int) -> bool:
    return not is_alive(pid)


class Site:
    """An app in a folder, the store it uses, and one task that holds."""

    def __init__(self, folder: Path, url: str) -> None:
        self.shell = Shell.in_folder(folder)
        app = folder / "app.py"
        app.write_text(app.read_text().replace("sqlite:///app.db", url))
        self.engine = Engine(url)
        with self.engine as engine:
            self.task_id = engine.enqueue_sync([engine.call("hold")])[0].id

    def announces_its_stop(self, worker: Started) -> None:
        """Return when the node's row says that it stops."""

        def is_published() -> bool:
            with self.engine as engine:
                nodes = engine.sync_bridge.call(engine.nodes)
            return any(node.state.is_stopping for node in nodes if is_alive(node.process.pid))

        try:
            until(is_published)
        except TimeoutError:
            raise AssertionError(f"no row says that its node stops:\n{worker.text}") from None

    def record(self) -> TaskRecord:
        with self.engine as engine:
            record = engine.sync_bridge.call(lambda: engine.get(self.task_id))
        assert record is not None
        return record

    def finishes(self) -> None:
        """The next worker runs the task to its end, and nothing was charged to it."""
        (self.shell.folder / "go").touch()
        assert self.shell.run("worker", "app", "--drain").code == 0
        record = self.record()
        assert (record.state, record.attempts, record.crashes) == (State.SUCCEEDED, 1, 0)


@pytest.fixture(params=("sqlite", "postgres"))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, request.getfixturevalue(f"{request.param}_url"))


def test_deploys_that_kill_before_the_grace_is_over_cost_a_task_nothing(site: Site) -> None:
    for _ in range(DEPLOYS):
        with site.shell.start("worker", "app", "--grace", "60") as worker:
            worker.until_says("hold has begun")
            worker.signal(signal.SIGTERM)
            site.announces_its_stop(worker)
            worker.signal(signal.SIGKILL)
            assert worker.ended() == -signal.SIGKILL
    site.finishes()


def test_two_signals_in_the_same_moment_cost_a_task_nothing(site: Site) -> None:
    for _ in range(DEPLOYS):
        with site.shell.start("worker", "app", "--grace", "60") as worker:
            worker.until_says("hold has begun")
            worker.signal(signal.SIGTERM)  # two different ones, since the system makes one of two that are alike
            worker.signal(signal.SIGINT)
            assert worker.ended() in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    site.finishes()


def test_two_signals_to_a_supervisor_cost_a_task_nothing(site: Site) -> None:
    for _ in range(DEPLOYS):
        with site.shell.start("worker", "app", "--processes", "2", "--grace", "60") as supervisor:
            supervisor.until_says("hold has begun")
            supervisor.signal(signal.SIGTERM)
            supervisor.signal(signal.SIGINT)
            assert supervisor.ended() in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    site.finishes()


def test_a_supervisor_and_workers_that_are_killed_in_their_grace_cost_a_task_nothing(site: Site) -> None:
    for _ in range(DEPLOYS):
        with site.shell.start("worker", "app", "--processes", "1", "--grace", "60") as supervisor:
            supervisor.until_says("hold has begun")
            (pid,) = (int(match[1]) for match in supervisor.until_says(r"worker \d+ is process (\d+)"))
            supervisor.signal(signal.SIGTERM)
            site.announces_its_stop(supervisor)
            supervisor.signal(signal.SIGKILL)
            until(partial(_is_gone, pid))  # for it, that is a second signal
    site.finishes()


def test_an_older_worker_leaves_the_tasks_of_a_newer_producer_to_newer_workers(site: Site) -> None:
    (site.shell.folder / "go").touch()
    older, newer = site.shell, Shell.in_folder(_made(site.shell.folder / "newer"))
    code = (older.folder / "app.py").read_text().replace("greet(name: str)", "greet(name: str, loud: bool = False)")
    (newer.folder / "app.py").write_text(code.replace('f"hello {name}"', 'f"HELLO {name}" if loud else name'))
    with older.start("worker", "app") as first, newer.start("worker", "app", "--name", "newer") as second:
        for worker in (first, second):
            worker.until_says("runs 3 kinds")
        assert newer.run("nodes", "cordon", "newer", "--app", "app").code == 0
        with site.engine as engine:
            calls = [engine.call("greet", name=str(number), loud=True) for number in range(20)]
            handles = engine.enqueue_sync(calls)
            first.until_says(r"unknown field `loud`; it is left to other nodes", times=20)
            assert newer.run("nodes", "uncordon", "newer", "--app", "app").code == 0
            results = [handle.result_sync(PATIENCE_SECONDS) for handle in handles]
            records = [handle.status_sync() for handle in handles]
    assert results == [f"HELLO {number}" for number in range(20)]
    assert {(record.attempts, record.claim_no, len(record.errors)) for record in records} == {(1, 2, 1)}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
