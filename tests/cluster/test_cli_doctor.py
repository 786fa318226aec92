"""The doctor and the migration: what is in force, where it came from, what is wrong, and nothing changed by looking."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import pytest
from tests.cluster.cli_support import Shell, quickly
from tests.support import TroubledStore

from synergon import Engine
from synergon.doctor.diagnosis import clock_ahead
from synergon.stores import open_store
from synergon.stores.base import Store

HOUR: Final = 3600


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell.in_folder(tmp_path)


@pytest.fixture
def migrated(shell: Shell) -> Shell:
    """Whoever connects brings the tables along."""
    with shell.engine:
        return shell


async def test_a_slow_store_is_not_reported_as_a_clock_problem(sqlite_url: str) -> None:
    store = TroubledStore(open_store(sqlite_url))
    await store.open()

    async def late(now: Callable[[], Awaitable[int]], ahead: int = 0) -> int:
        answer = await now() + ahead
        await asyncio.sleep(0.2)
        return answer

    store.cause("now", late)
    assert await clock_ahead(cast("Store", store)) == pytest.approx(0, abs=0.01)
    for seconds in (HOUR, -HOUR):
        store.cause("now", partial(late, ahead=seconds * 1_000_000))
        found = await clock_ahead(cast("Store", store))
        assert found * seconds > 0
        assert abs(found) > HOUR / 2
    await store.close()


def in_force(shell: Shell, *arguments: str, **environment: str) -> dict[str, tuple[Any, str]]:
    """Settings by name: the value, and who said so."""
    settings = shell.run("doctor", "--json", *arguments, **environment).document["settings"]
    return {name: (setting["value"], setting["source"]) for name, setting in settings.items()}


def test_a_healthy_database_has_no_problems(migrated: Shell) -> None:
    found = migrated.run("doctor", "--app", "app", "--json")
    assert found.code == 0
    diagnosis = found.document
    assert diagnosis["is_healthy"] is True
    assert diagnosis["problems"] == []
    assert diagnosis["schema_version"] == diagnosis["schema_version_wanted"]
    assert diagnosis["versions"]["sqlite"] == sqlite3.sqlite_version
    assert diagnosis["clock_ahead_seconds"] == pytest.approx(0, abs=0.01)
    assert diagnosis["disk_free_bytes"] > 0
    assert [kind["kind"] for kind in diagnosis["kinds"]] == ["greet", "hold", "send"]
    assert diagnosis["kinds"][2] == {
        "kind": "send", "queue": "mail", "runs_in": "thread", "attempts": 2, "timeout": 30.0, "function": "app.send",
    }  # fmt: skip


def test_the_doctor_fits_into_80_columns(migrated: Shell) -> None:
    shown = migrated.run("doctor", "--app", "app").out
    for words in ("versions", "database", "settings", "30 min", "kinds", "app.greet", "nodes", "no problems found"):
        assert words in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_code_wins_over_the_environment_which_wins_over_pyproject(shell: Shell) -> None:
    (shell.folder / "pyproject.toml").write_text(
        '[tool.synergon]\napp = "configured"\nconcurrency = 3\nlease = "20s"\nsweep = 2\ntimeout = "none"\n'
    )
    (shell.folder / "configured.py").write_text(
        "from synergon import Engine\nengine = Engine('sqlite:///code.db', concurrency=5)\n"
    )
    settings = in_force(shell, SYNERGON_CONCURRENCY="4", SYNERGON_LEASE="10s")
    assert settings["url"] == ("sqlite:///code.db", "code")
    assert settings["concurrency"] == (5, "code")
    assert settings["lease"] == (10.0, "$SYNERGON_LEASE")
    assert settings["sweep"] == (2.0, "pyproject.toml")
    assert settings["timeout"] == (None, "pyproject.toml")
    assert settings["grace"] == (30.0, "default")


def test_the_database_is_chosen_by_precedence(shell: Shell) -> None:
    (shell.folder / "pyproject.toml").write_text('[tool.synergon]\nurl = "sqlite:///pyproject.db"\n')
    assert in_force(shell)["url"] == ("sqlite:///pyproject.db", "pyproject.toml")
    url = {"SYNERGON_URL": "sqlite:///env.db"}
    assert in_force(shell, **url)["url"] == ("sqlite:///env.db", "$SYNERGON_URL")
    assert in_force(shell, **url, SYNERGON_APP="app")["url"] == ("sqlite:///app.db", "code")
    given = ("--url", "sqlite:///given.db")
    assert in_force(shell, *given, **url, SYNERGON_APP="app")["url"] == ("sqlite:///given.db", "command line")


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"SYNERGON_CONCURENCY": "3"}, "the environment variable SYNERGON_CONCURENCY is not a setting of synergon"),
        ({"SYNERGON_URL": "sqlite:///missing.db"}, "there is no database at sqlite:///missing.db"),
        ({"SYNERGON_URL": "memory://"}, "memory:// exists in one process only and is lost when that ends"),
    ],
)
def test_a_problem_exits_with_code_1(migrated: Shell, environment: dict[str, str], problem: str) -> None:
    environment = {"SYNERGON_URL": "sqlite:///app.db"} | environment
    found = migrated.run("doctor", "--json", **environment)
    assert found.code == 1
    assert [finding["problem"] for finding in found.document["problems"]] == [problem]
    assert all(finding["advice"] for finding in found.document["problems"])
    assert not (migrated.folder / "missing.db").exists()


def test_ready_tasks_that_no_node_runs_are_a_problem(migrated: Shell) -> None:
    migrated.enqueue("greet", number=3, name="Ada")
    found = migrated.run("doctor", "--app", "app")
    assert found.code == 1
    assert "ready tasks of kind 'greet' in queue 'default': 3; no live node runs them" in found.out
    migrated.run("queues", "pause", "default", "--app", "app")
    assert "3; the queue is paused" in migrated.run("doctor", "--app", "app").out


def test_a_server_that_two_programs_give_to_their_providers_is_a_problem(migrated: Shell) -> None:
    for name in ("chat", "images"):
        engine = Engine(migrated.engine.settings.url)
        engine.provider(name, servers=["http://gpu1"])
        with engine:
            pass
    found = migrated.run("doctor", "--json", "--app", "app")
    assert found.code == 1
    assert [finding["problem"] for finding in found.document["problems"]] == [
        "providers 'chat' and 'images' both name the server 'http://gpu1', and each would give it its full capacity"
    ]


def test_nodes_are_shown_and_a_dead_one_is_a_problem(migrated: Shell) -> None:
    with migrated.start("worker", "app", "--name", "kim", "--lease", "20s") as worker:
        worker.until_says(r"node \w+ \(kim\) runs")
        (node,) = migrated.run("doctor", "--app", "app", "--json").document["nodes"]
        assert node["name"] == "kim"
        assert 0 < node["lease_remaining"] <= 20
        worker.process.kill()
        worker.ended()
        found = migrated.run("doctor", "--app", "app")
    assert found.code == 1
    assert f"node kim ({node['id']}) is dead or has not renewed its lease" in found.out


def test_migrate_prints_the_schema_versions(shell: Shell) -> None:
    (shell.folder / "empty.db").touch()
    url = "sqlite:///new.db"
    assert shell.run("migrate", "--url", url).out == f"{url} was created with schema version 1\n"
    assert shell.run("migrate", "--url", url).out == f"{url} already has schema version 1\n"
    assert shell.run("doctor", "--url", "sqlite:///empty.db").code == 1
    assert "from schema version 0 to 1" in shell.run("migrate", "--url", "sqlite:///empty.db").out


def test_the_printed_sql_makes_the_same_database(shell: Shell) -> None:
    printed = shell.run("migrate", "--print-sql", "--app", "app")
    assert printed.code == 0
    assert not (shell.folder / "app.db").exists()
    with closing(sqlite3.connect(shell.folder / "app.db")) as connection:
        connection.executescript(printed.out)
    assert "already has schema version 1" in shell.run("migrate", "--app", "app").out
    shell.enqueue("greet", name="Ada")


def test_a_database_of_a_newer_release_is_not_changed(migrated: Shell) -> None:
    with closing(sqlite3.connect(migrated.folder / "app.db")) as connection:
        connection.execute("UPDATE synergon_meta SET value = 99 WHERE name = 'schema_version'")
        connection.commit()
    found = migrated.run("doctor", "--app", "app", "--json")
    assert found.code == 1
    assert found.document["problems"][0]["problem"] == "the schema has version 99, this code knows only 1"
    refused = migrated.run("tasks", "list", "--app", "app")
    assert refused.code == 3
    assert "was made by a newer synergon" in refused.err


def test_a_password_is_never_printed(shell: Shell) -> None:
    url = "postgresql:///db?host=127.0.0.1&port=1&user=ada&password=s3cr3t"
    for options in ((), ("--json",)):
        found = quickly(shell, "doctor", "--url", url, *options)
        assert found.code == 1
        assert "user=ada" in found.out
        assert "s3cr3t" not in found.out + found.err


def test_a_database_that_every_user_can_read_is_a_problem(migrated: Shell) -> None:
    (migrated.folder / "app.db").chmod(0o644)
    finished = quickly(migrated, "doctor", "--json", "--app", "app")
    (finding,) = finished.document["problems"]
    assert finished.code == 1
    assert "every user of this host can access app.db" in finding["problem"]
    assert finding["advice"] == "chmod o-rwx app.db"
    (migrated.folder / "app.db").chmod(0o660)
    assert quickly(migrated, "doctor", "--app", "app").code == 0


def test_waiting_tasks_that_do_not_fit_the_app_are_found(migrated: Shell) -> None:
    (first,) = migrated.enqueue("greet", name="Ada")
    (second, third) = migrated.enqueue("greet", number=2, name="Ada", loud=True)
    migrated.enqueue("send", to="Ada")
    migrated.enqueue("unknown", to="Ada")
    found = quickly(migrated, "doctor", "--app", "app", "--json")
    assert found.code == 1
    problems = [finding for finding in found.document["problems"] if "do not fit" in finding["problem"]]
    assert problems == [
        {
            "problem": f"waiting tasks of kind 'greet' that do not fit its function in this app: 2; task {third}: "
            "the payload of task 'greet' does not fit its signature: Object contains unknown field `loud`",
            "advice": f"start workers with the code that enqueued them, or `synergon tasks cancel {third}`",
        }
    ]
    assert first < second < third
    assert "do not fit" not in quickly(migrated, "doctor", "--url", "sqlite:///app.db").out
