"""The command line on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.cli_support import Shell, until
from tests.postgres_server import IS_OURS, administer, url_with
from tests.stores.one_postgres import ours_only, role

from synergon import Engine

SCHEMA = "cli_test"
LAX = ("fsync", "synchronous_commit")
"""What the tests' own server does without, because it is quicker."""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell.in_folder(tmp_path)


@pytest.fixture
def url() -> Iterator[str]:
    """A schema that is not there yet."""
    administer(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    yield url_with(schema=SCHEMA).replace("postgres:@", "postgres:hush@")
    administer(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


@pytest.fixture
def careful_server() -> Iterator[None]:
    """One that loses nothing."""
    if IS_OURS:
        _set_all("on")
    yield
    if IS_OURS:
        _set_all("off")


def _set_all(value: str) -> None:
    for setting in LAX:
        administer(f"ALTER SYSTEM SET {setting} = {value}")
    administer("SELECT pg_reload_conf()")
    until(lambda: all(administer(f"SHOW {setting}") == [(value,)] for setting in LAX))


def test_migrate_creates_the_schema_and_then_finds_it(shell: Shell, url: str) -> None:
    first, second = shell.run("migrate", "--url", url), shell.run("migrate", "--url", url)
    assert (first.code, second.code) == (0, 0)
    assert "was created with schema version 1" in first.out
    assert "already has schema version 1" in second.out
    assert "hush" not in first.out + second.out


def test_the_printed_sql_creates_the_same_schema(shell: Shell, url: str) -> None:
    printed = shell.run("migrate", "--print-sql", "--url", url)
    assert printed.code == 0
    administer(printed.out)
    assert "already has schema version 1" in shell.run("migrate", "--url", url).out


@ours_only
def test_the_printed_grants_are_enough_for_the_commands_of_viewers_and_operators(shell: Shell, url: str) -> None:
    shell.run("migrate", "--url", url)
    with Engine(url) as owner:
        (handle,) = owner.enqueue_sync([owner.call("unknown")])
    for duty in ("viewer", "operator"):
        with role(f"cli-{duty}"):
            printed = shell.run("migrate", "--print-grants", duty, "--to", f"cli-{duty}", "--url", url)
            assert (printed.code, printed.err) == (0, "")
            administer(printed.out)
            theirs = url.replace("postgres:hush@", f"cli-{duty}:@")
            for command in (
                "tasks list",
                "queues list",
                "limits",
                "servers",
                "nodes",
                "audit",
                f"tasks explain {handle.id}",
            ):
                assert shell.run(*command.split(), "--url", theirs).code == 0
            paused = shell.run("queues", "pause", "default", "--url", theirs)
            cancelled = shell.run("tasks", "cancel", str(handle.id), "--url", theirs)
            if duty == "viewer":
                assert (paused.code, cancelled.code) == (3, 3)
                assert "permission denied" in paused.err
                assert "synergon migrate --print-grants" in paused.err
            else:
                assert (paused.code, cancelled.code) == (0, 0)


def test_a_name_without_grants_and_an_unknown_role_are_usage_errors(shell: Shell, url: str) -> None:
    for arguments in (("--to", "shop"), ("--print-grants", "boss")):
        finished = shell.run("migrate", *arguments, "--url", url)
        assert (finished.code, finished.out) == (2, "")


def test_the_printed_sql_is_that_of_the_profile_in_the_url(shell: Shell, url: str) -> None:
    usual, spread = (shell.run("migrate", "--print-sql", "--url", url + more) for more in ("", "&profile=distributed"))
    assert "fillfactor" in usual.out
    assert "shard, kind, queue" not in usual.out
    assert "shard, kind, queue" in spread.out
    assert "fillfactor" not in spread.out


def test_the_doctor_reports_unsafe_settings_and_a_schema_of_another_profile(shell: Shell, url: str) -> None:
    shell.run("migrate", "--url", f"{url}&profile=distributed")
    found = shell.run("doctor", "--json", "--url", f"{url}&profile=distributed")
    if IS_OURS:  # which keeps nothing through a fall of its host, because that is quicker
        unsafe, late = found.document["problems"]
        assert found.code == 1
        assert "fsync = off" in unsafe["problem"]
        assert "synchronous_commit is off" in late["problem"]
    assert found.document["store"]["profile"] == "distributed"
    migrated, doctor = shell.run("migrate", "--url", url), shell.run("doctor", "--json", "--url", url)
    assert migrated.code != 0
    assert "use ?profile=distributed" in migrated.err
    assert "use ?profile=distributed" in doctor.document["problems"][0]["problem"]


def test_read_only_commands_create_nothing(shell: Shell, url: str) -> None:
    doctor, tasks = shell.run("doctor", "--json", "--url", url), shell.run("tasks", "list", "--url", url)
    assert "there is no schema of synergon at" in doctor.document["problems"][0]["problem"]
    assert "there is no schema of synergon at" in tasks.err
    assert tasks.code != 0
    assert administer("SELECT to_regnamespace(%s)", SCHEMA) == [(None,)]


@pytest.mark.usefixtures("careful_server")
def test_the_doctor_describes_a_healthy_database(shell: Shell, url: str) -> None:
    shell.run("migrate", "--url", url)
    found = shell.run("doctor", "--json", "--url", url)
    assert found.code == 0
    assert found.document["is_healthy"]
    assert found.document["store"]["schema"] == SCHEMA
    assert found.document["store"]["profile"] == "standard"
    assert found.document["store"]["server"].startswith("PostgreSQL")
    assert "asyncpg" in found.document["versions"]
    assert "hush" not in found.out
    assert shell.run("tasks", "list", "--json", "--url", url).code == 0


def test_the_doctor_reports_an_unavailable_server(shell: Shell, tmp_path: Path) -> None:
    found = shell.run("doctor", "--json", "--url", f"postgresql:///db?host={tmp_path}")
    assert found.code != 0
    assert "not available" in found.document["problems"][0]["problem"]
