"""What a node says of itself to whoever reads its row.

The loop writes it, and the thread that renews the lease takes it along: it looks at nothing else of the node, and never
waits for the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from synergon.model.node_status import NodeStatus, encode_status


class StatusPublisher:
    """The latest word. It is as old as the last time that the loop could be asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop, describe: Callable[[], NodeStatus]) -> None:
        self._loop = loop
        self._describe = describe
        self.latest = b"{}"
        self.written = 0
        """How often the loop has said how things are."""

    def write(self) -> bytes:
        """Say anew how things are. On the loop only."""
        self.latest = encode_status(self._describe())
        self.written += 1
        return self.latest

    def ask(self) -> None:
        """Have it written soon; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self.write)
