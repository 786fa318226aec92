"""A database that cannot be used, as whoever starts a worker meets it: waited for if it may come, else one clear line.

What the store itself says is in tests/stores/test_postgres_access.py.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.cluster.cli_support import Finished, Shell, until
from tests.postgres_server import SCHEMA, administer, folder, server_url, store_url, url_with
from tests.stores.one_postgres import ours_only, role, url_of_role

from synergon.stores.postgres import PostgresStore

SOCKET = ".s.PGSQL.5432"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell.in_folder(tmp_path)


def use(shell: Shell, url: str) -> None:
    """Let the app use this database."""
    app = shell.folder / "app.py"
    app.write_text(app.read_text().replace('"sqlite:///app.db"', repr(url)))


@pytest.mark.parametrize("command", [("worker", "app"), ("nodes", "--url", "postgresql://host/db?nonsense=1")])
def test_a_parameter_that_nobody_knows_is_a_mistake_of_whoever_wrote_it(shell: Shell, command: tuple[str, ...]) -> None:
    use(shell, "postgresql://host/db?nonsense=1")
    assert "no parameter 'nonsense'" in error_of(shell.run(*command), 2)


# ---------------------------------------------------------------- what may pass


@ours_only
def test_a_worker_waits_for_a_server_that_is_not_there_yet(shell: Shell, tmp_path: Path) -> None:
    store_url()
    away = tmp_path / "away"
    away.mkdir()
    use(shell, f"{url_with(schema=SCHEMA).partition('?')[0]}?host={away}&schema={SCHEMA}")
    with shell.start("worker", "app") as worker:
        worker.until_says(
            r"WARNING .*cannot start yet: postgresql://postgres@/postgres is not available: .*tries again"
        )
        assert worker.process.poll() is None
        (away / SOCKET).symlink_to(folder() / SOCKET)
        worker.until_says(r"the store is there after \d+ tries")
        worker.until_says("runs 3 kinds")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert worker.text.count("cannot start yet") == 1, "an outage is one line"


def test_a_worker_that_waits_can_be_stopped(shell: Shell) -> None:
    use(shell, "postgresql://127.0.0.1:1/db")
    with shell.start("worker", "app") as worker:
        worker.until_says("cannot start yet: postgresql://127.0.0.1:1/db is not available")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert "was stopped before it could start" in worker.text


def test_a_command_that_looks_does_not_wait(shell: Shell) -> None:
    finished = shell.run("nodes", "--url", "postgresql://127.0.0.1:1/db")
    assert (finished.code, finished.out) == (3, "")
    assert "error: postgresql://127.0.0.1:1/db is not available: " in finished.err


# ---------------------------------------------------------------- what does not pass


@contextmanager
def unknown_database() -> Iterator[str]:
    yield server_url().replace("/postgres?", "/nowhere?")


@contextmanager
def wrong_password() -> Iterator[str]:
    rules = folder() / "pg_hba.conf"
    before = rules.read_text()
    with role("careless"):
        rules.write_text("local all careless scram-sha-256\n" + before)
        administer("SELECT pg_reload_conf()")
        try:
            until(lambda: not may_enter(server_url().replace("postgres:@", "careless:wrong@", 1)))
            yield url_of_role("careless", "wrong")
        finally:
            rules.write_text(before)
            administer("SELECT pg_reload_conf()")


def may_enter(url: str) -> bool:
    """Whether the server lets this role in; it reads its rules a moment after it was told to."""
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def missing_schema() -> Iterator[str]:
    with role("guest"):
        yield url_of_role("guest", schema="not_there")


@contextmanager
def version(number: int, *grants: str) -> Iterator[str]:
    administer("DROP SCHEMA IF EXISTS versioned CASCADE")
    administer(PostgresStore(url_with(schema="versioned")).schema_sql())
    administer(f"UPDATE versioned.meta SET value = '{number}' WHERE name = 'schema_version'")
    with role("user_of_it", *grants):
        yield url_of_role("user_of_it", schema="versioned")
    administer("DROP SCHEMA versioned CASCADE")


USAGE = ("USAGE ON SCHEMA versioned", "SELECT ON versioned.meta")

TROUBLES: dict[str, tuple[Callable[[], AbstractContextManager[str]], list[str]]] = {
    "an unknown database": (unknown_database, ['"nowhere" does not exist', "create it with CREATE DATABASE"]),
    "a wrong password": (wrong_password, ["rejects the role", "check the user and password in the URL"]),
    "a missing schema": (missing_schema, ["'not_there'", "is not there", "may not change it", "`synergon migrate`"]),
    "a newer schema": (lambda: version(999, *USAGE), ["has version 999, this code knows", "upgrade synergon"]),
    "an older schema": (lambda: version(0, *USAGE), ["has version 0, this code needs", "`synergon migrate"]),
    "a schema without rights": (lambda: version(1), ["permission denied for schema versioned", "GRANT the role"]),
}


@ours_only
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_worker_ends_with_code_3_and_says_what_to_do(shell: Shell, trouble: str) -> None:
    make, words = TROUBLES[trouble]
    with make() as url:
        use(shell, url)
        finished = shell.run("worker", "app")
    line = error_of(finished, 3)
    for word in words:
        assert word in line
    assert "wrong@" not in finished.err
    assert "cannot start yet" not in finished.err


def error_of(finished: Finished, code: int) -> str:
    """The one line that people read; log lines come before it."""
    assert (finished.code, finished.out) == (code, ""), finished.err
    (line,) = [line for line in finished.err.splitlines() if line.startswith("error: ")]
    return line


def test_an_address_that_is_taken_is_a_mistake_in_the_configuration(shell: Shell) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        finished = shell.run("worker", "app", SYNERGON_LISTEN=address)
    assert f"listen={address} cannot be bound: Address already in use; choose another" in error_of(finished, 2)
