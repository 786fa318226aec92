"""Mistakes are one line on stderr and exit code 2; nothing is created by a command that only looks."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell, quickly

from synergon.cli.main import run


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell.in_folder(tmp_path)


@pytest.fixture
def here(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The shell's folder as that of this process: so many mistakes need no process each."""
    monkeypatch.chdir(shell.folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield shell.folder
    sys.modules.pop("app", None)


def test_version_and_help_are_printed(shell: Shell) -> None:
    assert shell.run("--version").out == f"synergon {version('synergon')}\n"
    shown = shell.run("--help")
    assert shown.code == 0
    assert "3    the database cannot be used" in shown.out
    assert "dashboard" in shown.out
    assert "top" in shown.out.split()
    assert max(len(line) for line in shown.out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("taks list", "No such command 'taks'. Did you mean 'tasks', 'stats', 'status'?"),
        ("tasks list --stat failed", "No such option: --stat"),
        ("tasks list --state faild", "'faild' is not one of 'waiting', 'scheduled'"),
        ("tasks show seven", "'ID'"),
        ("tasks list --app ap", "there is no module 'ap' in {folder} or on Python's path; did you mean 'app'?"),
        ("tasks list --app app.py", "an app is written module:attribute, got 'app.py'; did you mean app?"),
        ("tasks list --app app.engine", "there is no module 'app.engine' in {folder} or on Python's path; did you"),
        ("worker app:engin", "app has no attribute 'engin'; did you mean 'engine'?"),
        ("worker app:greet", "app:greet is a TaskType, not an Engine; the engines in it: engine"),
        ("worker app --concurrency 0", "concurrency must be a whole number from 1 on, got 0"),
        ("worker app --lease soon", 'lease must be seconds or a duration like "500ms" or "10m", got \'soon\''),
        ("worker app --reload --drain", "--reload and --drain are mutually exclusive"),
        ("worker", "which app? write `synergon worker app:engine`, or set $SYNERGON_APP"),
        ("tasks list --app app --url sqlite:///app.db", "give --app or --url, not both"),
        (
            "tasks list --url app.db",
            "a store's URL looks like sqlite:///app.db, postgresql://host/db or memory://, got 'app",
        ),
        ("tasks list --url memory://", "the command line cannot use memory://"),
        ("tasks retry --app app", "give the ids of tasks, or --all with filters"),
        ("tasks retry 1 --why mended --app app", "--why needs --all"),
        ("tasks retry 1 --kind send --app app", "filters and --dry-run need --all"),
        ("tasks cancel --all --state failed --app app", "a task that is failed cannot be cancelled; state takes"),
        (
            "limits set license many --app app",
            "VALUE must be a whole number from 0 on, or none for no limit, got 'many'",
        ),
        ("limits --app app list", "options go after the command: `synergon limits list ... OPTIONS`"),
        ("servers set gpu http://gpu1 --app app", "a server is written ADDRESS=CAPACITY, like http://gpu1:8000=4, got"),
        ("servers set gpu a=1 a=2 --app app", "'a' is named twice; name it once and give it a capacity"),
        ("servers set gpu a=two --app app", "the capacity of a must be a whole number from 0 on, or none"),
    ],
)
def test_a_usage_error_is_one_line_and_code_2(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, said: str
) -> None:
    code = run(command.split())
    out, err = capsys.readouterr()
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said.format(folder=here) in err
    assert (code, out) == (2, "")


def test_the_process_exits_with_the_code_of_the_error(shell: Shell) -> None:
    finished = shell.run("worker", "nowhere")
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith("error: ")


def test_an_error_in_the_app_is_reported_with_file_and_line(shell: Shell) -> None:
    (shell.folder / "broken.py").write_text("import json\n\njson.loads('{')\n")
    finished = shell.run("worker", "broken")
    assert finished.code == 2
    assert finished.err.startswith("error: broken cannot be imported: broken.py, line 3: JSONDecodeError: ")
    assert "Traceback" not in finished.err
    assert "Traceback" in shell.run("worker", "broken", SYNERGON_DEBUG="1").err


def test_a_missing_import_of_the_app_is_not_reported_as_a_missing_app(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "lacking.py").write_text("import no_such_library\n")
    assert run(["worker", "lacking"]) == 2
    assert "lacking.py, line 1: ModuleNotFoundError: No module named 'no_such_library'" in capsys.readouterr().err


def test_an_app_that_exits_on_import_is_an_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "script.py").write_text("import sys\n\nsys.exit(7)\n")
    assert run(["worker", "script"]) == 2
    assert capsys.readouterr().err.startswith("error: script cannot be imported: script.py, line 3: SystemExit: 7 ")


def test_read_only_commands_create_no_database(shell: Shell) -> None:
    for arguments in (("--app", "app"), ("--url", "sqlite:///ap.db"), ()):
        finished = shell.run("tasks", "list", *arguments)
        assert (finished.code, finished.out) == (3, "")
        assert finished.err.startswith("error: there is no database ")
    assert not list(shell.folder.glob("*.db*"))


def test_read_only_commands_create_no_tables(shell: Shell) -> None:
    path = shell.folder / "foreign.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE users (name)")
    before = path.read_bytes()
    for command in (("tasks", "list"), ("queues", "pause", "mail"), ("nodes",)):
        finished = quickly(shell, *command, "--url", "sqlite:///foreign.db")
        assert (finished.code, finished.out) == (3, "")
        assert finished.err == (
            f"error: the database {path} has no tables of synergon; `synergon migrate` would create them\n"
        )
    found = quickly(shell, "doctor", "--url", "sqlite:///foreign.db")
    assert "sqlite:///foreign.db has no tables of synergon" in " ".join(found.out.split())
    assert (found.code, path.read_bytes()) == (1, before)


def test_a_folder_is_no_database(shell: Shell) -> None:
    for command in (("tasks", "list"), ("migrate",)):
        finished = quickly(shell, *command, "--url", "sqlite:///.")
        assert (finished.code, finished.out) == (3, "")
        assert finished.err == f"error: {shell.folder} is a folder; name a file in it, as in sqlite:///app.db\n"


def test_an_unusable_database_exits_with_code_3(shell: Shell) -> None:
    (shell.folder / "app.db").write_text(
        "not a database, but long enough to look like a file with something in it" * 20
    )
    finished = shell.run("queues", "list", "--app", "app")
    assert finished.code == 3
    assert "is not a SQLite database" in finished.err


def test_an_unknown_setting_in_pyproject_is_an_error(shell: Shell) -> None:
    (shell.folder / "pyproject.toml").write_text("[tool.synergon]\nconcurency = 3\n")
    finished = shell.run("tasks", "list", "--app", "app")
    assert finished.code == 2
    assert "[tool.synergon] in pyproject.toml has no setting 'concurency'" in finished.err
