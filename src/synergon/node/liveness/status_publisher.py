"""StatusPublisher: holds the node's status for the thread that renews the lease.

The event loop encodes the status; the lease's thread reads only the encoded bytes and never waits for the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from synergon.model.node_status import NodeStatus, encode_status


class StatusPublisher:
    """The latest encoded status of the node; it ages while the event loop is blocked."""

    def __init__(self, loop: asyncio.AbstractEventLoop, describe: Callable[[], NodeStatus]) -> None:
        self._loop = loop
        self._describe = describe
        self.latest = b"{}"
        self.version = 0
        """How often the status has been updated."""

    def update(self) -> bytes:
        """Encode the current status and return it. On the event loop only."""
        self.latest = encode_status(self._describe())
        self.version += 1
        return self.latest

    def request_update(self) -> None:
        """Have the event loop call `update` soon. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is exiting
            self._loop.call_soon_threadsafe(self.update)
