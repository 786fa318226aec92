"""Ready tasks in the PostgreSQL store, as a claim reads and takes them: implements `stores.claim_primitives.ReadyRows`
with the statements of `sql/claim_limited.sql`.

Reads lock nothing, so a concurrent claim may take a task first. A task that could not be taken or reserved is not
returned again in this claim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from synergon.model.claims import Claim, ClaimRequest, KindRequest
from synergon.stores import claim_primitives as port
from synergon.stores.postgres.claim_fast import claim_of, queues_of
from synergon.stores.postgres.permit_locks import Covering, lock_limits
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import ClaimableGroups, Names, SharedLimits
from synergon.stores.rules.claim_plan import ReadyGroupName, ReadyTask, Taken, server_to_avoid
from synergon.stores.rules.shared_capacity import HeldPermits


class GroupRow(msgspec.Struct, frozen=True):
    """A ready group (its columns are None if there is none), and whether the node is cordoned (None if it has no live
    lease)."""

    is_cordoned: bool | None
    kind: str | None
    queue: str | None
    requirements: str | None


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
    may_reserve: bool
    units: int

    @property
    def task(self) -> ReadyTask:
        """The task in the form that the claim planner needs."""
        avoid = server_to_avoid(self.server, self.attempts, self.server_failures)
        return ReadyTask(
            self.id,
            self.priority,
            self.kind,
            self.queue,
            self.requirements,
            self.target,
            avoid,
            self.may_reserve,
            self.fair_tag,
            self.units,
            self.server_failures > 0,
        )


class ReadyOrHeldRow(ReadyRow, frozen=True):
    """A row of `first_ready`: a ready task, or the permits of a running task (`is_held`)."""

    is_held: bool
    limits: Names
    provider: str | None
    slot: int | None


class ClaimState:
    """What a claim remembers between its statements."""

    __slots__ = ("covering", "held", "passed_over", "tried")

    def __init__(self, covering: Covering, held: Collection[int], tried: list[int]) -> None:
        self.covering: Final = covering
        """The limits that cover servers, as the last claim of this process found them."""
        self.held: Final = held
        """Tasks that other transactions have locked. The claim excludes them."""
        self.tried: Final = tried
        """The tasks that the last statement tried to change."""
        self.passed_over: Final = set(held)


class ReadyRows(port.ReadyRows):
    """Implements `stores.claim_primitives.ReadyRows` for the PostgreSQL store."""

    __slots__ = ("_transaction",)

    reads_ahead: Final = 8

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Final = transaction

    @property
    def _state(self) -> ClaimState:
        state = self._transaction.claim
        assert state is not None, "claim_limited sets it"
        return state

    @property
    def _passed_over(self) -> list[int]:
        """The tasks that reads exclude: those that this claim could not take. Empty in a dry run."""
        return [] if self._transaction.claim is None else sorted(self._transaction.claim.passed_over)

    async def groups(self, request: ClaimRequest) -> ClaimableGroups:
        """Read the lease of the node, and the ready groups of the requested kinds, including those of commands, with
        one statement."""
        rows = await self._transaction.typed(
            GroupRow,
            "ready_groups",
            request.node_id,
            [kind.kind for kind in request.kinds],
            [kind.is_command for kind in request.kinds],
            queues_of(request),
        )
        groups = [
            (row.kind, row.queue, row.requirements)
            for row in rows
            if row.kind is not None and row.queue is not None and row.requirements is not None
        ]
        return ClaimableGroups(rows[0].is_cordoned, groups)

    async def is_cordoned(self, node_id: str) -> bool | None:
        found: bool | None = await self._transaction.value("is_cordoned", node_id)
        return found

    async def lock_limits(self, kinds: Sequence[KindRequest]) -> SharedLimits:
        """Lock and read the limits and servers of these kinds, unless the exchange that this claim belongs to has done
        so."""
        return self._transaction.locked_limits or await lock_limits(self._transaction, kinds, self._state.covering)

    async def held_permits(
        self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]
    ) -> tuple[list[HeldPermits], list[ReadyTask]]:
        """Read the permits that running tasks hold, and the first tasks of these ready groups, with one statement."""
        rows = await self._first(request, numbers, with_held=True)
        held = [HeldPermits(row.limits, row.provider, row.server, row.slot) for row in rows if row.is_held]
        return held, [row.task for row in rows if not row.is_held]

    async def first(self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int]) -> list[ReadyTask]:
        return [row.task for row in await self._first(request, numbers, with_held=False)]

    async def _first(
        self, request: ClaimRequest, numbers: Mapping[ReadyGroupName, int], *, with_held: bool
    ) -> list[ReadyOrHeldRow]:
        found: list[ReadyOrHeldRow] = []
        for groups in _batches(numbers) if self._transaction.profile.asks_one_number else [numbers]:
            if groups or with_held:
                found += await self._transaction.typed(
                    ReadyOrHeldRow,
                    "first_ready",
                    [kind for kind, _, _ in groups],
                    [queue for _, queue, _ in groups],
                    [requirements for _, _, requirements in groups],
                    list(groups.values()),
                    self._passed_over,
                    request.patience,
                    request.node_id,
                    max(groups.values(), default=0),
                    with_held,
                )
                with_held = False
        return found

    async def commands(
        self, request: ClaimRequest, kinds: Sequence[KindRequest], servers: Mapping[str, Sequence[str]], limit: int
    ) -> list[ReadyTask]:
        targets = [(provider, address) for provider, addresses in servers.items() for address in addresses]
        return await self._tasks(
            "ready_commands",
            [kind.kind for kind in kinds],
            [kind.provider for kind in kinds],
            limit,
            [provider for provider, _ in targets],
            [address for _, address in targets],
            self._passed_over,
            request.patience,
            request.node_id,
        )

    async def among(self, request: ClaimRequest, ids: Collection[int]) -> list[ReadyTask]:
        """The tasks of this list that are ready, not expired, and in requested queues that are not paused."""
        return await self._tasks(
            "ready_among",
            sorted(ids),
            queues_of(request),
            self._passed_over,
            request.patience,
            request.node_id,
        )

    async def _tasks(self, statement: str, *parameters: Any) -> list[ReadyTask]:
        return [row.task for row in await self._transaction.typed(ReadyRow, statement, *parameters)]

    async def take(self, node_id: str, taken: Sequence[Taken]) -> list[Claim]:
        taken = sorted(taken, key=lambda entry: entry.task.id)
        state = self._state
        state.tried[:] = [entry.task.id for entry in taken]
        rows = await self._transaction.rows(
            "take",
            node_id,
            state.tried,
            [entry.grant.holds for entry in taken],
            [entry.grant.provider for entry in taken],
            [entry.grant.server for entry in taken],
            [entry.grant.slot for entry in taken],
            [entry.task.requirements for entry in taken],
        )
        claims = [claim_of(row) for row in rows]
        state.passed_over.update(set(state.tried) - {claim.id for claim in claims})
        return claims

    async def take_members(self, node_id: str, leader: Claim, count: int) -> list[Claim]:
        """Claim the first waiting tasks of the leader's key queue, for the leader's batch."""
        await self._transaction.run("lead_batch", leader.id)
        if not count:
            return []
        rows = await self._transaction.rows(
            "take_members",
            node_id,
            leader.id,
            leader.kind,
            leader.limit_key,
            count,
            leader.queue,
            leader.requirements,
        )
        return [claim_of(row) for row in rows]

    async def reserve(self, request: ClaimRequest, task: ReadyTask) -> bool:
        self._state.tried[:] = [task.id]
        microseconds = request.reserve_microseconds
        statement = ("reserve", task.id, request.node_id, microseconds, task.requirements, task.queue)
        is_reserved = bool(await self._transaction.rows(*statement))
        if not is_reserved:
            self._state.passed_over.add(task.id)
        return is_reserved

    async def release_reservation(self, task_id: int, node_id: str) -> None:
        """Delete the node's reservation for the task. If another transaction has locked the task, the reservation
        remains until it ends by itself."""
        if task_id not in self._state.held:
            self._state.tried[:] = [task_id]
            await self._transaction.rows("release_reservation", task_id, node_id)


def _batches(numbers: Mapping[ReadyGroupName, int]) -> list[dict[ReadyGroupName, int]]:
    """Separate the groups with one requested task, which may be many, from the groups with several."""
    ones = {group: number for group, number in numbers.items() if number == 1}
    return [ones, {group: number for group, number in numbers.items() if number > 1}]
