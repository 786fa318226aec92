"""A real PgBouncer before a PostgreSQL of the tests, if the program is installed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.postgres_server import IS_OURS, SCHEMA, empty, folder
from tests.server_watcher import PATIENCE_SECONDS, Watcher
from tests.support import free_port

POOL: Final = 3
"""So few servers that connections of one process must share them."""
MISSING: Final = "no PgBouncer: install the package pgbouncer"


def find_program() -> str | None:
    """The path of PgBouncer, if it is installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def installed_program() -> str:
    """The path of PgBouncer; tests are skipped where it is not installed."""
    program = find_program()
    if program is None:
        pytest.skip(MISSING)
    return program


class PgBouncer:
    """A pooler before the server that `target` names (`host=... port=...`). It runs when this returns, as that user of
    the system if this process is root, and ends with `close` or with this process."""

    def __init__(
        self, target: str, user: str, *, mode: str = "transaction", pool: int = POOL, role: str = "postgres"
    ) -> None:
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._program = installed_program()
        self._user = user
        self._mode = mode
        self._pool = pool
        self._role = role
        self._place = Path(tempfile.mkdtemp(prefix="synergon-pgbouncer-"))
        self._watcher = Watcher(self._place)
        self._process: subprocess.Popen[bytes] | None = None
        self._write_settings(target)
        self.start()

    def _write_settings(self, target: str) -> None:
        (self._place / "users").write_text('"postgres" ""\n')
        (self._place / "pgbouncer.ini").write_text(
            f"""
[databases]
postgres = {target} dbname=postgres user={self._role}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {self._place / "users"}
pool_mode = {self._mode}
default_pool_size = {self._pool}
max_client_conn = 200
server_login_retry = 1
logfile = {self._place / "log"}
"""
        )
        for path in (self._place, *self._place.iterdir()):
            path.chmod(0o777)

    def lead_to(self, target: str) -> None:
        """From now on connect to that server, as `RELOAD` does after a failover."""
        self._write_settings(target)
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def start(self) -> None:
        """Start it, and return when it listens."""
        # It refuses to run as root, reads its settings as whoever it becomes, and must reach the server's socket.
        user = ["-u", self._user] if os.geteuid() == 0 else []
        command = [self._program, "-q", *user, str(self._place / "pgbouncer.ini")]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        pytest.fail(f"PgBouncer does not answer: {self._process.poll()}")

    def kill(self) -> None:
        """End it without a word."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it, and remove its settings."""
        self.kill()
        self._watcher.close()


@contextmanager
def pooled_url(mode: str = "transaction") -> Iterator[str]:
    """The schema of this test process, with nothing in it, by way of a pooler."""
    installed_program()
    if not IS_OURS:
        pytest.skip("PgBouncer is put before a server of the tests' own, and $SYNERGON_TEST_PG names another one")
    empty(SCHEMA)
    pooler = PgBouncer(f"host={folder()}", folder().owner(), mode=mode)
    try:
        yield f"{pooler.url}?schema={SCHEMA}&pgbouncer=true"
    finally:
        pooler.close()
