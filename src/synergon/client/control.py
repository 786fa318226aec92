"""Operator actions on limits, servers, queues and nodes, and cancellations by operators. The audit records each with
the person."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from synergon.client.operations import check_why
from synergon.errors import OptionError
from synergon.model.operator_actions import REJECTED, AuditRecord, NewAction, Verb
from synergon.model.process_identity import is_gone
from synergon.model.record import storable
from synergon.model.tasks import Moved
from synergon.options.options import check_any_limit_name, check_limit, check_name
from synergon.stores.rules.action_texts import DEAD_NODE, NO_PROVIDER, cancelled, key_holder_of

if TYPE_CHECKING:
    from synergon.client.announcer import Announcer
    from synergon.client.connection import Connection
    from synergon.client.operations import Operations
    from synergon.model.nodes import NodeRecord
    from synergon.model.task_records import TaskRecord
    from synergon.providers.provider import Servers
    from synergon.stores.base import Store


@cache
def current_operator() -> str:
    """The user and host of this process, for the audit."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without a name for its user
        user = "somebody"
    return storable(f"{user}@{socket.gethostname()}")


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

    async def set_limit(self, name: str, value: int | None) -> None:
        """Change a limit for all nodes, until the code declares another value. Raises OptionError if it is not
        declared."""
        name = check_any_limit_name(name)
        action = await self.act("set_limit", name, check_limit(value, f"limit {name!r}"))
        if action.is_rejected:
            known = ", ".join(limit.name for limit in await self._store.limits()) or "none"
            raise OptionError(f"there is no limit {name!r}; declared are: {known}")

    async def set_servers(self, provider: str, servers: Servers, *, capacity: int | None = 1) -> None:
        """Change the pool of a provider for all nodes. Rejected if another provider has one of the servers, and no
        limit covers it."""
        from synergon.providers.provider import listed_servers

        listed = listed_servers(servers, check_limit(capacity, "capacity"), f"provider {provider!r}")
        value = [[server.address, server.capacity] for server in listed]
        action = await self.act("set_servers", check_name(provider, "provider"), value)
        if action.outcome == f"{REJECTED}{NO_PROVIDER}":
            raise OptionError(f"there is no provider {provider!r}; no code has declared it on this store")
        if action.is_rejected and action.outcome is not None:
            raise OptionError(action.outcome.removeprefix(REJECTED))

    async def pause(self, queue: str) -> bool:
        """Pause the queue: no node claims from it. False if it was paused already."""
        return (await self.act("pause", check_name(queue, "queue"))).outcome == "paused"

    async def resume(self, queue: str) -> bool:
        """Resume the queue. False if it was not paused."""
        return (await self.act("resume", check_name(queue, "queue"))).outcome == "resumed"

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """Cancel tasks as an operator: the audit records each cancellation. The caller announces the moves."""
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
        """Retry tasks as an operator: the audit has an entry for each. The caller announces the moves."""
        return await self._act_on_tasks("retry", ids)

    async def delete(self, ids: Sequence[int]) -> list[Moved]:
        """Delete tasks as an operator: the audit has an entry for each. The caller announces the moves."""
        return await self._act_on_tasks("delete", ids)

    async def _act_on_tasks(self, verb: Literal["retry", "delete"], ids: Sequence[int]) -> list[Moved]:
        before = await self._store.get(ids)
        actions = [
            await self._store.act(NewAction(verb=verb, subject=str(task_id), who=current_operator())) for task_id in ids
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
        action = await self.act(verb, storable(str(node_id)), rejection=None if how is None else how[0])
        if node is not None and (how is not None or action.outcome == f"{REJECTED}{DEAD_NODE}"):
            raise OptionError(f"node {node_id!r} ({node.name}) is dead: {DEAD_NODE if how is None else how[1]}")
        if action.is_rejected:
            names = ", ".join(f"{node.id} ({node.name})" for node in known.values()) or "none"
            raise OptionError(f"there is no node {node_id!r}; registered are: {names}")

    async def act(self, verb: Verb, subject: str, value: Any = None, *, rejection: str | None = None) -> AuditRecord:
        """Carry out an operator action in the store, record it with this person, and announce the change."""
        action = await self._store.act(
            NewAction(verb=verb, subject=subject, value=value, who=current_operator(), rejection=rejection)
        )
        self._announcer.announce_change()
        return action


def _moved(action: AuditRecord, task_id: int, before: TaskRecord | None, after: TaskRecord | None) -> Moved:
    """The result of a retry or deletion by an operator, from its outcome and the task before and after it."""
    known = after or before
    state = None if after is None else after.state
    return Moved(
        id=task_id,
        done=not action.is_rejected,
        state=state,
        kind=None if known is None else known.kind,
        key_holder=key_holder_of(action),
        group_id=None if known is None or action.verb == "retry" else known.group_id,
    )


def _why_dead(node: NodeRecord) -> tuple[str, str] | None:
    """Why the node is dead, in short and in full. None if it may be alive."""
    if is_gone(node.process):
        return "its process is gone", f"its process {node.process.pid} is gone"
    if node.lease_remaining <= 0:
        return DEAD_NODE, f"its lease has been over for {-node.lease_remaining:.1f} s"
    return None
