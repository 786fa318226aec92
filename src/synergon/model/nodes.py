"""Records of nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from synergon.model.node_status import NodeStatus, read_status
from synergon.model.record import Record

HEARTBEATS_PER_LEASE: Final = 6
"""How often a node renews its lease in the time that the lease lasts."""


class ProcessIdentity(Record, frozen=True, kw_only=True):
    """The identity of a process, by which others on its host can see whether it is alive."""

    host: str
    boot_id: str
    """Changes with each boot of the host."""
    pid_namespace: str
    """Pids are unique only within one namespace."""
    pid: int
    started: float
    """Start time of the process, so that a reused pid is not mistaken for it."""


class KnownNode(Record, frozen=True, kw_only=True):
    """What a node states when it registers."""

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
    """The node is cordoned from the beginning."""
    published: bytes = b"{}"
    """Its status, as JSON."""


class NodeRecord(KnownNode, frozen=True, kw_only=True):
    """A stored node."""

    registered_at: datetime
    lease_remaining: float
    """Seconds by the store's clock; negative after the lease has ended."""
    cordoned_at: datetime | None = None
    published: msgspec.Raw = msgspec.Raw(b"{}")
    """Its last status, as JSON."""
    published_ago: float = 0.0
    """The age of that status in seconds, by the store's clock."""

    @property
    def is_cordoned(self) -> bool:
        """Whether the node may start no task."""
        return self.cordoned_at is not None

    @property
    def state(self) -> NodeStatus:
        """The decoded status, `published_ago` seconds old."""
        return read_status(self.published)
