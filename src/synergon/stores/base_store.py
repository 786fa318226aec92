"""The base class of all stores: the calls of the port that `stores.rules` implements, run in a transaction of the
store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from synergon.model.claims import ClaimRequest, DryRun
from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.limits import LimitRecord, NewLimit, NewProvider, NewServer, ServerRecord
from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.outcomes import FencedOutcome, Report, Verdict
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import Cutoffs, Insertion, Moved, NewTask, Reaped, Reprioritizing, Rescheduling, Woken
from synergon.stores.rules import (
    claim,
    due_tasks,
    finish,
    groups,
    history,
    insert,
    limits,
    operations,
    operator_actions,
    reap,
    servers,
)
from synergon.stores.session import Session

Result = TypeVar("Result")


class BaseStore(ABC):
    """Runs rules. A store implements three ways to run one (`_transact`, `_query`, `_query_once`), and those calls for
    which it has fast paths or queries of its own."""

    @abstractmethod
    async def _transact(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Run a rule on a new session; commit if it returns, roll back if it raises."""

    @abstractmethod
    async def _query(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Run a rule that only reads. All its reads see one snapshot."""

    async def _query_once(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Run a rule that calls one reading primitive, and so needs no snapshot."""
        return await self._query(rule, *arguments)

    # ------------------------------------------------------------ claims

    async def dry_run(self, request: ClaimRequest, task_id: int) -> DryRun:
        """What a claim would do with a task; nothing is changed."""
        return await self._query(claim.dry_run, request, task_id)

    # ------------------------------------------------------------ tasks come in, run and end

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store all of `tasks` or none."""
        return await self._transact(insert.insert, tasks)

    async def finish(self, outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        """Apply outcomes of attempts, each guarded by its claim number."""
        return await self._transact(finish.finish, outcomes)

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """Write progress and overdue marks of running attempts."""
        return await self._transact(finish.report, reports)

    async def wake(self, limit: int) -> Woken:
        """Make due tasks ready, end expired ones, and return when the next task is due."""
        return await self._transact(due_tasks.wake, limit)

    async def reap(self, gone: Sequence[str], limit: int) -> list[Reaped]:
        """Take running tasks from dead nodes."""
        return await self._transact(reap.reap, gone, limit)

    async def open_group(self, group: NewGroup) -> OpenedGroup:
        """Store a group and its tasks, all or nothing."""
        return await self._transact(groups.open_group, group)

    async def groups(self, ids: Sequence[int]) -> list[GroupRecord | None]:
        """These groups, with their tasks counted."""
        return await self._query(groups.groups, ids)

    async def cancel_group(self, group_id: int, why: str | None = None) -> list[Moved]:
        """Cancel all tasks of a group that have not ended."""
        return await self._transact(groups.cancel_group, group_id, why)

    # ------------------------------------------------------------ records

    async def get(self, ids: Sequence[int]) -> list[TaskRecord | None]:
        """These tasks, live or final."""
        found = await self._query(_records, ids)
        return [found.get(task_id) for task_id in ids]

    # ------------------------------------------------------------ history

    async def prune(self, cutoffs: Cutoffs, limit: int) -> int:
        """Delete rows that are older than the cutoffs. Returns the number of deleted tasks."""
        return await self._transact(history.prune, cutoffs, limit)

    # ------------------------------------------------------------ operations

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """End tasks that do not run, and mark running ones, so that their nodes cancel them."""
        return await self._transact(operations.cancel, ids, why)

    async def retry(self, ids: Sequence[int]) -> list[Moved]:
        """Run final tasks again."""
        return await self._transact(operations.retry, ids)

    async def delete(self, ids: Sequence[int]) -> list[Moved]:
        """Remove tasks that do not run."""
        return await self._transact(operations.delete, ids)

    async def reschedule(self, changes: Sequence[Rescheduling]) -> list[Moved]:
        """Change when tasks are due."""
        return await self._transact(operations.reschedule, changes)

    async def set_priority(self, changes: Sequence[Reprioritizing]) -> list[Moved]:
        """Change the priority of tasks that do not run."""
        return await self._transact(operations.set_priority, changes)

    async def pause(self, queues: Sequence[str]) -> list[bool]:
        """Pause queues: no node claims from them."""
        return await self._transact(operations.pause, queues)

    async def resume(self, queues: Sequence[str]) -> list[bool]:
        """Resume paused queues."""
        return await self._transact(operations.resume, queues)

    # ------------------------------------------------------------ limits, servers, operator actions

    async def declare(self, declared: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
        """Store the limits and providers that the code declares, where they differ from its last declaration."""
        await self._transact(limits.declare, declared, providers)

    async def set_limit(self, name: str, value: int | None) -> bool:
        """Change the value of a limit. False if it is not declared."""
        return await self._transact(limits.set_limit, name, value)

    async def limits(self) -> list[LimitRecord]:
        """All limits, by name."""
        return await self._query(limits.limits)

    async def set_servers(self, provider: str, pool: Sequence[NewServer]) -> bool:
        """Replace the pool of a provider. False if it is not declared."""
        return await self._transact(servers.set_servers, provider, pool)

    async def servers(self) -> list[ServerRecord]:
        """All servers, by provider and address, including removed ones that tasks still run on."""
        return await self._query(servers.servers)

    async def act(self, order: NewAction) -> AuditRecord:
        """Carry out an operator action and record it."""
        return await self._transact(operator_actions.act, order)

    async def audit(self, limit: int = 100, node_id: str | None = None) -> list[AuditRecord]:
        """The latest operator actions, newest first. With `node_id`: those that this node has yet to report, oldest
        first."""
        return await self._query_once(operator_actions.audit, limit, node_id)

    async def action_done(self, action_id: int, outcome: str) -> bool:
        """Record what a node reports about an operator action. False if that was reported before."""
        return await self._transact(operator_actions.action_done, action_id, outcome)


async def _records(session: Session, ids: Sequence[int]) -> dict[int, TaskRecord]:
    return await session.tasks.records(ids)
