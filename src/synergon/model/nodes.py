"""Records of nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from synergon.model.node_status import NodeStatus, read_status
from synergon.model.record import Record

HEARTBEATS_PER_LEASE: Final = 6
"""How many times a node renews its lease in the time that a lease lasts."""


class ProcessIdentity(Record, frozen=True, kw_only=True):
    """The identity of a process. Other processes on its host can use it to check whether the process is alive."""

    host: str
    boot_id: str
    """An id of the host's boot. It changes with each boot."""
    pid_namespace: str
    """The namespace of the pid: pids are unique only within one namespace."""
    pid: int
    started: float
    """The start time of the process, so that another process with the same pid is not mistaken for it."""


class KnownNode(Record, frozen=True, kw_only=True):
    """The fields of a node that do not change after it has registered."""

    id: str
    name: str
    process: ProcessIdentity
    kinds: tuple[str, ...]
    queues: tuple[str, ...] | None
    concurrency: int
    version: str
    address: str | None = None


class NewNode(KnownNode, frozen=True, kw_only=True):
    """A node as it registers."""

    lease: int
    """The length of the lease in microseconds."""
    is_cordoned: bool = False
    """Whether the node is cordoned when it registers."""
    published: bytes = b"{}"
    """The status of the node, as JSON."""


class NodeRecord(KnownNode, frozen=True, kw_only=True):
    """A stored node."""

    registered_at: datetime
    lease_remaining: float
    """The seconds until the lease ends, by the store's clock. Negative after it has ended."""
    cordoned_at: datetime | None = None
    published: msgspec.Raw = msgspec.Raw(b"{}")
    """The last status that the node published, as JSON."""
    published_ago: float = 0.0
    """The age of the published status in seconds, by the store's clock."""

    @property
    def is_cordoned(self) -> bool:
        """Whether the node is cordoned: it starts no new tasks."""
        return self.cordoned_at is not None

    @property
    def state(self) -> NodeStatus:
        """The published status, decoded. It is `published_ago` seconds old."""
        return read_status(self.published)
