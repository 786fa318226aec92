"""Rows of the memory store's tables of nodes, limits, servers, providers and groups."""

from __future__ import annotations

import msgspec

from synergon.model.lifecycle import State
from synergon.model.limits import NO_BATCH, NO_RATE, NewBatch, NewRate
from synergon.model.nodes import NewNode
from synergon.stores.memory.row import Row
from synergon.stores.rows import LimitRow


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
    """The last declaration from code, as JSON."""
    value: int | None
    rate: NewRate | None
    batch: NewBatch | None = None
    next_at: int | None = None

    def row(self, name: str) -> LimitRow:
        """The limit as the row that rules read."""
        per, starts, burst, by_units = NO_RATE if self.rate is None else self.rate.values
        batch_size, batch_wait = NO_BATCH if self.batch is None else self.batch.values
        return LimitRow(name, self.value, per, starts, burst, by_units, self.next_at, batch_size, batch_wait)


class Server(msgspec.Struct):
    """A server of a pool, with its health."""

    capacity: int | None
    failures: int = 0
    recent: int = 0
    """The last outcomes, one bit each: 1 is a failure."""
    backoffs: int = 0
    """The number of back-offs since `recent` had no failure."""
    backs_off_until: int | None = None
    failed_at: int | None = None


class Provider(msgspec.Struct):
    """A provider: its rules about the health of its servers, and the servers."""

    declared: str
    """The last declaration from code, as JSON."""
    backoff_after: int | None
    backoff_first: int
    backoff_cap: int
    failure_most: int | None
    failure_window: int
    probe_timeout: int | None
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
    is_flow: bool = False
    state: State | None = None
    """The final state of the group, from the states of its tasks. None until the group has ended."""
