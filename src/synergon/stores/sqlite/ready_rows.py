"""Ready tasks in the SQLite store, as a claim reads and takes them: implements `stores.claim_primitives.ReadyRows` with
the statements of `sql/claims.sql`.

A ready group is one range of an index, in claim order. Ready groups that were not requested, or that the node cannot
run, are never read. The transaction holds the write lock, so rows that were read do not change until the commit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.stores import claim_primitives as port
from synergon.stores.rows import ClaimableGroups, LimitRow, Names, ServerRow, SharedLimits
from synergon.stores.rules.claim_plan import ReadyGroupName, ReadyTask, Taken, server_to_avoid
from synergon.stores.rules.node_capacity import may_reserve
from synergon.stores.rules.server_health import capacity_at
from synergon.stores.rules.shared_capacity import HeldPermits
from synergon.stores.sqlite.transaction import Transaction, as_json, lease_remaining


class ReadyRow(msgspec.Struct, frozen=True):
    """The columns of a ready task that a claim needs."""

    id: int
    priority: int
    fair_tag: int
    kind: str
    queue: str
    requirements: str
    target: str | None
    server: str | None
    attempts: int
    server_failures: int
    run_at: int
    reserved_by: str | None
    reserved_until: int | None
    units: int


class PermitRow(msgspec.Struct, frozen=True):
    """The permits of a running task."""

    limits: Names
    provider: str | None
    server: str | None
    slot: int | None


class LeaseRow(msgspec.Struct, frozen=True):
    """The lease of a node, and since when the node is cordoned."""

    leased_until: int
    lease: int
    boot_id: str
    cordoned_at: int | None

    @property
    def is_cordoned(self) -> bool | None:
        """Whether the node is cordoned. None if the lease has ended."""
        is_live = lease_remaining(self.leased_until, self.lease, self.boot_id) > 0
        return self.cordoned_at is not None if is_live else None


class ReadyRows(port.ReadyRows):
    """Implements `stores.claim_primitives.ReadyRows` for the SQLite store."""

    __slots__ = ("_transaction",)

    reads_ahead: Final = 0

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def groups(self, request: ClaimRequest) -> ClaimableGroups:
        """Read the lease of the node, and the ready groups of the requested kinds, including those of commands. Returns
        no groups if the node may not claim."""
        is_cordoned = await self.is_cordoned(request.node_id)
        if is_cordoned is not False:
            return ClaimableGroups(is_cordoned, [])
        return ClaimableGroups(False, ready_groups(self._transaction, request.open_kinds, request.queues))

    async def is_cordoned(self, node_id: str) -> bool | None:
        return self._is_cordoned(node_id)

    async def lock_limits(self, kinds: Sequence[KindRequest]) -> SharedLimits:
        """Read all limits, and the servers that tasks of these kinds may run on. Reads nothing if no task of these
        kinds needs a permit."""
        providers = {kind.provider for kind in kinds if kind.provider is not None}
        if not providers and not any(kind.limits for kind in kinds):
            return SharedLimits({}, [])
        servers = self._transaction.typed(ServerRow, "servers_of", as_json(providers))
        now = self._transaction.now
        limits = self._transaction.typed(LimitRow, "shared_limits")
        return SharedLimits.of(limits, [capacity_at(server, now) for server in servers], now)

    async def held_permits(
        self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]
    ) -> tuple[list[HeldPermits], list[ReadyTask]]:
        """Read the permits that running tasks hold, and the first tasks of these ready groups."""
        rows = self._transaction.typed(PermitRow, "running_permits")
        held = [HeldPermits(row.limits, row.provider, row.server, row.slot) for row in rows]
        return held, await self.first(request, numbers)

    async def first(self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]) -> list[ReadyTask]:
        """The first tasks of each ready group in claim order, at most the number in `numbers`. Runs one statement for
        each group."""
        found: list[ReadyTask] = []
        for group, number in numbers.items():
            if number > 0:
                found += self._tasks(request, "first_ready", *group, self._transaction.now, number)
        return found

    async def commands(
        self, request: ClaimRequest, kinds: Sequence[KindRequest], servers: Mapping[str, Sequence[str]], limit: int
    ) -> list[ReadyTask]:
        found: list[ReadyTask] = []
        for kind in kinds:
            wanted = {None, *servers.get(kind.provider or "", ())}
            for (target,) in self._transaction.rows("wanted_servers", kind=kind.kind):
                if target in wanted:
                    found += self._tasks(request, "ready_commands", kind.kind, target, self._transaction.now, limit)
        return found

    async def among(self, request: ClaimRequest, ids: Collection[int]) -> list[ReadyTask]:
        """The tasks of this list that are ready, not expired, and in requested queues that are not paused."""
        found = self._tasks(request, "ready_among", as_json(ids), self._transaction.now)
        return [task for task in found if request.queues is None or task.queue in request.queues]

    async def take(self, node_id: str, taken: Sequence[Taken]) -> list[Claim]:
        """Claim all of these tasks: move them from `ready` to `running`."""
        entries = as_json((task.id, grant.holds, grant.provider, grant.server, grant.slot) for task, grant in taken)
        return self._transaction.typed(Claim, "take", node_id=node_id, now=self._transaction.now, taken=entries)

    async def take_members(self, node_id: str, leader: Claim, count: int) -> list[Claim]:
        """Claim the first waiting tasks of the leader's key queue, for the leader's batch."""
        self._transaction.run("lead_batch", id=leader.id)
        return self._transaction.typed(
            Claim,
            "take_members",
            node_id=node_id,
            now=self._transaction.now,
            leader=leader.id,
            kind=leader.kind,
            limit_key=leader.limit_key,
            queue=leader.queue,
            requirements=leader.requirements,
            count=count,
        )

    async def reserve(self, request: ClaimRequest, task: ReadyTask) -> bool:
        """Reserve capacity of the node for a task. False if another node, live and not cordoned, has reserved capacity
        for it."""
        reservation = self._transaction.row("reservation", task.id)
        if self._is_reserved_elsewhere(request, *reservation):
            return False
        until = self._transaction.now + request.reserve_microseconds
        self._transaction.run("reserve", request.node_id, until, task.id)
        return True

    async def release_reservation(self, task_id: int, node_id: str) -> None:
        self._transaction.run("release_reservation", task_id, node_id)

    def _tasks(self, request: ClaimRequest, statement: str, *parameters: Any) -> list[ReadyTask]:
        return [self._task(request, row) for row in self._transaction.typed(ReadyRow, statement, *parameters)]

    def _task(self, request: ClaimRequest, row: ReadyRow) -> ReadyTask:
        avoid = server_to_avoid(row.server, row.attempts, row.server_failures)
        is_reservable = (
            may_reserve(request)
            and row.run_at <= self._transaction.now - (request.patience or 0)
            and not self._is_reserved_elsewhere(request, row.reserved_by, row.reserved_until)
        )
        return ReadyTask(
            row.id,
            row.priority,
            row.kind,
            row.queue,
            row.requirements,
            row.target,
            avoid,
            is_reservable,
            row.fair_tag,
            row.units,
            row.server_failures > 0,
        )

    def _is_reserved_elsewhere(
        self, request: ClaimRequest, reserved_by: str | None, reserved_until: int | None
    ) -> bool:
        """Whether another node that is live and not cordoned has reserved capacity for the task."""
        if reserved_by is None or reserved_by == request.node_id:
            return False
        if reserved_until is None or reserved_until <= self._transaction.now:
            return False
        return self._is_cordoned(reserved_by) is False

    def _is_cordoned(self, node_id: str) -> bool | None:
        found = self._transaction.typed(LeaseRow, "lease_and_cordon", node_id)
        return found[0].is_cordoned if found else None


def ready_groups(
    transaction: Transaction, kinds: Sequence[KindRequest], queues: frozenset[str] | None
) -> list[ReadyGroupName]:
    """All ready groups of these kinds in requested queues that are not paused; for commands, in every queue."""
    paused = {str(name) for (name,) in transaction.rows("paused_queues")}
    asked = kinds if len(kinds) == 1 else _with_tasks(transaction, {kind.kind: kind for kind in kinds})
    return [
        (kind.kind, queue, requirements)
        for kind in asked
        for queue, requirements in transaction.rows("groups_of_kind", kind=kind.kind)
        if kind.is_command or (queue not in paused and (queues is None or queue in queues))
    ]


def _with_tasks(transaction: Transaction, kinds: Mapping[str, KindRequest]) -> Iterator[KindRequest]:
    """The kinds that have ready tasks. Jumps from kind to kind in the index, so kinds without tasks cost nothing."""
    names, number = sorted(kinds), 0
    while number < len(names):
        (found,) = transaction.row("next_kind", names[number])
        if found is None:
            return
        asked, number = number, bisect_left(names, found, number)
        if number < len(names) and names[number] == found:
            yield kinds[found]
            number += 1
        elif number == asked:  # a kind that is not UTF-8, and so is sorted differently here than in the database
            number += 1
