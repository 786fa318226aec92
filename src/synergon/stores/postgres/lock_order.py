"""The lock order. All transactions lock rows in this order, so they cannot deadlock.

Limits by name, then servers, then groups by id, then nodes, then tasks by id. The key queues of a kind share one lock,
the row of the limit `key:<kind>`: a transaction that makes their tasks ready, or takes them out of ready or running,
holds it. Claims do not hold it (they move tasks from ready to running, which leaves the sum unchanged), nor do callers'
own transactions. Lists of tasks with unique keys are inserted one after the other; their lock comes before all others.

A read without locks determines what to lock. If a task has changed when it is locked, the missing lock is taken late
and out of order. If two transactions do so at once, the database rolls one of them back, and the store repeats it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from synergon.model.limits import NewRate
from synergon.model.outcomes import FencedOutcome, KeyAssigned, Succeeded
from synergon.model.tasks import NewTask
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import KeyQueueLimit, LimitRow
from synergon.stores.rules.limits import KEY_QUEUES

if TYPE_CHECKING:
    from synergon.stores.postgres.session import Session


class LockTarget(msgspec.Struct, frozen=True):
    """The key queue of a task, its group, and the group that it waits for."""

    kind: str
    limit_key: str | None
    group_id: int | None
    after_group: int | None


class RunningLockTarget(msgspec.Struct, frozen=True):
    """The key queue and the group of a running task."""

    id: int
    kind: str
    limit_key: str | None
    group_id: int | None


class LockOrder:
    """Implements `stores.session.Locks`: only PostgreSQL needs row locks, because its transactions run concurrently."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session: Final = session

    async def for_outcomes(self, outcomes: Sequence[FencedOutcome]) -> None:
        """Lock key queues, then servers whose health may change, then groups."""
        lock_targets = await self._bonds_of_outcomes(outcomes)
        groups = _groups(lock_targets)
        await lock_key_queues(self._session, await self._kinds(lock_targets, groups))
        await self._lock_health(outcomes)
        await self.groups(groups)

    async def kinds_of_outcomes(self, outcomes: Iterable[FencedOutcome]) -> set[str]:
        """The kinds whose key queues `for_outcomes` will lock, by the fields of the outcomes and the tasks that wait
        for their groups."""
        lock_targets = [
            *_bonds_of_children(outcomes),
            *(
                LockTarget(outcome.kind, _limit_key_after(outcome, outcome.limit_key), outcome.group_id, None)
                for outcome in outcomes
                if outcome.kind is not None
            ),
        ]
        return await self._kinds(lock_targets, _groups(lock_targets))

    async def for_new_tasks(self, tasks: Sequence[NewTask]) -> None:
        """Lock the key queues and groups that these tasks join. Two concurrent lists with the same keys in different
        order would deadlock, so the second list waits before it inserts anything."""
        is_callers = self._session.is_callers
        if len(tasks) > 1 and not is_callers and any(task.key is not None for task in tasks):
            await self._session.rows("lock_keys")
        await self._lock(_bonds_of_tasks(tasks, is_callers=is_callers))

    async def for_tasks(self, ids: Sequence[int]) -> None:
        """Lock the key queues and groups of these tasks, live or final."""
        await self._lock(await self._session.typed(LockTarget, "lock_targets", ids))

    async def for_due_tasks(self, limit: int) -> None:
        """Lock the key queues and groups of tasks that are due or have expired."""
        await self._lock(await self._session.typed(LockTarget, "due_lock_targets", limit))

    async def for_dead_nodes(self, gone: Sequence[str], limit: int) -> None:
        """Lock the key queues and groups of tasks whose owner is dead."""
        await self._lock(await self._session.typed(LockTarget, "dead_lock_targets", gone, limit))

    async def groups(self, ids: Iterable[int]) -> None:
        """Lock these groups: until the transaction ends, no other one adds tasks to them or ends them."""
        missing = set(ids) - self._session.locked_groups
        if missing:
            await self._session.rows("join_groups" if self._session.is_callers else "lock_groups", sorted(missing))
            self._session.locked_groups |= missing

    async def all_key_queues(self) -> None:
        """Lock the key queues of every kind that has a limit `key:<kind>`."""
        limits = await self._session.typed(LimitRow, "lock_key_queues")
        self._session.key_queue_limits.update(key_queue_limits(limits))

    async def _lock(self, lock_targets: Collection[LockTarget]) -> None:
        groups = _groups(lock_targets)
        await lock_key_queues(self._session, await self._kinds(lock_targets, groups))
        await self.groups(groups)

    async def _kinds(self, lock_targets: Iterable[LockTarget], groups: Collection[int]) -> set[str]:
        """The kinds whose key queues to lock: those of the tasks, and those of tasks that wait for their groups."""
        kinds = {bond.kind for bond in lock_targets if bond.limit_key is not None}
        if groups and not self._session.is_callers:
            kinds.update(row["kind"] for row in await self._session.rows("kinds_of_followers", sorted(groups)))
        return kinds

    async def _lock_health(self, outcomes: Iterable[FencedOutcome]) -> None:
        on_servers = [outcome for outcome in outcomes if outcome.server is not None]
        if on_servers:
            servers = {outcome.server for outcome in on_servers if outcome.server is not None}
            failed = {outcome.server for outcome in on_servers if outcome.server and not outcome.is_server_well}
            await self._session.servers.lock_health(servers, failed)

    async def _bonds_of_outcomes(self, outcomes: Iterable[FencedOutcome]) -> list[LockTarget]:
        """The key queues and groups of the tasks of these outcomes and of their children; the rows supply the kinds."""
        bound = {outcome.id: outcome for outcome in outcomes if _is_bound(outcome)}
        rows = await self._session.typed(RunningLockTarget, "running_lock_targets", list(bound)) if bound else []
        return [
            *_bonds_of_children(outcomes),
            *(LockTarget(row.kind, _limit_key_after(bound[row.id], row.limit_key), row.group_id, None) for row in rows),
        ]


def _is_bound(outcome: FencedOutcome) -> bool:
    return outcome.limit_key is not None or outcome.group_id is not None or isinstance(outcome.outcome, KeyAssigned)


def _limit_key_after(outcome: FencedOutcome, limit_key: str | None) -> str | None:
    return outcome.outcome.limit_key if isinstance(outcome.outcome, KeyAssigned) else limit_key


def _bonds_of_children(outcomes: Iterable[FencedOutcome]) -> list[LockTarget]:
    children = [child for one in outcomes if isinstance(one.outcome, Succeeded) for child in one.outcome.children]
    return _bonds_of_tasks(children) if children else []


def _bonds_of_tasks(tasks: Iterable[NewTask], *, is_callers: bool = False) -> list[LockTarget]:
    """The key queues and groups of new tasks; without key queues in a caller's own transaction."""
    return [
        LockTarget(task.kind, None if is_callers else task.limit_key, task.group_id, task.after_group)
        for task in tasks
        if task.limit_key is not None or task.group_id is not None or task.after_group is not None
    ]


def _groups(lock_targets: Iterable[LockTarget]) -> set[int]:
    return {group for bond in lock_targets for group in (bond.group_id, bond.after_group) if group is not None}


async def lock_key_queues(transaction: Transaction, kinds: Iterable[str]) -> None:
    """Lock the key queues of these kinds, and read their limits."""
    missing = set(kinds) - transaction.key_queue_limits.keys()
    if not missing:
        return
    found = await _lock_limits(transaction, missing)
    if len(found) < len(missing):
        # A concurrent transaction that declares such a limit balances the key queues, and must see these changes.
        await transaction.rows("find_no_limit")
        found |= await _lock_limits(transaction, missing - found.keys())
    for kind in missing:
        transaction.key_queue_limits[kind] = found.get(kind, KeyQueueLimit())


async def _lock_limits(transaction: Transaction, kinds: Iterable[str]) -> dict[str, KeyQueueLimit]:
    names = sorted(KEY_QUEUES + kind for kind in kinds)
    return key_queue_limits(await transaction.typed(LimitRow, "lock_limits", names))


def key_queue_limits(limits: Iterable[LimitRow]) -> dict[str, KeyQueueLimit]:
    """The limits of key queues among these limits, by kind."""
    return {
        limit.name.removeprefix(KEY_QUEUES): KeyQueueLimit(
            limit.value,
            None if limit.every is None or limit.burst is None else NewRate(every=limit.every, burst=limit.burst),
        )
        for limit in limits
        if limit.name.startswith(KEY_QUEUES)
    }
