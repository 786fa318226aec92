"""`synergon worker` in one process: what it says, how it ends, and what it refuses."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell, until

from synergon import Engine, Resources, State
from synergon.cli.worker import warn_about_shared_machine


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell.in_folder(tmp_path)


def test_drain_stops_when_no_tasks_are_left(shell: Shell) -> None:
    shell.enqueue("greet", number=20, name="Ada")
    shell.enqueue("send", to="nobody")
    finished = shell.run("worker", "app", "--drain")
    assert (finished.code, finished.out) == (0, "")
    assert shell.counts() == {State.SUCCEEDED: 20, State.FAILED: 1}


def test_the_first_log_lines_describe_the_worker(shell: Shell) -> None:
    arguments = ("-c", "7", "-q", "mail=5", "-q", "mial", "--name", "kim", "--lease", "9", "--grace", "none", "--drain")
    environment = {"SYNERGON_CONCURRENCY": "3", "SYNERGON_CONCURENCY": "4"}
    said = shell.run("worker", "app", *arguments, **environment).err.splitlines()
    assert said[0].endswith(
        "INFO    kim  app: store sqlite:///app.db, 3 kinds (greet, hold, send), queues mail=5, mial, concurrency 7, "
        "threads 64"
    )
    assert said[1].endswith(
        "WARNING kim  the environment variable SYNERGON_CONCURENCY is not a setting of synergon; "
        "did you mean SYNERGON_CONCURRENCY?"
    )
    assert said[2].endswith("WARNING kim  no task in app uses queue 'mial' by default; typo?")
    assert "7 at once" in said[3]


def test_tasks_of_other_queues_are_not_claimed(shell: Shell) -> None:
    shell.enqueue("greet", name="Ada")
    assert shell.run("worker", "app", "--drain", "--queue", "mail").code == 0
    assert shell.counts() == {State.READY: 1}


def test_the_app_may_come_from_the_environment_or_pyproject(shell: Shell) -> None:
    assert shell.run("worker", "--drain", SYNERGON_APP="app:engine").code == 0
    (shell.folder / "pyproject.toml").write_text('[tool.synergon]\napp = "app"\nconcurrency = 9\n')
    finished = shell.run("worker", "--drain")
    assert finished.code == 0
    assert "concurrency 9" in finished.err


def test_the_logging_configuration_of_the_app_is_kept(shell: Shell) -> None:
    source = (shell.folder / "app.py").read_text()
    (shell.folder / "app.py").write_text(f"{source}\nimport logging\nlogging.basicConfig(format='MINE %(message)s')\n")
    said = shell.run("worker", "app", "--drain").err.splitlines()
    assert all(line.startswith("MINE ") for line in said)
    assert shell.run("worker", "app", "--drain", "--log-level", "warning").err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_tasks_finish(shell: Shell, number: signal.Signals) -> None:
    shell.enqueue("hold")
    with shell.start("worker", "app") as worker:
        worker.until_says("hold has begun")
        worker.signal(number)
        worker.until_says(r"stops after its running tasks \(1\); a second signal ends at once")
        (shell.folder / "go").touch()
        assert worker.ended() == 0
        assert "Traceback" not in worker.text
    assert shell.counts() == {State.SUCCEEDED: 1}


def test_a_second_signal_stops_at_once(shell: Shell) -> None:
    shell.enqueue("hold")
    with shell.start("worker", "app") as worker:
        worker.until_says("hold has begun")
        worker.signal(signal.SIGINT)
        worker.until_says("stops after")
        worker.signal(signal.SIGINT)
        assert worker.ended() == 130
        assert "Traceback" not in worker.text


def test_a_second_signal_works_while_the_event_loop_is_blocked(shell: Shell) -> None:
    (shell.folder / "blocking.py").write_text(
        "import time\nfrom app import engine\n\n\n"
        "@engine.task\nasync def block() -> None:\n"
        "    print('block has begun', flush=True)\n    time.sleep(60)\n"
    )
    shell.enqueue("block")
    with shell.start("worker", "blocking") as worker:
        worker.until_says("block has begun")

        def has_ended_after_one_more() -> bool:
            worker.signal(signal.SIGINT)
            return worker.process.poll() is not None

        until(has_ended_after_one_more)  # two that come together may be heard as one
        assert worker.ended() == 130


def test_a_task_that_does_not_end_within_the_grace_is_handed_back(shell: Shell) -> None:
    shell.enqueue("hold")
    with shell.start("worker", "app", "--grace", "100ms") as worker:
        worker.until_says("hold has begun")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        assert "gives back tasks whose functions would not end: 1 (hold)" in worker.text
    assert shell.counts() == {State.READY: 1}


@pytest.mark.parametrize("drain", [False, True])
def test_callbacks_that_ignore_cancellation_do_not_keep_the_process_alive(shell: Shell, drain: bool) -> None:
    """A loop that is closed waits for its coroutines for ever: the process must not come to that."""
    app = shell.folder / "app.py"
    app.write_text(app.read_text() + STUBBORN)
    shell.enqueue("quick")
    shell.enqueue("choosy")
    with shell.start("worker", "app", *(["--drain"] if drain else [])) as worker:
        for what in ("hook", "subscriber", "can_accept", *(() if drain else ("idle hook",))):
            worker.until_says(f"{what} has begun")
        if not drain:
            worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    named = [line.partition("did not end")[0] for line in worker.text.splitlines() if "stops without it" in line]
    for what in (
        "on_complete of quick (deaf_hook)",
        "subscriber deaf_subscriber",
        "can_accept of choosy (deaf_choice)",
    ):
        assert sum(what in line for line in named) == 1
    assert any("the idle hook deaf_pastime" in line for line in named) is not drain


STUBBORN = """

import asyncio

from synergon.node.callbacks import callbacks, event_feed, hooks, idle_hooks

for module in (callbacks, event_feed, hooks, idle_hooks):
    module.STOP_SECONDS = 0.1


async def never(what):
    print(what, "has begun", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


async def deaf_hook(task, seconds):
    await never("hook")


@engine.task(on_complete=deaf_hook)
async def quick():
    pass


@engine.task
async def choosy():
    pass


@choosy.can_accept(timeout=0.1)
async def deaf_choice(candidates):
    await never("can_accept")


@engine.on_event
async def deaf_subscriber(event):
    await never("subscriber")


@engine.when_idle
async def deaf_pastime():
    await never("idle hook")
"""


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_a_worker_rejects_a_memory_store(shell: Shell, options: tuple[str, ...]) -> None:
    (shell.folder / "app.py").write_text("from synergon import Engine\nengine = Engine('memory://')\n")
    finished = shell.run("worker", "app", *options)
    assert finished.code == 2
    assert finished.err == (
        "error: a worker cannot use memory://: it is in the memory of one process; use sqlite:///app.db\n"
    )


def test_a_worker_rejects_an_app_without_tasks(shell: Shell) -> None:
    (shell.folder / "app.py").write_text("from synergon import Engine\nengine = Engine('sqlite:///app.db')\n")
    finished = shell.run("worker", "app")
    assert (finished.code, finished.err) == (
        2,
        "error: app has no tasks; name the modules that define them: Engine(imports=[...]), or --import MODULE\n",
    )


def test_a_missing_folder_exits_with_code_3(shell: Shell) -> None:
    (shell.folder / "app.py").write_text((shell.folder / "app.py").read_text().replace("///app.db", "///no/app.db"))
    finished = shell.run("worker", "app")
    assert finished.code == 3
    assert f"error: the folder {shell.folder}/no does not exist" in finished.err


def test_workers_have_the_given_labels_and_resources(shell: Shell) -> None:
    task = (
        '@engine.task(needs={"zone:eu"}, cost=Resources(custom={"license": 2}))\ndef solve() -> str:\n    return "done"'
    )
    with (shell.folder / "app.py").open("a") as app:
        app.write(f"\n\nfrom synergon import Resources\n\n\n{task}\n")
    shell.enqueue("solve")
    arguments = ("--processes", "1", "--label", "gpu", "--label", "zone:eu", "--resources", "cpu=1, license=2")
    assert shell.run("worker", "app", "--drain", *arguments).code == 0
    assert shell.counts() == {State.SUCCEEDED: 1}


def test_several_processes_with_default_resources_cause_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine("memory://")
    warn_about_shared_machine(engine, engine.settings, 2)
    assert caplog.messages == [], "nothing costs anything"

    @engine.task(cost=Resources(cpu=1))
    async def costly() -> None:
        """Nothing to do."""

    warn_about_shared_machine(engine, engine.settings.changed({"resources": Resources(cpu=1)}, "code"), 2)
    warn_about_shared_machine(engine, engine.settings, 1)
    assert caplog.messages == []
    warn_about_shared_machine(engine, engine.settings, 2)
    assert "each of the 2 processes counts all resources of the machine as its own" in caplog.text


def test_invalid_resources_are_rejected(shell: Shell) -> None:
    finished = shell.run("worker", "app", "--resources", "cpu=-1")
    assert (finished.code, finished.err) == (2, "error: Resources cpu must be a number from 0 to 1e+09, got -1.0\n")
