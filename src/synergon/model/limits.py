"""Records of limits, rates and servers."""

from __future__ import annotations

from datetime import datetime

from synergon.model.record import Record


class NewRate(Record, frozen=True, kw_only=True):
    """A rate: on average at most one start per `every` microseconds, and up to `burst` starts at once after a pause."""

    every: int
    burst: int = 1


class NewLimit(Record, frozen=True, kw_only=True):
    """A limit as the code declares it.

    Its name says what it counts: `kind:K` the running tasks of a kind; `key:K` the ready and running tasks of each key
    queue of a kind (only these have a rate); any other name the running tasks that hold it by name or run on a server
    that it covers.
    """

    name: str
    value: int | None
    """None means unlimited, 0 closed."""
    rate: NewRate | None = None


class NewServer(Record, frozen=True, kw_only=True):
    """A server of a provider."""

    address: str
    capacity: int | None
    """None means unlimited, 0 closed."""


class NewProvider(Record, frozen=True, kw_only=True):
    """A provider as the code declares it."""

    name: str
    servers: tuple[NewServer, ...]
    backoff_after: int | None = 5
    """After this number of failures in a row a server backs off; None means never."""
    backoff_first: int = 1_000_000
    """The first back-off in microseconds. Each further one is twice as long, until a success."""
    backoff_cap: int = 60_000_000


class LimitRecord(Record, frozen=True, kw_only=True):
    """A stored limit."""

    name: str
    value: int | None
    in_use: int
    """How many running tasks hold a permit of it."""
    waiting: int = 0
    """How many tasks are `waiting` for it; limits of key queues only."""
    rate: NewRate | None = None


class ServerRecord(Record, frozen=True, kw_only=True):
    """A stored server."""

    provider: str
    address: str
    capacity: int | None
    in_use: int
    failures: int = 0
    """How many tasks have failed on it in a row."""
    backs_off_until: datetime | None = None
    """Until then the server gets no task; after that one task at a time, until one succeeds."""
    is_removed: bool = False
    """The server was removed from the pool, and finishes its running tasks."""
