"""The status of a cluster, as `engine.status()` returns it."""

from __future__ import annotations

from datetime import datetime

from synergon.model.lifecycle import State
from synergon.model.limits import ServerRecord
from synergon.model.record import Record


class KindAge(Record, frozen=True, kw_only=True):
    """How long the oldest ready task of a kind has been due."""

    kind: str
    oldest_ready_seconds: float


class QueueStatus(Record, frozen=True, kw_only=True):
    """The depth and age of a queue."""

    name: str
    is_paused: bool
    counts: dict[State, int]
    counted_at: datetime | None = None
    """When the live tasks were counted, if there are many of them. None if they were counted just now, so that all
    numbers are exact."""
    kinds: tuple[KindAge, ...] = ()
    """The kinds with ready tasks, the oldest task first."""

    @property
    def oldest_ready_seconds(self) -> float | None:
        """How long the oldest ready task has been due. None if no task is ready."""
        return self.kinds[0].oldest_ready_seconds if self.kinds else None


class WorkerStatus(Record, frozen=True, kw_only=True):
    """The status of a worker."""

    id: str
    name: str
    host: str
    is_alive: bool
    is_cordoned: bool
    running: int
    concurrency: int
    silent_seconds: float
    """How long the worker has not renewed its lease."""
    lease_seconds: float


class StoreVitals(Record, frozen=True, kw_only=True):
    """Measurements of the connections and the database of a store. None where the store cannot measure."""

    pool_size: int | None = None
    """How many connections the pool of this engine may have."""
    pool_in_use: int | None = None
    """How many calls use a connection now."""
    pool_waiting: int | None = None
    """How many calls wait for a connection."""
    dead_rows: dict[str, int] = {}
    """The dead rows that PostgreSQL has not vacuumed yet, by table."""
    oldest_transaction_seconds: float | None = None
    """How long the oldest open transaction that the role may see has been open. A long transaction keeps dead rows from
    being vacuumed."""


class StoreStatus(Record, frozen=True, kw_only=True):
    """The part of the status of a cluster that the store knows."""

    now: datetime
    """The time of the store's clock."""
    queues: tuple[QueueStatus, ...]
    failures_last_hour: dict[str, int]
    """How many tasks of each kind failed in the last hour, most first; 10000 at most in all."""
    overdue: int
    """How many running tasks have exceeded their timeout and do not end."""
    suspended_servers: tuple[ServerRecord, ...]
    """The servers that get no task because tasks failed on them."""


class ClusterStatus(StoreStatus, frozen=True, kw_only=True):
    """The status of a cluster."""

    store: str
    """The URL of the store, without passwords."""
    workers: tuple[WorkerStatus, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What needs attention, as text. Failures of tasks are not listed: they are a matter of the task functions."""
        found = [f"worker {worker.name} is dead" for worker in self.workers if not worker.is_alive]
        found += [
            f"worker {worker.name} has been silent for {worker.silent_seconds:.0f} s of its lease of "
            f"{worker.lease_seconds:g} s"
            for worker in self.workers
            if worker.is_alive and worker.silent_seconds > worker.lease_seconds / 2
        ]
        has_ready = any(queue.kinds and not queue.is_paused for queue in self.queues)
        if has_ready and not any(worker.is_alive for worker in self.workers):
            found.append("tasks are ready, and no worker runs")
        if self.overdue:
            found.append(f"{self.overdue} running {'task is' if self.overdue == 1 else 'tasks are'} overdue")
        found += [
            f"server {server.address} of {server.provider} is out of service: {server.failure_text}"
            for server in self.suspended_servers
        ]
        return tuple(found)
