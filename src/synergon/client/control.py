"""Operator actions on limits, servers, queues and nodes, and cancellations by operators. The audit records each with
the person."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import UNSET, UnsetType, to_builtins

from synergon.client.operations import check_why
from synergon.errors import NameNotFound, OptionError, StoreError
from synergon.model.lifecycle import LIVE, State
from synergon.model.operator_actions import REJECTED, AuditRecord, NewAction, Verb
from synergon.model.process_identity import is_gone
from synergon.model.record import storable
from synergon.model.task_records import TaskQuery
from synergon.model.tasks import MAP_SUCCEEDED, Moved
from synergon.options.addresses import normal_address
from synergon.options.durations import rough, seconds
from synergon.options.options import check_any_limit_name, check_limit, check_name, check_rate
from synergon.policies import Retention, cutoffs_of
from synergon.stores.rules.action_texts import DEAD_NODE, NO_LIMIT, NO_PROVIDER, cancelled, dependent_of, key_holder_of

if TYPE_CHECKING:
    from synergon.client.announcer import Announcer
    from synergon.client.connection import Connection
    from synergon.client.operations import Operations
    from synergon.model.nodes import NodeRecord
    from synergon.model.task_records import TaskRecord
    from synergon.policies import Rate
    from synergon.providers.provider import Servers
    from synergon.stores.base import Store


_OPERATOR: Final[ContextVar[str | None]] = ContextVar("synergon_operator", default=None)


@contextmanager
def acting_as(who: str) -> Iterator[None]:
    """Record `who` in the audit for the operator actions in the block. A server uses it to act for its callers."""
    token = _OPERATOR.set(who)
    try:
        yield
    finally:
        _OPERATOR.reset(token)


def current_operator() -> str:
    """The person that the audit records: that of `acting_as`, otherwise the user and host of this process."""
    return _OPERATOR.get() or _process_operator()


@cache
def _process_operator() -> str:
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without a name for its user
        user = "somebody"
    return storable(f"{user}@{socket.gethostname()}")


MOST_ANNOUNCED: Final = 1000
"""For this many tasks of a cancelled group, nodes and waiting callers are notified at once. Sweeps find the others."""


class Control:
    """The part of an engine that changes limits, servers, queues and nodes. The store decides about each action, and
    the change is announced to all nodes."""

    def __init__(self, connection: Connection, announcer: Announcer, operations: Operations) -> None:
        self._connection = connection
        self._announcer = announcer
        self._operations = operations

    @property
    def _store(self) -> Store:
        return self._connection.store

    async def set_limit(
        self, name: str, value: int | UnsetType | None = UNSET, rate: Rate | UnsetType | None = UNSET
    ) -> None:
        """Change a limit for all nodes, until the code declares another one. Raises OptionError if it is not
        declared."""
        name = check_any_limit_name(name)
        change: dict[str, Any] = {}
        if value is not UNSET:
            change["value"] = check_limit(value, f"limit {name!r}")
        if rate is not UNSET:
            change["rate"] = None if rate is None else to_builtins(check_rate(rate).record)
        if not change:
            raise OptionError(f"nothing to change for the limit {name!r}; give a value or a rate")
        action = await self.act("set_limit", name, change if "rate" in change else change["value"])
        if action.is_rejected and action.outcome != f"{REJECTED}{NO_LIMIT}":
            raise OptionError(f"limit {name!r}: {(action.outcome or '').removeprefix(REJECTED)}")
        if action.is_rejected:
            limits = await self._store.limits()
            known = ", ".join(limit.name for limit in limits if limit.batch is None) or "none"
            raise NameNotFound(f"there is no limit {name!r}; declared are: {known}")

    async def set_servers(self, provider: str, servers: Servers, *, capacity: int | None = 1) -> None:
        """Change the pool of a provider for all nodes. Raises OptionError if another provider has one of the servers,
        and no limit covers it."""
        from synergon.providers.provider import listed_servers

        listed = listed_servers(servers, check_limit(capacity, "capacity"), f"provider {provider!r}")
        value = [[server.address, server.capacity] for server in listed]
        await self._act_on_provider("set_servers", provider, value)

    async def change_server(
        self,
        verb: Literal["add_server", "remove_server", "close_server"],
        provider: str,
        address: str,
        capacity: int | None = 0,
    ) -> None:
        """Add, remove or close one server of a provider for all nodes. The others stay as they are."""
        server = normal_address(address)
        await self._act_on_provider(verb, provider, [server, capacity] if verb == "add_server" else server)

    async def _act_on_provider(self, verb: Verb, provider: str, value: Any) -> None:
        action = await self.act(verb, check_name(provider, "provider"), value)
        if action.outcome == f"{REJECTED}{NO_PROVIDER}":
            raise NameNotFound(f"there is no provider {provider!r}; no code has declared it on this store")
        if action.is_rejected and action.outcome is not None:
            raise OptionError(action.outcome.removeprefix(REJECTED))

    async def set_retention(self, retention: Retention) -> None:
        """Change how long all nodes keep final tasks, until a worker declares another retention than the last one."""
        if not isinstance(retention, Retention):
            raise OptionError(f"retention must be a Retention, got {retention!r}")
        cutoffs = cutoffs_of(retention)
        ages = [cutoffs.succeeded, cutoffs.failed, cutoffs.cancelled, cutoffs.statistics]
        action = await self.act("set_retention", "history", ages)
        if action.is_rejected and action.outcome is not None:
            raise OptionError(action.outcome.removeprefix(REJECTED))

    async def pause(self, queue: str) -> bool:
        """Pause the queue: no node claims from it. False if it was paused already."""
        return (await self.act("pause", check_name(queue, "queue"))).outcome == "paused"

    async def resume(self, queue: str) -> bool:
        """Resume the queue. False if it was not paused."""
        return (await self.act("resume", check_name(queue, "queue"))).outcome == "resumed"

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """Cancel these tasks as an operator: the audit has an entry for each. The caller announces the results to the
        nodes."""
        reason = check_why(why)
        actions = await asyncio.gather(
            *(
                self._store.act(NewAction(verb="cancel", subject=str(task_id), value=reason, who=current_operator()))
                for task_id in ids
            )
        )
        records = await self._store.get(ids)
        return [
            cancelled(action, task_id, record) for action, task_id, record in zip(actions, ids, records, strict=True)
        ]

    async def retry(self, ids: Sequence[int]) -> list[Moved]:
        """Retry these tasks as an operator: the audit has an entry for each. The caller announces the results to the
        nodes."""
        return await self._act_on_tasks("retry", ids)

    async def delete(self, ids: Sequence[int]) -> list[Moved]:
        """Delete these tasks as an operator: the audit has an entry for each. The caller announces the results to the
        nodes."""
        return await self._act_on_tasks("delete", ids)

    async def reschedule(
        self, ids: Sequence[int], *, delay: int | None = None, run_at: int | None = None
    ) -> list[Moved]:
        """Change when these tasks are due, as an operator: after `delay` microseconds, or at `run_at`, in microseconds
        since 1970. The caller announces the results to the nodes."""
        return await self._act_on_tasks("reschedule", ids, {"run_at": run_at} if delay is None else {"delay": delay})

    async def set_priority(self, ids: Sequence[int], priority: int) -> list[Moved]:
        """Change the priority of these tasks, as an operator. The caller announces the results to the nodes."""
        return await self._act_on_tasks("set_priority", ids, priority)

    async def extend_timeout(self, ids: Sequence[int], extra: int) -> list[Moved]:
        """Give the running attempts of these tasks `extra` microseconds more, as an operator: the audit has an entry
        for each. The caller announces the results to the nodes."""
        return await self._act_on_tasks("extend_timeout", ids, extra)

    async def update_meta(self, ids: Sequence[int], values: Mapping[str, Any]) -> list[Moved]:
        """Change the metadata of these tasks, as an operator. `values` are plain JSON values by name."""
        return await self._act_on_tasks("update_meta", ids, dict(values))

    async def cancel_group(self, group_id: int, why: str | None = None) -> AuditRecord:
        """Cancel the live tasks of a group or a flow, as an operator, in one transaction."""
        live = await self._store.list_tasks(TaskQuery(group_id=group_id, states=LIVE, limit=MOST_ANNOUNCED))
        action = await self.act("cancel_group", str(group_id), check_why(why))
        after = await self._store.get([task.id for task in live])
        self._announcer.announce_moves(
            Moved(id=task.id, done=True, state=task.state, kind=task.kind, node_id=task.node_id, group_id=group_id)
            for task in after
            if task is not None and task.state in (State.RUNNING, State.CANCELLED)
        )
        return action

    async def retry_flow(self, flow_id: int) -> AuditRecord:
        """Run the steps of a flow that failed or were cancelled again, as an operator, in one transaction."""
        return await self.act("retry_flow", str(flow_id))

    async def prune(self, retention: Retention) -> int:
        """Delete final tasks that are older than `retention` says, in bounded transactions, as an operator. Returns how
        many there were. The audit has one entry, which gets its outcome at the end."""
        ages = {"succeeded": retention.succeeded, "failed": retention.failed, "cancelled": retention.cancelled}
        shown = {state: rough(seconds(age, state)) for state, age in ages.items() if age is not None}
        action = await self.act("prune", "history", shown)
        try:
            count = await self._operations.prune(retention)
        except BaseException as error:
            with suppress(StoreError):  # the database may be away; the entry then remains open
                await self._store.action_done(action.id, f"stopped by {type(error).__name__}")
            raise
        await self._store.action_done(action.id, f"{count} {'task' if count == 1 else 'tasks'} deleted")
        return count

    async def _act_on_tasks(self, verb: Verb, ids: Sequence[int], value: Any = None) -> list[Moved]:
        before = await self._store.get(ids)
        actions = [
            await self._store.act(NewAction(verb=verb, subject=str(task_id), value=value, who=current_operator()))
            for task_id in ids
        ]
        after = await self._store.get(ids)
        return [_moved(*entry) for entry in zip(actions, ids, before, after, strict=True)]

    async def act_on_node(self, verb: Verb, node_id: str) -> None:
        """Record an operator action for a node. Raises OptionError if the node is not registered, or is dead."""
        if "\0" in str(node_id):
            raise OptionError(f"a node's id has no NUL in it, got {node_id!r}")
        known = {node.id: node for node in await self._operations.nodes()}
        node = known.get(node_id)
        how = None if node is None else _why_dead(node)
        action = await self.act(
            verb,
            storable(str(node_id)),
            rejection=None if how is None else how[0],
            node_name=None if node is None else f"{node.name} on {node.process.host}",
        )
        if node is not None and (how is not None or action.outcome == f"{REJECTED}{DEAD_NODE}"):
            raise OptionError(f"node {node_id!r} ({node.name}) is dead: {DEAD_NODE if how is None else how[1]}")
        if action.is_rejected:
            names = ", ".join(f"{node.id} ({node.name})" for node in known.values()) or "none"
            raise NameNotFound(f"there is no node {node_id!r}; registered are: {names}")

    async def act(
        self,
        verb: Verb,
        subject: str,
        value: Any = None,
        *,
        rejection: str | None = None,
        node_name: str | None = None,
    ) -> AuditRecord:
        """Carry out an operator action in the store, record it with this person, and announce the change."""
        action = await self._store.act(
            NewAction(
                verb=verb,
                subject=subject,
                value=value,
                who=current_operator(),
                rejection=rejection,
                node_name=node_name,
            )
        )
        self._announcer.announce_change()
        return action


def _moved(action: AuditRecord, task_id: int, before: TaskRecord | None, after: TaskRecord | None) -> Moved:
    """The result of an operator's action on a task, from its outcome and the task before and after it."""
    known = after or before
    state = None if after is None else after.state
    return Moved(
        id=task_id,
        done=not action.is_rejected,
        state=state,
        kind=None if known is None else known.kind,
        key_holder=key_holder_of(action),
        needed_by=dependent_of(action),
        is_map=(action.outcome or "").endswith(MAP_SUCCEEDED),
        group_id=None if known is None or action.verb != "delete" else known.group_id,
        node_id=after.node_id if after is not None and state is State.RUNNING else None,
    )


def _why_dead(node: NodeRecord) -> tuple[str, str] | None:
    """Why the node is dead, in short and in full. None if it may be alive."""
    if is_gone(node.process):
        return "its process is gone", f"its process {node.process.pid} is gone"
    if node.lease_remaining <= 0:
        return DEAD_NODE, f"its lease has been over for {-node.lease_remaining:.1f} s"
    return None
