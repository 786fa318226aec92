"""What can be said of limits, servers, groups and nodes, by code that declares them and by people that change them."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from synergon.client.call_lists import listed_calls
from synergon.client.enqueue import Enqueuing
from synergon.client.must_await import must_await
from synergon.errors import KeyConflict, OptionError
from synergon.group import Group
from synergon.model.groups import NewGroup
from synergon.model.limits import LimitRecord, ServerRecord
from synergon.model.nodes import NodeRecord
from synergon.model.operator_actions import REJECTED, AuditRecord, NewAction, Verb
from synergon.model.process_identity import is_gone
from synergon.model.record import storable
from synergon.model.tasks import Moved, NewTask
from synergon.options.durations import Duration
from synergon.options.idle_hook import IdleHook, WhenIdle, registrar
from synergon.options.options import check_any_limit_name, check_limit, check_limit_name, check_name
from synergon.options.settings import UNSET
from synergon.policies import Health
from synergon.providers.provider import DEFAULT_HEALTH, Provider, Servers, listed_servers
from synergon.stores.rules.action_texts import DEAD_NODE, cancelled
from synergon.task import Call

if TYPE_CHECKING:
    from synergon.engine import Engine


@cache
def this_person() -> str:
    """Who gives orders from this process, for the record."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without a name for its user
        user = "somebody"
    return storable(f"{user}@{socket.gethostname()}")


class Control(Enqueuing):
    """The part of an Engine that works on what tasks share."""

    idle_hooks: list[IdleHook]

    # ------------------------------------------------------------ declared by code

    def limit(self, name: str, value: int | None) -> None:
        """Let at most so many run at once, over all nodes, of what is below this prefix of addresses or names it in
        `limits=[...]`. None: no limit unless somebody sets one; 0: closed."""
        self.registry.add_limit(check_limit_name(name, "a limit"), check_limit(value, f"limit {name!r}"))

    def provider(
        self,
        name: str,
        *,
        servers: Servers = (),
        capacity: int | None = 1,
        timeout: Duration | None = UNSET,
        health: Health | None = DEFAULT_HEALTH,
        **hooks: Callable[..., Any],
    ) -> Provider:
        """A named pool of servers: a dict of addresses and capacities, or addresses that all have `capacity`."""
        return Provider(
            cast("Engine", self), name, servers=servers, capacity=capacity, timeout=timeout, health=health, **hooks
        )

    @property
    def when_idle(self) -> WhenIdle:
        """Have a function called when a node has room and nothing to run; it may enqueue any number of tasks. With or
        without options: `every` (5 seconds) and `timeout`."""
        return registrar(self)

    # ------------------------------------------------------------ changed while in force

    async def set_limit(self, name: str, value: int | None) -> None:
        """Change a limit for everybody, from now on and until the code declares another value. Running work goes on;
        a raised limit is used at once. `kind:K` and `key:K` are the names of a kind's own limits."""
        name = check_any_limit_name(name)
        order = await self._order("set_limit", name, check_limit(value, f"limit {name!r}"))
        if order.is_refused:
            known = ", ".join(limit.name for limit in await self.limits()) or "none"
            raise OptionError(f"there is no limit {name!r}; declared are: {known}")

    async def set_servers(self, provider: str, servers: Servers, *, capacity: int | None = 1) -> None:
        """The pool of a provider from now on, for the whole cluster; also where its code is not at hand."""
        listed = listed_servers(servers, check_limit(capacity, "capacity"), f"provider {provider!r}")
        value = [[server.address, server.capacity] for server in listed]
        order = await self._order("set_servers", check_name(provider, "provider"), value)
        if order.is_refused:
            raise OptionError(f"there is no provider {provider!r}; no code has declared it on this store")

    async def limits(self) -> list[LimitRecord]:
        """All limits, and what each has in use."""
        return await self.store.limits()

    async def servers(self) -> list[ServerRecord]:
        """The servers of all providers, what each has in use, and which ones rest."""
        return await self.store.servers()

    async def pause(self, queue: str) -> bool:
        """Let no node claim from the queue until `resume`, restarts included; False: it was paused already. No claim
        that begins later takes anything; on PostgreSQL one that is under way may still end."""
        return (await self._order("pause", check_name(queue, "queue"))).outcome == "paused"

    async def resume(self, queue: str) -> bool:
        """Undo `pause`; False: it was not paused."""
        return (await self._order("resume", check_name(queue, "queue"))).outcome == "resumed"

    async def order_cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """Cancel tasks as operators do: who did it is written down for each. Nobody is told yet."""
        reason = None if why is None else storable(why)
        orders = await asyncio.gather(
            *(
                self.store.act(NewAction(verb="cancel", subject=str(task_id), value=reason, who=this_person()))
                for task_id in ids
            )
        )
        records = await self.store.get(ids)
        return [cancelled(order, task_id, record) for order, task_id, record in zip(orders, ids, records, strict=True)]

    # ------------------------------------------------------------ nodes

    async def cordon(self, node_id: str) -> None:
        """Let a node start nothing new, from this moment on; what runs there goes on."""
        await self._order_node("cordon", node_id)

    async def uncordon(self, node_id: str) -> None:
        """Undo `cordon`, and also `drain` and `restart` as long as the node has not stopped."""
        await self._order_node("uncordon", node_id)

    async def drain(self, node_id: str) -> None:
        """Cordon a node, and have it stop when nothing runs there; a worker's process ends with code 0."""
        await self._order_node("drain", node_id)

    async def restart(self, node_id: str) -> None:
        """The same, but a worker's process ends with code 86, so that whatever watches over it starts it again."""
        await self._order_node("restart", node_id)

    async def shut_down(self, node_id: str) -> None:
        """Have a node stop in order, with its own grace; its process ends if it was a worker."""
        await self._order_node("stop", node_id)

    async def _order_node(self, verb: Verb, node_id: str) -> None:
        if "\0" in str(node_id):
            raise OptionError(f"a node's id has no NUL in it, got {node_id!r}")
        known = {node.id: node for node in await self.nodes()}
        node = known.get(node_id)
        how = None if node is None else _why_dead(node)
        order = await self._order(verb, storable(str(node_id)), refusal=None if how is None else how[0])
        if node is not None and (how is not None or order.outcome == f"{REJECTED}{DEAD_NODE}"):
            raise OptionError(f"node {node_id!r} ({node.name}) is dead: {DEAD_NODE if how is None else how[1]}")
        if order.is_refused:
            names = ", ".join(f"{node.id} ({node.name})" for node in known.values()) or "none"
            raise OptionError(f"there is no node {node_id!r}; registered are: {names}")

    async def audit(self, limit: int = 100) -> list[AuditRecord]:
        """What was ordered, newest first: who, when, what, and what came of it."""
        return await self.store.audit(limit)

    async def _order(self, verb: Verb, subject: str, value: Any = None, *, refusal: str | None = None) -> AuditRecord:
        order = await self.store.act(
            NewAction(verb=verb, subject=subject, value=value, who=this_person(), refusal=refusal)
        )
        self._announce_change()
        return order

    # ------------------------------------------------------------ groups

    @must_await(sync="group_sync")
    async def group(self, name: str, calls: Iterable[Call[Any]], *, then: Call[Any] | None = None) -> Group:
        """Store tasks that belong together, all or none; `then` runs once all of them have ended, however."""
        listed = listed_calls(calls)
        together = [*listed, *([then] if then is not None else [])]
        for call in listed_calls(together):
            if call.placement.conn is not None:
                raise OptionError("conn cannot be given for tasks of a group: the group is a transaction of its own")
        await self._declare()
        tasks = [call.to_new_task(self.origin) for call in together]
        opened = await self.store.open_group(
            NewGroup(
                name=check_name(name, "a group's name"),
                tasks=tuple(tasks[: len(listed)]),
                then=_follower(tasks) if then is not None else None,
            )
        )
        inserted = [*opened.insertions, *([opened.then] if opened.then is not None else [])]
        self._announce(tasks, inserted)
        await self.outlook.consider(self.store, tasks, inserted)
        return Group(cast("Engine", self), opened.id, name, together, opened)

    def group_sync(self, name: str, calls: Iterable[Call[Any]], *, then: Call[Any] | None = None) -> Group:
        """`group` for code without an event loop."""
        return self.portal.call(lambda: self.group(name, calls, then=then))


def _why_dead(node: NodeRecord) -> tuple[str, str] | None:
    """Why nobody there would obey, in short and in full; None: somebody may."""
    if is_gone(node.process):
        return "its process is gone", f"its process {node.process.pid} is gone"
    if node.lease_left <= 0:
        return DEAD_NODE, f"its lease has been over for {-node.lease_left:.1f} s"
    return None


def _follower(tasks: Sequence[NewTask]) -> NewTask:
    """The last of them, which follows the others: a task of its own, never one that is live already.

    A live task with its key would run whenever it likes, and one of the members that it replaced would wait for itself.
    """
    *members, then = tasks
    if then.key is not None and any((then.kind, then.key) == (member.kind, member.key) for member in members):
        raise KeyConflict(f"`then` has the key {then.key!r} of one of the group's own tasks; use another key", 0)
    return msgspec.structs.replace(then, on_conflict="raise") if then.on_conflict == "return" else then
