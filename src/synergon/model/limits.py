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

    The name decides what the limit counts: `kind:K` counts the running tasks of a kind; `key:K` counts the ready and
    running tasks of each key queue of a kind (only such limits have a rate); any other name counts the running tasks
    that hold the limit by name or run on a server that it covers.
    """

    name: str
    value: int | None
    """The maximum number. None means unlimited, 0 means closed."""
    rate: NewRate | None = None


class NewServer(Record, frozen=True, kw_only=True):
    """A server of a provider."""

    address: str
    capacity: int | None
    """How many tasks may run on the server at once. None means unlimited, 0 means closed."""


class NewProvider(Record, frozen=True, kw_only=True):
    """A provider as the code declares it."""

    name: str
    servers: tuple[NewServer, ...]
    backoff_after: int | None = 5
    """After how many failures in a row a server backs off. None means never."""
    backoff_first: int = 1_000_000
    """The first back-off in microseconds. Each further one is twice as long, until a success."""
    backoff_cap: int = 60_000_000


class LimitRecord(Record, frozen=True, kw_only=True):
    """A stored limit."""

    name: str
    value: int | None
    in_use: int
    """How many running tasks hold a permit of the limit."""
    waiting: int = 0
    """How many tasks are `waiting` because of the limit. Only limits of key queues have such tasks."""
    rate: NewRate | None = None


class ServerRecord(Record, frozen=True, kw_only=True):
    """A stored server."""

    provider: str
    address: str
    capacity: int | None
    in_use: int
    failures: int = 0
    """How many tasks in a row have failed on the server."""
    backs_off_until: datetime | None = None
    """Until this moment the server gets no task; after it one task at a time, until a task succeeds. None without a
    back-off."""
    is_removed: bool = False
    """Whether the server was removed from the pool. It finishes its running tasks."""
