"""The base class of all stores. It implements those calls of the port whose rules are in `stores.rules`, and runs each
rule in a transaction of the store. `stores.base` says what each call guarantees."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import cached_property, partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from synergon.async_calls import coroutine_function
from synergon.model.cluster_status import StoreVitals
from synergon.model.schedules import Fired, ScheduleRecord
from synergon.model.task_records import TaskRecord
from synergon.stores.base import Store
from synergon.stores.rules import (
    attempts,
    batches,
    claim,
    counts,
    dependencies,
    due_tasks,
    fair_shares,
    finish,
    flows,
    groups,
    history,
    insert,
    limits,
    operations,
    operator_actions,
    reap,
    retention,
    schedules,
    server_health,
    servers,
    statistics,
    status,
)
from synergon.stores.session import Session
from synergon.stores.unreadable import UnreadableRows

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
StoreCall = Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]]
"""A rule, whose first argument is a session, or a method of a store."""
Logger = logging.Logger | logging.LoggerAdapter[logging.Logger]


def writes(rule: StoreCall[Arguments, Result]) -> StoreCall[Arguments, Result]:
    """Returns a method of a store that runs this rule in a transaction."""

    @coroutine_function
    def call(store: BaseStore, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Coroutine[Any, Any, Result]:
        return store._transact(partial(rule, **named) if named else rule, *arguments)  # noqa: SLF001  of this class

    return call


def reads(rule: StoreCall[Arguments, Result]) -> StoreCall[Arguments, Result]:
    """Returns a method of a store that runs this rule, which only reads, on one snapshot."""

    @coroutine_function
    def call(store: BaseStore, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Coroutine[Any, Any, Result]:
        return store._query(partial(rule, **named) if named else rule, *arguments)  # noqa: SLF001  of this class

    return call


def reads_once(rule: StoreCall[Arguments, Result]) -> StoreCall[Arguments, Result]:
    """Returns a method of a store that runs this rule without a snapshot, because the rule calls only one primitive."""

    @coroutine_function
    def call(store: BaseStore, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Coroutine[Any, Any, Result]:
        return store._query_once(partial(rule, **named) if named else rule, *arguments)  # noqa: SLF001  of this class

    return call


class BaseStore(Store):
    """Runs the rules of `stores.rules`. A store implements three ways to run a rule (`_transact`, `_query`,
    `_query_once`), and overrides the calls for which it has fast paths or queries of its own.

    In this class, a method that has the name of a module of rules hides the module, so it comes after the other methods
    that use the module.
    """

    @cached_property
    def unreadable(self) -> UnreadableRows:
        return UnreadableRows()

    def introduce(self, client: str, logger: Logger) -> None:  # noqa: ARG002  only servers show the names of clients
        self.unreadable.logger = logger

    @abstractmethod
    async def _transact(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Run a rule on a new session; commit if it returns, roll back if it raises."""

    @abstractmethod
    async def _query(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Run a rule that only reads. All its reads see one snapshot."""

    async def _query_once(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """Run a rule that calls only one primitive, which reads. Such a rule needs no snapshot."""
        return await self._query(rule, *arguments)

    # ------------------------------------------------------------ tasks come in, run and end

    insert_for = writes(insert.insert_for)
    insert = writes(insert.insert)
    dry_run = reads(claim.dry_run)
    fair_ahead = reads(fair_shares.ahead)
    report = writes(finish.report)
    finish = writes(finish.finish)
    wake = writes(due_tasks.wake)
    next_batch = reads(batches.outlook)
    reap = writes(reap.reap)
    node_names = reads(attempts.names_of)
    prune = writes(history.prune)
    dependencies = reads_once(dependencies.read)
    list_flows = reads(flows.list_flows)
    retry_flow = writes(flows.retry_flow)
    open_group = writes(groups.open_group)
    cancel_group = writes(groups.cancel_group)
    groups = reads(groups.groups)

    async def vitals(self) -> StoreVitals:
        """Returns empty vitals: only a database server has connections and dead rows."""
        return StoreVitals()

    async def get(self, ids: Sequence[int]) -> list[TaskRecord | None]:
        found = await self._query(_records, ids)
        return [found.get(task_id) for task_id in ids]

    async def recount(self, age: int, least: int = counts.MOST_COUNTED) -> bool:
        row = await self._query(counts.count_again, age, least)
        if row is not None:
            await self._transact(counts.store, row)
        return row is not None

    queues = reads(counts.queues)
    counts = reads(counts.counts)

    # ------------------------------------------------------------ operations

    cancel = writes(operations.cancel)
    retry = writes(operations.retry)
    delete = writes(operations.delete)
    reschedule = writes(operations.reschedule)
    set_priority = writes(operations.set_priority)
    extend_timeout = writes(operations.extend_timeout)
    update_meta = writes(operations.update_meta)
    pause = writes(operations.pause)
    resume = writes(operations.resume)

    # ------------------------------------------------------------ limits, servers, schedules, operator actions

    declare = writes(limits.declare)
    set_limit = writes(limits.set_limit)
    limits = reads(limits.limits)
    set_servers = writes(servers.set_servers)
    servers = reads(servers.servers)
    claim_probes = writes(server_health.claim_probes)
    finish_probes = writes(server_health.finish_probes)
    declare_schedules = writes(schedules.declare)
    create_schedule = writes(schedules.create)
    update_schedule = writes(schedules.update)
    run_schedule = writes(schedules.run)
    act = writes(operator_actions.act)
    audit = reads_once(operator_actions.audit)
    action_done = writes(operator_actions.action_done)
    declare_retention = writes(retention.declare)
    retention = reads_once(retention.retention)
    append_statistics = writes(statistics.append)
    compact_statistics = writes(statistics.compact)
    statistics = reads(statistics.read)
    ready_kinds = reads_once(status.ready_kinds)
    status = reads(status.status)

    async def fire(self, declared: Collection[str], limit: int) -> Fired:
        fired = await self._transact(schedules.fire, declared, limit)
        for name, (column, problem) in fired.broken.items():
            self.unreadable.note(f"schedule {name}", column, problem)
        return fired

    async def schedules(self) -> list[ScheduleRecord]:
        found = await self._query_once(schedules.schedules)
        for record in found:
            for column in record.unreadable:
                problem = (record.reason or "").removeprefix(f"{column} cannot be read: ")
                self.unreadable.note(f"schedule {record.name}", column, problem)
        return found


async def _records(session: Session, ids: Sequence[int]) -> dict[int, TaskRecord]:
    return await session.tasks.records(ids)
