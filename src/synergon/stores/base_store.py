"""The base class of all stores. It implements those calls of the port whose rules are in `stores.rules`, and runs each
rule in a transaction of the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import cached_property
from typing import Any, TypeVar

from synergon.model.claims import ClaimRequest, DryRun
from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.limits import LimitRecord, NewLimit, NewProvider, NewServer, ServerRecord
from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.outcomes import FencedOutcome, Report, Verdict
from synergon.model.schedules import Fired, NewSchedule, ScheduleRecord, ScheduleRun
from synergon.model.task_records import TaskRecord
from synergon.model.tasks import (
    Cutoffs,
    Extension,
    Insertion,
    MetaChange,
    Moved,
    NewTask,
    Reaped,
    Reprioritizing,
    Rescheduling,
    Woken,
)
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
    schedules,
    servers,
)
from synergon.stores.session import Session
from synergon.stores.unreadable import UnreadableRows

Result = TypeVar("Result")


class BaseStore(ABC):
    """Runs the rules of `stores.rules`. A store implements three ways to run a rule (`_transact`, `_query`,
    `_query_once`), and overrides the calls for which it has fast paths or queries of its own."""

    @cached_property
    def unreadable(self) -> UnreadableRows:
        """The values that this store has met and could not read."""
        return UnreadableRows()

    @abstractmethod
    async def _transact(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Run a rule on a new session; commit if it returns, roll back if it raises."""

    @abstractmethod
    async def _query(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Run a rule that only reads. All its reads see one snapshot."""

    async def _query_once(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Run a rule that calls only one primitive, which reads. Such a rule needs no snapshot."""
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
        """Apply outcomes of attempts. An outcome with a stale claim changes nothing, and its verdict has no state."""
        return await self._transact(finish.finish, outcomes)

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """Write progress and overdue marks of running attempts. False for a stale claim."""
        return await self._transact(finish.report, reports)

    async def wake(self, limit: int) -> Woken:
        """Make due tasks ready, end expired ones, and return when to call `wake` again."""
        return await self._transact(due_tasks.wake, limit)

    async def reap(self, gone: Sequence[str], limit: int) -> list[Reaped]:
        """Take running tasks from dead nodes."""
        return await self._transact(reap.reap, gone, limit)

    async def open_group(self, group: NewGroup) -> OpenedGroup:
        """Store a group and its tasks, all or nothing."""
        return await self._transact(groups.open_group, group)

    async def groups(self, ids: Sequence[int]) -> list[GroupRecord | None]:
        """These groups, with the numbers of their tasks by state. None for a group that does not exist."""
        return await self._query(groups.groups, ids)

    async def cancel_group(self, group_id: int, why: str | None = None) -> list[Moved]:
        """Cancel all live tasks of a group."""
        return await self._transact(groups.cancel_group, group_id, why)

    # ------------------------------------------------------------ records

    async def get(self, ids: Sequence[int]) -> list[TaskRecord | None]:
        """These tasks, live or final. None for a task that does not exist."""
        found = await self._query(_records, ids)
        return [found.get(task_id) for task_id in ids]

    # ------------------------------------------------------------ history

    async def prune(self, cutoffs: Cutoffs, limit: int) -> int:
        """Delete final tasks, operator actions, groups and rates that are older than the cutoffs. Returns the number of
        deleted tasks."""
        return await self._transact(history.prune, cutoffs, limit)

    # ------------------------------------------------------------ operations

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """Cancel tasks: end those that do not run, and mark running ones, so that their nodes cancel them."""
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
        """Change the priority of live tasks that are not running and not commands."""
        return await self._transact(operations.set_priority, changes)

    async def extend_timeout(self, extensions: Sequence[Extension]) -> list[Moved]:
        """Record more time for the attempts of running tasks."""
        return await self._transact(operations.extend_timeout, extensions)

    async def update_meta(self, changes: Sequence[MetaChange]) -> list[dict[str, Any] | None]:
        """Change the metadata of tasks, live or final."""
        return await self._transact(operations.update_meta, changes)

    async def pause(self, queues: Sequence[str]) -> list[bool]:
        """Pause queues: no node claims from them. False for a queue that was paused already."""
        return await self._transact(operations.pause, queues)

    async def resume(self, queues: Sequence[str]) -> list[bool]:
        """Resume paused queues. False for a queue that was not paused."""
        return await self._transact(operations.resume, queues)

    # ------------------------------------------------------------ limits, servers, operator actions

    async def declare(self, declared: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
        """Store the limits and providers that the code declares, unless they equal the last declaration."""
        await self._transact(limits.declare, declared, providers)

    async def set_limit(self, name: str, value: int | None) -> bool:
        """Change the value of a limit. False if it is not declared."""
        return await self._transact(limits.set_limit, name, value)

    async def limits(self) -> list[LimitRecord]:
        """All limits, by name."""
        return await self._query(limits.limits)

    async def set_servers(self, provider: str, pool: Sequence[NewServer]) -> bool:
        """Replace the pool of a provider. False if the provider is not declared."""
        return await self._transact(servers.set_servers, provider, pool)

    async def servers(self) -> list[ServerRecord]:
        """All servers, by provider and address, including removed ones that tasks still run on."""
        return await self._query(servers.servers)

    # ------------------------------------------------------------ schedules

    async def declare_schedules(self, definitions: Sequence[NewSchedule]) -> list[str]:
        """Store the schedules that code declares. Returns the names that schedules of run time have."""
        return await self._transact(schedules.declare, definitions)

    async def create_schedule(self, definition: NewSchedule) -> ScheduleRecord | None:
        """Store a schedule at run time. None if one with this name exists."""
        return await self._transact(schedules.create, definition)

    async def update_schedule(self, name: str, changes: dict[str, Any]) -> ScheduleRecord | None:
        """Change fields of a schedule. None if there is none."""
        return await self._transact(schedules.update, name, changes)

    async def fire(self, declared: Collection[str], limit: int) -> Fired:
        """Create the tasks of due schedules."""
        return await self._transact(schedules.fire, declared, limit)

    async def run_schedule(self, name: str, who: str) -> ScheduleRun | None:
        """Create one more task. None if there is no such schedule."""
        return await self._transact(schedules.run, name, who)

    async def schedules(self) -> list[ScheduleRecord]:
        """All schedules, by name."""
        return await self._query_once(schedules.schedules)

    async def act(self, order: NewAction) -> AuditRecord:
        """Carry out an operator action and record it in the audit."""
        return await self._transact(operator_actions.act, order)

    async def audit(self, limit: int = 100, node_id: str | None = None) -> list[AuditRecord]:
        """The latest operator actions, newest first. With `node_id`: the actions whose outcome this node has yet to
        report, oldest first."""
        return await self._query_once(operator_actions.audit, limit, node_id)

    async def action_done(self, action_id: int, outcome: str) -> bool:
        """Write the outcome that a node reports for an operator action. False if the action has an outcome already."""
        return await self._transact(operator_actions.action_done, action_id, outcome)


async def _records(session: Session, ids: Sequence[int]) -> dict[int, TaskRecord]:
    return await session.tasks.records(ids)
