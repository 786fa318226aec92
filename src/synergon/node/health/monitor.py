"""HealthMonitor: answers probes and notifies systemd, on a thread that task functions cannot block."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Self

from synergon.node.health.readiness import Readiness
from synergon.node.health.service import HealthService
from synergon.node.health.systemd import ALIVE, READY, STOPPING, SystemdNotifier
from synergon.node.processes.executors import LoopThread
from synergon.peering.http_server import BACKLOG, HttpServer
from synergon.peering.listen_address import bind


class HealthMonitor:
    """Answers probes about one worker, and notifies systemd, for the duration of an `async with`, even while the worker
    waits for its store."""

    def __init__(self, readiness: Readiness, listen: str | None, logger: logging.Logger) -> None:
        self.readiness = readiness
        self.notifier: SystemdNotifier | None = None
        """Sends messages to systemd. None unless the process is a service of systemd and belongs to the worker."""
        self.is_running: bool = False
        self._listen = listen
        self._logger = logger
        self._bound: socket.socket | None = None
        self._thread: LoopThread | None = None
        self.address: str | None = None
        """The address where probes are answered, as `host:port`. None if they are not answered."""

    async def __aenter__(self) -> Self:
        """Bind the socket and start the thread. Raises OptionError if the address cannot be bound."""
        if self._listen is not None:
            host, _, port = self._listen.rpartition(":")
            self._bound = bind(host.strip("[]"), int(port), "health_listen")
            self._bound.listen(BACKLOG)  # here, so that probes that come before the thread runs wait for it
            name, number = self._bound.getsockname()[:2]
            self.address = f"[{name}]:{number}" if ":" in name else f"{name}:{number}"
            self._logger.info("health is served on http://%s", self.address)
        if self._listen is not None or self.notifier is not None:
            self._thread = LoopThread(self, "synergon-health")
        self.is_running = True
        return self

    def note_start(self) -> None:
        """Tell systemd that the node has started."""
        if self.notifier is not None:
            self.notifier.send(READY)

    def note_stop(self) -> None:
        """Note that the worker stops: it is not ready any more."""
        self.readiness.is_stopping = True
        if self.notifier is not None:
            self.notifier.send(STOPPING)

    async def __aexit__(self, *_: object) -> None:
        """Stop answering, and end the thread."""
        self.is_running = False
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.stop()

    async def run(self, end: asyncio.Event) -> None:
        """Serve until `end` is set. Runs on the event loop of the thread."""
        server = None if self._bound is None else HttpServer(self._bound, HealthService(self.readiness))
        if server is not None:
            server.start()
        try:
            while not end.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(end.wait(), self._say_alive())
        finally:
            if server is not None:
                await server.close()

    def _say_alive(self) -> float | None:
        """Tell systemd that the worker lives, unless it is stuck: then systemd kills it. Returns the seconds until the
        next message; None if systemd wants none."""
        if self.notifier is None or self.notifier.interval_seconds is None:
            return None
        if not self.readiness.is_stuck:
            self.notifier.send(ALIVE)
        return self.notifier.interval_seconds
