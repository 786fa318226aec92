"""Plain records about limits, rates and servers that cross the borders between rooms."""

from __future__ import annotations

from datetime import datetime

from synergon.model.record import Record


class NewRate(Record, frozen=True, kw_only=True):
    """At most one start per `every` microseconds in the long run, and `burst` at once after a rest."""

    every: int
    burst: int = 1


class NewLimit(Record, frozen=True, kw_only=True):
    """A limit as the code declares it.

    Its name says what it counts: `kind:K` the running tasks of a kind, `key:K` the tasks of each line of a kind (only
    these have a rate), anything else the running tasks that hold it by name or run on a server below it.
    """

    name: str
    value: int | None
    """None: unlimited; 0: closed."""
    rate: NewRate | None = None


class NewServer(Record, frozen=True, kw_only=True):
    """A server of a provider."""

    address: str
    capacity: int | None
    """None: unlimited; 0: closed."""


class NewProvider(Record, frozen=True, kw_only=True):
    """A provider as the code declares it."""

    name: str
    servers: tuple[NewServer, ...]
    backoff_after: int | None = 5
    """A server that has failed so often in a row rests; None: never."""
    backoff_first: int = 1_000_000
    """Microseconds of the first rest; each one that follows without a success between is twice as long."""
    backoff_cap: int = 60_000_000


class LimitRecord(Record, frozen=True, kw_only=True):
    """A limit as the store has it."""

    name: str
    value: int | None
    in_use: int
    """How many running tasks hold it."""
    waiting: int = 0
    """How many tasks are `waiting` for it; lines only."""
    rate: NewRate | None = None


class ServerRecord(Record, frozen=True, kw_only=True):
    """A server as the store has it."""

    provider: str
    address: str
    capacity: int | None
    in_use: int
    failures: int = 0
    """How many tasks it has failed in a row."""
    backs_off_until: datetime | None = None
    """It gets nothing before; after that it is tried with one task at a time until one succeeds."""
    is_removed: bool = False
    """It belongs to the pool no more, and finishes what it has."""
