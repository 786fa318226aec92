"""Records of limits, rates and servers."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from synergon.model.record import Record

KEY_QUEUES: Final = "key:"
"""The prefix of limits that apply to the key queues of a kind."""


class NewRate(Record, frozen=True, kw_only=True):
    """A rate: on average at most `starts` starts in `per` microseconds, and up to `burst` at once after a pause."""

    per: int
    starts: int = 1
    burst: int = 1
    by_units: bool = True
    """Whether a start counts once for each unit of the task. Otherwise it counts once."""

    @property
    def values(self) -> tuple[int, int, int, bool]:
        """The values of the rate columns in the row of a limit."""
        return self.per, self.starts, self.burst, self.by_units


class NewBatch(Record, frozen=True, kw_only=True):
    """How the tasks of each key queue of a kind are run together."""

    size: int
    """How many tasks make a batch complete."""
    wait: int
    """After how many microseconds the oldest task makes an incomplete batch due."""

    @property
    def values(self) -> tuple[int, int]:
        """The values of the batch columns in the row of a limit."""
        return self.size, self.wait


class BatchOutlook(Record, frozen=True, kw_only=True):
    """The next batch of a key queue."""

    size: int
    count: int
    """How many tasks are in it so far, at most `size`."""
    due_at: int | None
    """When it starts even if it is not complete. None if it can start now."""


class NewLimit(Record, frozen=True, kw_only=True):
    """A limit as the code declares it.

    The name decides what the limit counts: `kind:K` counts the running tasks of a kind; `key:K` counts the ready and
    running tasks of each key queue of a kind, and has a rate for each (only such limits have batches); any other name
    counts the running tasks that hold the limit by name or run on a server that it covers, and has one rate for all of
    them.
    """

    name: str
    value: int | None
    """The maximum number. None means unlimited, 0 means closed."""
    rate: NewRate | None = None
    batch: NewBatch | None = None


RATE_COLUMNS: Final = ("per", "starts", "burst", "by_units")
NO_RATE: Final = (None, None, None, None)
"""The values of the columns of a limit without a rate."""
NO_BATCH: Final = (None, None)
"""The values of the columns of a limit without batches."""


class LimitChange(Record, frozen=True, kw_only=True):
    """A change of a limit by an operator. UNSET leaves the value or the rate unchanged; None means no maximum, or no
    rate."""

    value: int | msgspec.UnsetType | None = msgspec.UNSET
    rate: NewRate | msgspec.UnsetType | None = msgspec.UNSET


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
    failure_most: int | None = 10
    """How many failures among its last `failure_window` outcomes take a server out of service. None if no number
    does."""
    failure_window: int = 20
    probe_timeout: int | None = None
    """How many microseconds a probe may take. None if the provider has no probe."""

    @property
    def health(self) -> tuple[int | None, ...]:
        """The values of the columns of a provider that are about the health of its servers."""
        return (
            self.backoff_after,
            self.backoff_first,
            self.backoff_cap,
            self.failure_most,
            self.failure_window,
            self.probe_timeout,
        )


class LimitRecord(Record, frozen=True, kw_only=True):
    """A stored limit."""

    name: str
    value: int | None
    in_use: int
    """How many running tasks hold a permit of the limit."""
    waiting: int = 0
    """How many tasks are `waiting` because of the limit. Only limits of key queues have such tasks."""
    rate: NewRate | None = None
    batch: NewBatch | None = None
    """The size and the wait of batches of the kind. None if its tasks run alone."""
    free_at: datetime | None = None
    """When the rate permits the next start. None if it permits a start now, and for limits of key queues, because each
    key queue has its own moment."""


class ServerRecord(Record, frozen=True, kw_only=True):
    """A stored server."""

    provider: str
    address: str
    capacity: int | None
    in_use: int
    failures: int = 0
    """How many tasks in a row have failed on the server."""
    recent_failures: int = 0
    """How many of its last tasks have failed, among as many as the provider's `failure_window` says."""
    backs_off_until: datetime | None = None
    """Until this moment the server gets no task; after it one task at a time, until a task succeeds. None while the
    server is in service."""
    has_probe: bool = False
    """Whether the server is probed when it is out of service. It then gets no task until a probe succeeds."""
    is_removed: bool = False
    """Whether the server was removed from the pool. It finishes its running tasks."""

    @property
    def is_out(self) -> bool:
        """Whether the server is out of service: it backs off, is on trial, or waits for a probe."""
        return self.backs_off_until is not None

    def is_suspended(self, now: datetime) -> bool:
        """Whether the server gets no task at this moment: it backs off, or waits for a probe."""
        return self.backs_off_until is not None and (self.has_probe or self.backs_off_until > now)

    @property
    def failure_text(self) -> str:
        """The failures for which the server is out of service, for people."""
        return failure_text(self.failures, self.recent_failures)


def failure_text(failures: int, recent_failures: int, window: int | None = None) -> str:
    """Text for people: the server's failures in a row, or its failures among the last tasks if those are more."""
    if failures >= recent_failures:
        return f"{failures} failure{'' if failures == 1 else 's'} in a row"
    return f"{recent_failures} of its last {'' if window is None else f'{window} '}tasks failed"


class ServerChange(Record, frozen=True, kw_only=True):
    """A server that was taken out of service, or that is back."""

    provider: str
    address: str
    is_out: bool
    reason: str
    until: datetime | None = None
    """When the back-off ends. None if the server is back."""


class ServerProbe(Record, frozen=True, kw_only=True):
    """A probe that a node has claimed."""

    provider: str
    address: str
    until: int
    """Until this moment no other node probes the server. It is also the fence of the result."""
    timeout: int
    """How many microseconds the probe may take."""


class ClaimedProbes(Record, frozen=True, kw_only=True):
    """The probes that a node has claimed, and when to look for more."""

    probes: tuple[ServerProbe, ...] = ()
    next_in: int | None = None
    """After how many microseconds the next probe is due. None if no server is out of service."""


class ProbeResult(Record, frozen=True, kw_only=True):
    """The result of a probe, with its fence."""

    provider: str
    address: str
    until: int
    is_well: bool
