"""What stores and users know of nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from synergon.model.node_status import NodeStatus, read_status
from synergon.model.record import Record

HEARTBEATS_PER_LEASE: Final = 6
"""How often a node renews its lease in the time that the lease lasts."""


class ProcessIdentity(Record, frozen=True, kw_only=True):
    """Which process this is, so that others on the same host can see whether it lives."""

    host: str
    boot_id: str
    """New at each boot of the host."""
    pid_namespace: str
    """Pids mean something only within one of these."""
    pid: int
    started: float
    """Start time of the process, so that a reused pid is not mistaken for it."""


class KnownNode(Record, frozen=True, kw_only=True):
    """What a node says when it registers, and what is known of it from then on."""

    id: str
    name: str
    process: ProcessIdentity
    kinds: tuple[str, ...]
    queues: tuple[str, ...] | None
    concurrency: int
    version: str
    address: str | None = None


class NewNode(KnownNode, frozen=True, kw_only=True):
    """A node that registers."""

    lease: int
    """Microseconds."""
    is_cordoned: bool = False
    """It may take nothing, from the beginning."""
    published: bytes = b"{}"
    """JSON of what it says of itself, for others to read."""


class NodeRecord(KnownNode, frozen=True, kw_only=True):
    """A node as the store has it."""

    registered_at: datetime
    lease_remaining: float
    """Seconds by the store's clock; negative: it is over."""
    cordoned_at: datetime | None = None
    is_stopping: bool = False
    """It was told to stop: if it dies now, what it runs is charged nothing."""
    published: msgspec.Raw = msgspec.Raw(b"{}")
    """What it said of itself last."""
    published_ago: float = 0.0
    """Seconds by the store's clock since then."""

    @property
    def is_cordoned(self) -> bool:
        """Whether it may take nothing new."""
        return self.cordoned_at is not None

    @property
    def state(self) -> NodeStatus:
        """The same as `published`, in words; it is `published_ago` seconds old."""
        return read_status(self.published)
