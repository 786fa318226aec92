"""Ready tasks in the memory store, as a claim reads and takes them: implements `stores.claim_primitives.ReadyRows` over
the store's tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.model.lifecycle import State
from synergon.model.limits import KEY_QUEUES
from synergon.stores import claim_primitives as port
from synergon.stores.columns import CLAIM_COLUMNS
from synergon.stores.memory.ready_groups import ReadyGroup
from synergon.stores.memory.row import Row, values_of
from synergon.stores.memory.server_rows import server_row
from synergon.stores.memory.tables import Tables
from synergon.stores.rows import ClaimableGroups, SharedLimits
from synergon.stores.rules.claim_plan import ReadyGroupName, ReadyTask, Taken, server_to_avoid
from synergon.stores.rules.server_health import capacity_at
from synergon.stores.rules.shared_capacity import Grant, HeldPermits

if TYPE_CHECKING:
    from synergon.stores.memory.session import Session


class ReadyRows(port.ReadyRows):
    """Implements `stores.claim_primitives.ReadyRows` for the memory store."""

    __slots__ = ("_session", "_tables")

    reads_ahead: Final = 0

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tables = session.tables

    async def groups(self, request: ClaimRequest) -> ClaimableGroups:
        is_cordoned = await self.is_cordoned(request.node_id)
        groups = [
            (kind.kind, group.queue, group.requirements)
            for kind in request.open_kinds
            for group in self._groups(kind, request.queues)
            if group.count
        ]
        return ClaimableGroups(is_cordoned, groups)

    def _groups(self, kind: KindRequest, queues: frozenset[str] | None) -> Iterator[ReadyGroup]:
        if kind.is_command:
            return iter(self._tables.ready.ready_commands(kind.kind))
        return open_groups(self._tables, kind.kind, queues)

    async def is_cordoned(self, node_id: str) -> bool | None:
        if not self._tables.is_leased(node_id, self._session.now):
            return None
        return self._tables.nodes[node_id].cordoned_at is not None

    async def lock_limits(self, kinds: Sequence[KindRequest]) -> SharedLimits:
        """Read all servers, and all limits except those of key queues. Reads nothing if no task of these kinds needs a
        permit."""
        if not any(kind.limits or kind.provider is not None for kind in kinds):
            return SharedLimits({}, [])
        now = self._session.now
        servers = [
            capacity_at(server_row(name, provider, address, server), now)
            for name, provider in self._tables.providers.items()
            for address, server in provider.servers.items()
        ]
        limits = (limit.row(name) for name, limit in self._tables.limits.items() if not name.startswith(KEY_QUEUES))
        return SharedLimits.of(limits, servers, now)

    async def held_permits(
        self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]
    ) -> tuple[list[HeldPermits], list[ReadyTask]]:
        """Read the permits that running tasks hold, and the first tasks of these ready groups."""
        permits = [
            # Without a provider the server is that of the last attempt, and holds no permit.
            HeldPermits(row.holds or (), row.provider, row.server if row.provider is not None else None, row.slot)
            for row in self._tables.held.values()
        ]
        return permits, await self.first(request, numbers)

    async def first(self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]) -> list[ReadyTask]:
        return [
            self._task(request, row)
            for group, number in numbers.items()
            if (found := self._tables.ready.ready_group(*group)) is not None
            for row in found.first(number, self._session.now)
        ]

    async def commands(
        self, request: ClaimRequest, kinds: Sequence[KindRequest], servers: Mapping[str, Sequence[str]], limit: int
    ) -> list[ReadyTask]:
        return [
            self._task(request, row)
            for kind in kinds
            for group in self._tables.ready.ready_commands(kind.kind)
            if group.target is None or group.target in servers.get(kind.provider or "", ())
            for row in group.first(limit, self._session.now)
        ]

    async def among(self, request: ClaimRequest, ids: Collection[int]) -> list[ReadyTask]:
        """The tasks of this list that are ready, not expired, and in requested queues that are not paused."""
        rows = (self._tables.rows.get(task_id) for task_id in ids)
        return [self._task(request, row) for row in rows if row is not None and self._is_open(request, row)]

    def _is_open(self, request: ClaimRequest, row: Row) -> bool:
        return (
            row.state is State.READY
            and (row.expires_at is None or row.expires_at > self._session.now)
            and (request.queues is None or row.task.queue in request.queues)
            and self._tables.queues[row.task.queue] is None
        )

    async def take(self, node_id: str, taken: Sequence[Taken]) -> list[Claim]:
        """Claim all of these tasks: move them from `ready` to `running`."""
        return [
            start(self._tables, self._tables.rows[task.id], node_id, self._session.now, grant) for task, grant in taken
        ]

    async def take_members(self, node_id: str, leader: Claim, count: int) -> list[Claim]:
        """Claim the first waiting tasks of the leader's key queue, for the leader's batch."""
        tables, now = self._tables, self._session.now
        assert leader.limit_key is not None, "only tasks of a key queue lead"
        tables.rows[leader.id].batch_id = leader.id
        waiting = tables.key_queues[leader.kind, leader.limit_key].waiting.get(leader.queue)
        is_open = waiting is not None and tables.queues.get(leader.queue) is None
        # Tasks that have expired, or have other requirements, take up places of this batch until they are gone.
        rows = [
            row
            for row in (waiting.firsts(count) if waiting is not None and is_open else ())
            if row.task.requirements == leader.requirements and (row.expires_at is None or row.expires_at > now)
        ]
        for row in rows:
            row.batch_id = leader.id
        return [start(tables, row, node_id, now) for row in rows]

    async def reserve(self, request: ClaimRequest, task: ReadyTask) -> bool:
        """Reserve capacity of the node for a task. False if another node, live and not cordoned, has reserved capacity
        for it."""
        row = self._tables.rows[task.id]
        if self._is_reserved_elsewhere(request, row):
            return False
        row.reserved_by = request.node_id
        row.reserved_until = self._session.now + request.reserve_microseconds
        return True

    async def release_reservation(self, task_id: int, node_id: str) -> None:
        row = self._tables.rows.get(task_id)
        if row is not None and row.reserved_by == node_id:
            row.release_reservation()

    def _task(self, request: ClaimRequest, row: Row) -> ReadyTask:
        task, avoid = row.task, server_to_avoid(row.server, row.attempts, row.server_failures)
        may_reserve = (
            request.patience is not None
            and self._session.now - row.run_at >= request.patience
            and not self._is_reserved_elsewhere(request, row)
        )
        return ReadyTask(
            row.id,
            row.priority,
            task.kind,
            task.queue,
            task.requirements,
            task.target,
            avoid,
            may_reserve,
            row.fair_tag,
            task.units,
            row.server_failures > 0,
        )

    def _is_reserved_elsewhere(self, request: ClaimRequest, row: Row) -> bool:
        """Whether another node that is live and not cordoned has reserved capacity for the task."""
        return (
            row.reserved_by is not None
            and row.reserved_by != request.node_id
            and row.reserved_until > self._session.now
            and self._tables.is_leased(row.reserved_by, self._session.now)
            and self._tables.nodes[row.reserved_by].cordoned_at is None
        )


def open_groups(tables: Tables, kind: str, queues: frozenset[str] | None) -> Iterator[ReadyGroup]:
    """The ready groups of a kind in queues that are not paused: all, or those in `queues`."""
    return (group for group in tables.ready.ready_groups(kind, queues) if tables.queues[group.queue] is None)


def start(tables: Tables, row: Row, node_id: str, now: int, grant: Grant | None = None) -> Claim:
    """Move a task from `ready` to `running` with the permits of the grant, and return its claim."""
    tables.start(row, node_id, now)
    if grant is not None:
        tables.take_permits(row, grant)
    server = None if grant is None else grant.server
    protected_for = row.protected_until - now if row.protected_until > now else 0
    waited = now - row.run_at if now > row.run_at else 0
    return Claim(*(*_claim_values(row), server, row.slot, protected_for, waited))


_claim_values: Final = values_of(CLAIM_COLUMNS)
