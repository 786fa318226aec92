"""The lock order. All transactions lock rows in this order, so they cannot deadlock.

The order: schedules, limits by name, servers, groups by id, nodes, tasks by id, holds of unique keys. The key queues of
a kind share one lock, the row of the limit `key:<kind>`. A transaction that makes their tasks ready, or takes them out
of ready or running, holds this lock. Claims do not hold it: they move tasks from ready to running, which leaves the sum
of both unchanged. Callers' own transactions do not hold it either. The lock row `key_queues` comes after existing
limits, and before limits of key queues that are being created. The lock row `keys` comes before all others: under it,
lists of tasks with unique keys are inserted one after the other.

A read without locks determines what to lock. If a task changes between this read and its lock, a missing lock is taken
late and out of order. If two transactions do so at once, the database rolls one of them back, and the store repeats it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from synergon.model.limits import KEY_QUEUES
from synergon.model.outcomes import FencedOutcome, KeyAssigned, Succeeded
from synergon.model.tasks import NewTask
from synergon.stores.postgres.transaction import Transaction
from synergon.stores.rows import KeyQueueLimit, LimitRow, LockedLimitRow
from synergon.stores.session import Locks

if TYPE_CHECKING:
    from synergon.stores.postgres.session import Session


class LockTarget(msgspec.Struct, frozen=True):
    """The values of a task that decide which rows are locked for it: its key queue, its group, and whether tasks depend
    on it."""

    id: int
    kind: str
    limit_key: str | None
    group_id: int | None
    has_dependents: bool = False


class LockOrder(Locks):
    """Implements `stores.session.Locks`. Only PostgreSQL needs row locks: its transactions run concurrently."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session: Final = session

    async def for_outcomes(self, outcomes: Sequence[FencedOutcome]) -> None:
        """Lock key queues, then the servers whose health may change, then groups. Also locks the tasks if only some of
        them succeeded. Otherwise one later statement locks them all."""
        lock_targets = await self._bonds_of_outcomes(outcomes)
        await lock_key_queues(self._session, await self._kinds(lock_targets))
        await self._lock_health(outcomes)
        await self.groups(_groups(lock_targets))
        if len({isinstance(entry.outcome, Succeeded) for entry in outcomes}) > 1:
            await self._session.rows("lock_tasks", [entry.id for entry in outcomes])

    async def kinds_of_outcomes(self, outcomes: Iterable[FencedOutcome]) -> set[str]:
        """The kinds whose key queues `for_outcomes` will lock, derived from the outcomes and the dependents of their
        tasks, without reading the tasks."""
        lock_targets = [
            *_bonds_of_children(outcomes),
            *(
                LockTarget(
                    outcome.id,
                    outcome.kind,
                    _limit_key_after(outcome, outcome.limit_key),
                    outcome.group_id,
                    outcome.has_dependents,
                )
                for outcome in outcomes
                if outcome.kind is not None
            ),
        ]
        return await self._kinds(lock_targets)

    async def for_new_tasks(self, tasks: Sequence[NewTask]) -> None:
        """Lock the key queues and groups that these tasks join. Two concurrent lists with common unique keys in
        different order would deadlock, so the second list waits before it inserts anything."""
        is_callers = self._session.is_callers
        if len(tasks) > 1 and not is_callers and any(task.key is not None for task in tasks):
            await self._session.rows("lock_keys")
        await self._lock(_bonds_of_tasks(tasks, is_callers=is_callers))

    async def for_tasks(self, ids: Sequence[int]) -> None:
        await self._lock(await self._session.typed(LockTarget, "lock_targets", ids))

    async def for_due_tasks(self, limit: int) -> None:
        await self._lock(await self._session.typed(LockTarget, "due_lock_targets", limit))

    async def for_dead_nodes(self, gone: Sequence[str], limit: int) -> None:
        await self._lock(await self._session.typed(LockTarget, "dead_lock_targets", gone, limit))

    async def groups(self, ids: Iterable[int]) -> None:
        missing = set(ids) - self._session.locked_groups
        if missing:
            await self._session.rows("join_groups" if self._session.is_callers else "lock_groups", sorted(missing))
            self._session.locked_groups |= missing

    async def all_key_queues(self) -> None:
        limits = await self._session.typed(LockedLimitRow, "lock_key_queues")
        self._session.key_queue_limits.update(key_queue_limits(limits))

    async def statistics(self) -> None:
        await self._session.rows("lock_statistics")

    async def _lock(self, lock_targets: Collection[LockTarget]) -> None:
        await lock_key_queues(self._session, await self._kinds(lock_targets))
        await self.groups(_groups(lock_targets))

    async def _kinds(self, lock_targets: Iterable[LockTarget]) -> set[str]:
        """The kinds whose key queues are to be locked: those of targets with a limit key, and those of tasks that
        depend on the targets."""
        kinds = {bond.kind for bond in lock_targets if bond.limit_key is not None}
        needed = sorted(bond.id for bond in lock_targets if bond.has_dependents)
        if needed:
            kinds.update(row["kind"] for row in await self._session.rows("kinds_of_dependents", needed))
        return kinds

    async def _lock_health(self, outcomes: Iterable[FencedOutcome]) -> None:
        on_servers = [outcome for outcome in outcomes if outcome.server is not None]
        if on_servers:
            servers = {outcome.server for outcome in on_servers if outcome.server is not None}
            failed = {outcome.server for outcome in on_servers if outcome.server and not outcome.is_server_well}
            await self._session.servers.lock_health(servers, failed)

    async def _bonds_of_outcomes(self, outcomes: Iterable[FencedOutcome]) -> list[LockTarget]:
        """The lock targets of the tasks of these outcomes, and of their children. Key queues are read from the tasks'
        rows, because they may have changed; the group of a task does not change."""
        keyed = {outcome.id: outcome for outcome in outcomes if _has_key(outcome)}
        rows = await self._session.typed(LockTarget, "running_lock_targets", list(keyed)) if keyed else []
        return [
            *_bonds_of_children(outcomes),
            *(replace(row, limit_key=_limit_key_after(keyed[row.id], row.limit_key)) for row in rows),
            *(
                LockTarget(outcome.id, "", None, outcome.group_id, outcome.has_dependents)
                for outcome in outcomes
                if outcome.id not in keyed and (outcome.group_id is not None or outcome.has_dependents)
            ),
        ]


def _has_key(outcome: FencedOutcome) -> bool:
    return outcome.limit_key is not None or isinstance(outcome.outcome, KeyAssigned)


def _limit_key_after(outcome: FencedOutcome, limit_key: str | None) -> str | None:
    return outcome.outcome.limit_key if isinstance(outcome.outcome, KeyAssigned) else limit_key


def _bonds_of_children(outcomes: Iterable[FencedOutcome]) -> list[LockTarget]:
    children = [child for one in outcomes if isinstance(one.outcome, Succeeded) for child in one.outcome.children]
    return _bonds_of_tasks(children) if children else []


def _bonds_of_tasks(tasks: Iterable[NewTask], *, is_callers: bool = False) -> list[LockTarget]:
    """The lock targets of these new tasks. In a caller's own transaction, key queues are left out."""
    return [
        LockTarget(0, task.kind, None if is_callers else task.limit_key, task.group_id)
        for task in tasks
        if task.limit_key is not None or task.group_id is not None
    ]


def _groups(lock_targets: Iterable[LockTarget]) -> set[int]:
    return {bond.group_id for bond in lock_targets if bond.group_id is not None}


async def lock_key_queues(transaction: Transaction, kinds: Iterable[str]) -> None:
    """Lock the key queues of these kinds, and note their limits in `transaction.key_queue_limits`. Skips kinds that
    this transaction has locked already."""
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
    return key_queue_limits(await transaction.typed(LockedLimitRow, "lock_limits", names))


def key_queue_limits(limits: Iterable[LimitRow]) -> dict[str, KeyQueueLimit]:
    """The limits of key queues among these limits, by kind."""
    return {
        limit.name.removeprefix(KEY_QUEUES): limit.of_key_queues
        for limit in limits
        if limit.name.startswith(KEY_QUEUES)
    }
