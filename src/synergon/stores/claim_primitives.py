"""The primitives of a session for claims, and for what bounds them: ready tasks, key queues, turns of tenants, limits
and servers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.model.limits import NewLimit, NewProvider, NewRate
from synergon.stores.rows import (
    ChangedTask,
    ClaimableGroups,
    FairTags,
    KeyQueueCounts,
    KeyQueueLimit,
    KeyQueueName,
    KeyQueueTotal,
    LimitRow,
    NextBatch,
    PermitCount,
    RateState,
    ServerHealth,
    ServerName,
    ServerRow,
    SharedLimits,
    TenantName,
    UntaggedTask,
    UsedServer,
)
from synergon.stores.rules.claim_plan import ReadyClass, ReadyGroupName, ReadyTask, Taken
from synergon.stores.rules.shared_capacity import HeldPermits


class ReadyRows(Protocol):
    """Ready tasks, as a claim reads and takes them.

    Methods return tasks of the request's queues that are not paused, and commands of every queue. Expired tasks are
    excluded. The request's patience and node decide `ReadyTask.may_reserve`.
    """

    __slots__ = ()

    @property
    def reads_ahead(self) -> int:
        """How many tasks of each ready group a claim reads together with the held permits, before it is known how many
        it may take. 0 in stores where a second read costs no round trip."""

    async def groups(self, request: ClaimRequest) -> ClaimableGroups:
        """Read the lease of the node, and the ready groups of the requested kinds, including those of commands."""

    async def lock_limits(self, kinds: Sequence[KindRequest]) -> SharedLimits:
        """Lock and read the limits, servers and rates that tasks of these kinds need. Until the transaction ends, no
        other claim takes permits of them."""

    async def held_permits(
        self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]
    ) -> tuple[list[HeldPermits], list[ReadyTask]]:
        """Read the permits that running tasks hold, and the tasks that `first` returns for these groups."""

    async def first(self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]) -> list[ReadyTask]:
        """The first tasks of each ready group in claim order, at most the given number of each."""

    async def commands(
        self, request: ClaimRequest, kinds: Sequence[KindRequest], servers: Mapping[str, Sequence[str]], limit: int
    ) -> list[ReadyTask]:
        """The first commands of each kind: those that any server may run, and those for each of the given servers."""

    async def among(self, request: ClaimRequest, ids: Collection[int]) -> list[ReadyTask]:
        """The tasks of this list that are ready."""

    async def take(self, node_id: str, taken: Sequence[Taken]) -> list[Claim]:
        """Claim tasks: move them from `ready` to `running`, if they are unchanged since they were read and the node may
        claim. Returns the claims. Later calls of the methods above leave out the tasks that a concurrent claim has
        taken."""

    async def take_members(self, node_id: str, leader: Claim, count: int) -> list[Claim]:
        """Claim the first `count` waiting tasks of the leader's key queue: move them from `waiting` to `running`, in
        the leader's batch. Expired tasks, and those of other queues or with other requirements, are excluded. The
        caller has locked the key queue, and this transaction has claimed the leader, which joins the batch, too."""

    async def is_cordoned(self, node_id: str) -> bool | None:
        """Whether the node is cordoned. None if it has no live lease."""

    async def reserve(self, request: ClaimRequest, task: ReadyTask) -> bool:
        """Reserve capacity of the node for a task, or renew the reservation. False if the task has changed since it was
        read, or another live node has reserved capacity for it."""

    async def release_reservation(self, task_id: int, node_id: str) -> None:
        """Delete the node's reservation for the task."""


class KeyQueueRows(Protocol):
    """The tasks and rates of key queues."""

    __slots__ = ()

    async def limits(self, kinds: Collection[str]) -> dict[str, KeyQueueLimit]:
        """Lock the key queues of these kinds, and read their limits. A kind without a limit gets `KeyQueueLimit()`."""

    async def counts(self, names: Sequence[KeyQueueName], few: int) -> list[KeyQueueCounts]:
        """Count the running and ready tasks of these key queues, and read the first `few` waiting ones of each."""

    async def first_waiting(self, name: KeyQueueName, limit: int) -> list[int]:
        """The first waiting tasks in claim order, except those of paused queues."""

    async def excess(self, name: KeyQueueName, allowed: int) -> list[int]:
        """The ready tasks that are not among the first `allowed` ready and waiting tasks in claim order. Tasks of
        paused queues do not count towards `allowed`."""

    async def promote(self, ids: Sequence[int]) -> Sequence[int]:
        """Move tasks from `waiting` to `ready`. Returns the tasks that were moved."""

    async def promote_all(self, names: Sequence[KeyQueueName]) -> list[ChangedTask]:
        """Move all waiting tasks of these key queues to `ready`."""

    async def demote(self, ids: Sequence[int]) -> list[ChangedTask]:
        """Move tasks from `ready` to `waiting`. Returns the moved tasks, without those that a concurrent claim has
        taken."""

    async def rates(self, names: Sequence[KeyQueueName]) -> list[RateState]:
        """Read the stored rates of these key queues, and when their scheduled tasks are due."""

    async def queue_due(self, name: KeyQueueName, now: int) -> list[ChangedTask]:
        """Move due tasks of the key queue from `scheduled` to `waiting`."""

    async def postpone(self, moments: Mapping[int, int]) -> list[ChangedTask]:
        """Move tasks from `waiting` to `scheduled`, due at these moments."""

    async def set_next_starts(self, moments: Mapping[KeyQueueName, int]) -> None:
        """Store the moments from which the rates of these key queues permit the next start."""

    async def next_batches(self, names: Sequence[KeyQueueName], size: int) -> list[NextBatch]:
        """Read the state of the next batch of each of these key queues. A batch has `size` tasks."""

    async def set_alarms(self, moments: Mapping[KeyQueueName, int | None]) -> None:
        """Store the moment at which the next batch of each key queue is due, its alarm. None deletes the alarm."""

    async def due_alarms(self, limit: int) -> list[KeyQueueName]:
        """The key queues whose alarm is due, earliest first, at most `limit`."""

    async def of_kind(self, kind: str) -> list[KeyQueueName]:
        """The key queues of a kind that have ready or waiting tasks."""

    async def of_queue(self, queue: str) -> list[KeyQueueName]:
        """The key queues that have ready or waiting tasks in a queue."""

    async def prune_rates(self, limit: int) -> None:
        """Delete at most `limit` stored rates whose moment has passed: they delay no start."""


class FairRows(Protocol):
    """The tags by which tenants take turns."""

    async def tags(self, tenants: Collection[TenantName]) -> dict[TenantName, FairTags]:
        """The tags from which the next tag of each of these tenants is computed."""

    async def oldest(self, classes: Collection[ReadyClass], limit: int) -> dict[ReadyClass, list[int]]:
        """The smallest ids of the ready tasks with tags, ascending, at most `limit` for each ready group and
        priority."""

    async def untagged(self, ids: Collection[int]) -> list[UntaggedTask]:
        """The tasks of this list that are ready and have a tenant, but no tag; by ascending id."""

    async def set_tags(self, tags: Mapping[int, int]) -> None:
        """Write the tags of tasks that have none."""

    async def ahead(self, task_id: int, limit: int) -> dict[str, int]:
        """For a ready task: how many ready tasks of its kind precede it in claim order, by tenant. Reads at most
        `limit` tasks of each ready group. Tasks without a tenant do not count."""


class LimitRows(Protocol):
    """The rows of limits. Each stores the last declaration as JSON beside the current value, which an operator may have
    changed."""

    __slots__ = ()

    async def declared(self, names: Iterable[str]) -> dict[str, str]:
        """The last declaration of each of these limits, as JSON, without limits that do not exist."""

    async def exclude_unlimited(self) -> None:
        """Called before a kind gets its first limit `key:<kind>`. Waits for transactions that found no limit of the
        kind, and blocks later ones that would look for it."""

    async def declare(self, limit: NewLimit, declared: str) -> bool:
        """Insert a limit, or replace its value and rate. False if a concurrent transaction has stored this
        declaration."""

    async def set_value(self, name: str, value: int | None) -> bool:
        """Change the value of a limit. False if no limit has this name, or if it only describes batches."""

    async def set_rate(self, name: str, rate: NewRate | None, latest: int) -> bool:
        """Change the rate of a limit. If its stored next start is later than `latest`, it becomes `latest`. False if no
        limit has this name, or if it only describes batches."""

    async def set_next_starts(self, moments: Mapping[str, int]) -> None:
        """Store the moments from which the rates of these limits permit the next start."""

    async def all(self) -> list[LimitRow]:
        """All limits, by name."""

    async def held(self) -> list[PermitCount]:
        """How many running tasks hold permits, by their limits and server."""

    async def key_queue_totals(self) -> list[KeyQueueTotal]:
        """The numbers of running and waiting tasks in key queues, by kind."""


class ServerRows(Protocol):
    """The rows of providers and servers, with the health of servers."""

    __slots__ = ()

    async def declared(self, providers: Iterable[str]) -> dict[str, str]:
        """The last declaration of each of these providers, as JSON, without providers that do not exist."""

    async def declare(self, provider: NewProvider, declared: str) -> bool:
        """Insert a provider, or replace its back-off; its servers do not change. False if a concurrent transaction has
        stored this declaration."""

    async def lock_provider(self, provider: str) -> bool:
        """Lock a provider. False if there is none with this name."""

    async def replace(self, provider: str, capacities: Mapping[str, int | None]) -> None:
        """Replace the servers of a provider. A server whose address remains retains its health."""

    async def commands_without_server(self, provider: str, addresses: Collection[str]) -> dict[int, str]:
        """The commands of the provider that are for a server outside this pool: the address of that server, by command
        id."""

    async def lock_health(
        self, servers: Collection[ServerName], failed: Collection[ServerName]
    ) -> dict[ServerName, ServerHealth]:
        """Lock the servers whose health these outcomes may change (those in `failed`, and those of `servers` that are
        unhealthy), and read their health. A server that was removed from its pool is missing from the result."""

    async def lock_suspended(self, providers: Sequence[str]) -> list[ServerHealth]:
        """Lock the servers of these providers that are out of service, and read their health."""

    async def set_health(
        self,
        server: ServerName,
        failures: int,
        recent: int,
        backoffs: int,
        backs_off_until: int | None,
        failed_at: int | None,
    ) -> None:
        """Write the health of a server."""

    async def all(self) -> list[ServerRow]:
        """All servers of all pools."""

    async def used(self) -> list[UsedServer]:
        """The servers that tasks run on, with the numbers of those tasks."""
