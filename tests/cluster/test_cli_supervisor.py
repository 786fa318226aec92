"""`--processes` and `--reload`: workers that are kept alive, stopped in order, and started anew with new code."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell, Started, is_alive, quickly, until

from synergon import State


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell.in_folder(tmp_path)


def pids(supervisor: Started, number: int) -> list[int]:
    """The processes of the first workers, once there are so many and each runs tasks."""
    supervisor.until_says(r"runs \d+ kinds?", times=number)
    return [int(match[1]) for match in supervisor.until_says(r"worker \d+ is process (\d+)", times=number)]


def test_a_worker_that_dies_is_restarted(shell: Shell) -> None:
    shell.enqueue("hold")
    with shell.start("worker", "app", "--processes", "1") as supervisor:
        supervisor.until_says("hold has begun")
        (first,) = pids(supervisor, 1)
        os.kill(first, signal.SIGKILL)
        supervisor.until_says(r"worker 1 was killed by SIGKILL.*; restarting in 0\.2 s")
        supervisor.until_says("hold has begun", times=2)
        (shell.folder / "go").touch()
        until(lambda: shell.counts() == {State.SUCCEEDED: 1})
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 0


def test_a_restart_action_restarts_at_once_and_a_drain_does_not(shell: Shell) -> None:
    with shell.start("worker", "app", "--processes", "1", "--name", "kim") as supervisor:
        (first,) = pids(supervisor, 1)
        assert quickly(shell, "nodes", "restart", "kim-1", "--app", "app").code == 0
        supervisor.until_says("worker 1 was told to restart")
        assert pids(supervisor, 2)[1] != first
        assert "restarting in" not in supervisor.text
        assert quickly(shell, "nodes", "drain", "kim-1", "--app", "app").code == 0
        supervisor.until_says("worker 1 has stopped gracefully")
        assert supervisor.ended() == 0


def test_the_pause_before_a_restart_grows(shell: Shell) -> None:
    with shell.start("worker", "app", "--processes", "1") as supervisor:
        (first,) = pids(supervisor, 1)
        (shell.folder / "app.py").write_text("import os\n\nos._exit(7)\n")
        os.kill(first, signal.SIGKILL)
        supervisor.until_says(r"worker 1 exited with code 7; restarting in 0\.4 s")
        supervisor.until_says(r"worker 1 exited with code 7; restarting in 0\.8 s")
        supervisor.signal(signal.SIGINT)
        assert supervisor.ended() == 0


def test_a_permanent_error_at_the_start_ends_the_supervisor(shell: Shell) -> None:
    app = shell.folder / "app.py"
    app.write_text(app.read_text().replace("///app.db", "///no/app.db"))
    finished = shell.run("worker", "app", "--processes", "2", "--drain")
    assert finished.code == 3
    assert "exited with code 3 before any worker had started; giving up" in finished.err
    assert f"error: the folder {shell.folder}/no does not exist" in finished.err
    assert "restarting" not in finished.err


@pytest.mark.parametrize("option", ["--drain", "--reload"])
def test_several_processes_cannot_share_a_fixed_port(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("SYNERGON_LISTEN", "127.0.0.1:7799")
    refused = quickly(shell, "worker", "app", "--processes", "2", option)
    assert refused.code == 2
    assert "2 processes cannot share listen=127.0.0.1:7799 ($SYNERGON_LISTEN); use 127.0.0.1:0" in refused.err


def test_a_signal_stops_all_workers_gracefully(shell: Shell) -> None:
    shell.enqueue("hold")
    with shell.start("worker", "app", "--processes", "2", "--name", "kim") as supervisor:
        supervisor.until_says("hold has begun")
        workers = pids(supervisor, 2)
        assert "(kim-1)" in supervisor.text
        assert "(kim-2)" in supervisor.text
        supervisor.signal(signal.SIGTERM)
        supervisor.until_says(r"stops after its running tasks \(1\)")
        (shell.folder / "go").touch()
        assert supervisor.ended() == 0
        assert not any(is_alive(pid) for pid in workers)
    assert shell.counts() == {State.SUCCEEDED: 1}


def test_a_second_signal_kills_the_workers(shell: Shell) -> None:
    shell.enqueue("hold")
    with shell.start("worker", "app", "--processes", "1") as supervisor:
        supervisor.until_says("hold has begun")
        (worker,) = pids(supervisor, 1)
        supervisor.signal(signal.SIGTERM)
        supervisor.until_says("stops after")
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 128 + signal.SIGTERM
        assert not is_alive(worker)


def test_drained_workers_are_not_restarted(shell: Shell) -> None:
    shell.enqueue("greet", number=50, name="Ada")
    finished = shell.run("worker", "app", "--processes", "2", "--drain")
    assert finished.code == 0
    assert "restarting" not in finished.err
    assert shell.counts() == {State.SUCCEEDED: 50}


def test_workers_stop_when_their_supervisor_is_killed(shell: Shell) -> None:
    with shell.start("worker", "app", "--processes", "1") as supervisor:
        (worker,) = pids(supervisor, 1)
        supervisor.signal(signal.SIGKILL)
        until(lambda: not is_alive(worker))
        supervisor.until_says("has stopped")


def test_reload_restarts_dead_workers_and_after_changes(shell: Shell) -> None:
    code = (shell.folder / "app.py").read_text()
    with shell.start("worker", "app", "--reload") as supervisor:
        (first,) = pids(supervisor, 1)
        os.kill(first, signal.SIGKILL)
        supervisor.until_says(r"worker 1 was killed by SIGKILL.*; restarting in 0\.2 s")
        pids(supervisor, 2)
        (shell.folder / "notes.txt").write_text("not code")
        (shell.folder / "app.py").write_text(f"{code}\n\n@engine.task\ndef newest() -> None: ...\n")
        supervisor.until_says(r"app\.py changed; restarting")
        supervisor.until_says(r"4 kinds \(greet, hold, newest, send\)")
        assert "notes.txt" not in supervisor.text
        supervisor.signal(signal.SIGINT)
        assert supervisor.ended() == 0
        assert "Traceback" not in supervisor.text


def test_reload_lets_running_tasks_finish_and_waits_for_a_fix(shell: Shell) -> None:
    code = (shell.folder / "app.py").read_text()
    shell.enqueue("hold")
    with shell.start("worker", "app", "--reload") as supervisor:
        supervisor.until_says("hold has begun")
        (shell.folder / "app.py").write_text("half a thoug")
        supervisor.until_says(r"stops after its running tasks \(1\)")
        (shell.folder / "other.py").write_text("# a second change must not cut the stop short")
        supervisor.until_says(r"other\.py changed")
        (shell.folder / "go").touch()
        supervisor.until_says("error: app cannot be imported: SyntaxError")
        supervisor.until_says("worker 1 exited with code 2; waiting for a change")
        assert shell.counts() == {State.SUCCEEDED: 1}
        (shell.folder / "app.py").write_text("import os\n\nos._exit(9)\n")
        supervisor.until_says("worker 1 exited with code 9; waiting for a change")
        (shell.folder / "app.py").write_text(code)
        pids(supervisor, 2)
        supervisor.signal(signal.SIGTERM)
        assert supervisor.ended() == 0


def test_reload_without_watchfiles_says_what_to_install(shell: Shell) -> None:
    (shell.folder / "watchfiles.py").write_text("raise ImportError('not installed')\n")
    finished = shell.run("worker", "app", "--reload")
    assert (finished.code, finished.err) == (2, "error: --reload needs watchfiles; pip install 'synergon[reload]'\n")
