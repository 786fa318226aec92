"""A real PgBouncer before the tests' PostgreSQL, if the program is installed."""

from __future__ import annotations

import os
import shutil
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

POOL: Final = 3
"""So few servers that connections of one process must share them."""


def installed_program() -> str:
    """The path of PgBouncer; tests are skipped where it is not installed."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("no PgBouncer: install the package pgbouncer")
    return program


@contextmanager
def pooled_url(mode: str = "transaction") -> Iterator[str]:
    """The schema of this test process, with nothing in it, by way of a pooler."""
    program = installed_program()
    if not IS_OURS:
        pytest.skip("PgBouncer is put before a server of the tests' own, and $SYNERGON_TEST_PG names another one")
    empty(SCHEMA)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    place = Path(tempfile.mkdtemp(prefix="synergon-pgbouncer-"))
    with Watcher(place):
        process = _start(program, place, port, mode)
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres?schema={SCHEMA}&pgbouncer=true"
        finally:
            process.terminate()
            process.wait()


def _start(program: str, place: Path, port: int, mode: str) -> subprocess.Popen[bytes]:
    (place / "users").write_text('"postgres" ""\n')
    settings = place / "pgbouncer.ini"
    settings.write_text(
        f"""
[databases]
postgres = host={folder()} dbname=postgres user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {place / "users"}
pool_mode = {mode}
default_pool_size = {POOL}
max_client_conn = 200
logfile = {place / "log"}
"""
    )
    # It refuses to run as root, reads its settings as whoever it becomes, and must reach the server's socket.
    user = ["-u", folder().owner()] if os.geteuid() == 0 else []
    for path in (place, *place.iterdir()):
        path.chmod(0o777)
    process = subprocess.Popen([program, "-q", *user, str(settings)], stdout=subprocess.DEVNULL)
    _wait_for(process, port)
    return process


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    pytest.fail(f"PgBouncer does not answer: {process.poll()}")
