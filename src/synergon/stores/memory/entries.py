"""Rows of the memory store's tables of nodes, limits, servers, providers and groups."""

from __future__ import annotations

import msgspec

from synergon.model.limits import NewRate
from synergon.model.nodes import NewNode
from synergon.stores.memory.row import Row


class Node(msgspec.Struct):
    """A registered node and its lease."""

    registered: NewNode
    registered_at: int
    leased_until: int
    cordoned_at: int | None
    published: bytes
    """The last published status."""
    published_at: int


class Limit(msgspec.Struct):
    """The current value and rate of a limit, and its last declaration."""

    declared: str
    """What the code declared last, as JSON."""
    value: int | None
    rate: NewRate | None


class Server(msgspec.Struct):
    """A server of a pool, with its health."""

    capacity: int | None
    failures: int = 0
    backoffs: int = 0
    """The number of back-offs since the last success."""
    backs_off_until: int | None = None

    def is_backed_off(self, now: int) -> bool:
        """Whether the server backs off at this moment."""
        return self.backs_off_until is not None and self.backs_off_until > now


class Provider(msgspec.Struct):
    """A provider: the back-off of its servers, and its pool."""

    declared: str
    """What the code declared last, as JSON."""
    backoff_after: int | None
    backoff_first: int
    backoff_cap: int
    servers: dict[str, Server] = {}


class Group(msgspec.Struct):
    """A group of tasks."""

    name: str
    created_at: int
    ended_at: int | None = None
    then_id: int | None = None
    live: int = 0
    """The number of live tasks of the group."""
    members: dict[int, Row] = {}
    followers: dict[int, Row] = {}
    """The tasks that wait for the end of the group."""
