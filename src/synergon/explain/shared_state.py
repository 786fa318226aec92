"""The state that all nodes share, as `explain` reads it: paused queues, limits, and servers of providers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from synergon.explain.explanation import Cause, Why
from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.limits import LimitRecord, ServerRecord
from synergon.model.nodes import NodeRecord
from synergon.model.task_records import QueueRecord, TaskRecord
from synergon.stores.rules.claim_plan import ReadyTask, server_to_avoid
from synergon.stores.rules.shared_capacity import ServerCapacity, SharedCapacity


class SharedState:
    """Queues, limits and servers at one moment."""

    def __init__(
        self,
        limits: Sequence[LimitRecord],
        servers: Sequence[ServerRecord],
        queues: Sequence[QueueRecord],
        now: datetime,
        nodes: Sequence[NodeRecord] = (),
    ) -> None:
        self._limits = {limit.name: limit for limit in limits}
        self._servers = {(server.provider, server.address): server for server in servers if not server.is_removed}
        self._paused = {queue.name: queue.paused_at for queue in queues if queue.is_paused}
        self._now = now
        self.nodes = nodes
        self._may_reserve_ids = {node.id for node in nodes if node.lease_remaining > 0 and not node.is_cordoned}
        """Nodes that may hold a reservation: live and not cordoned."""

    def free_permits(self) -> SharedCapacity:
        """The free permits of all limits and servers."""
        values = {limit.name: limit.value for limit in self._limits.values()}
        in_use = {limit.name: limit.in_use for limit in self._limits.values()}
        servers = [(_server_capacity(server, self._now), server.in_use) for server in self._servers.values()]
        return SharedCapacity.counted(values, in_use, servers)

    def limit(self, name: str) -> LimitRecord | None:
        """A limit, if it is declared."""
        return self._limits.get(name)

    def is_paused(self, queue: str) -> bool:
        """Whether the queue is paused."""
        return queue in self._paused

    def pause(self, task: TaskRecord) -> list[Cause]:
        """The cause that the task's queue is paused. Commands are claimed from paused queues, too."""
        if task.is_command or not self.is_paused(task.queue):
            return []
        return [Cause(why=Why.PAUSED, subject=task.queue, since=self._paused[task.queue])]

    def is_expired(self, task: TaskRecord) -> bool:
        """Whether the task has expired."""
        return task.expires_at is not None and task.expires_at <= self._now

    def may_be_reserved(self, task: TaskRecord, request: ClaimRequest) -> bool:
        """Whether a node with this request may reserve capacity for the task: the task has waited long enough, and no
        other node has reserved it."""
        if request.reserved_task is not None or request.patience is None:
            return False
        if self._now - task.run_at < timedelta(microseconds=request.patience):
            return False
        return task.reserved_by in (None, request.node_id) or task.reserved_by not in self._may_reserve_ids

    def causes(self, task: TaskRecord, kind_request: KindRequest) -> list[Cause]:
        """The limits and servers without a free permit that the task needs on a node with this kind request."""
        free_permits = self.free_permits()
        if free_permits.take(kind_request, ready_task(task)) is not None:
            return []
        full = [self._full(name) for name in free_permits.full(kind_request.limits)]
        return full or list(self._server_causes(task, kind_request.provider or "", free_permits))

    def _full(self, name: str) -> Cause:
        limit = self._limits[name]
        return Cause(why=Why.LIMIT, subject=name, in_use=limit.in_use, of=limit.value)

    def _server_causes(self, task: TaskRecord, provider: str, free_permits: SharedCapacity) -> Iterator[Cause]:
        pool = free_permits.servers_for(provider, task.target)
        if not pool and task.target is not None:
            yield Cause(why=Why.REMOVED, subject=task.target)
        elif not pool:
            yield Cause(why=Why.NO_SERVERS, subject=provider)
        above: set[str] = set()
        for server in pool:
            if server.free:  # so a limit that covers the server is full
                above.update(free_permits.full_above(server.address))
            else:
                yield self._server_cause(server)
        yield from (self._full(name) for name in sorted(above))

    def _server_cause(self, server: ServerCapacity) -> Cause:
        if server.is_backed_off:
            until = self._servers[server.provider, server.address].backs_off_until
            return Cause(why=Why.BACKED_OFF, subject=server.address, until=until)
        most = 1 if server.is_on_trial and server.capacity != 0 else server.capacity
        return Cause(why=Why.SERVER, subject=server.address, in_use=len(server.slots), of=most)


def ready_task(task: TaskRecord, *, may_reserve: bool = False) -> ReadyTask:
    """The task as the planner needs it."""
    avoid = server_to_avoid(task.server, task.attempts)
    return ReadyTask(task.id, task.priority, task.kind, task.queue, task.requirements, task.target, avoid, may_reserve)


def _server_capacity(server: ServerRecord, now: datetime) -> ServerCapacity:
    """The capacity of a server. A back-off that has ended and is still recorded was not followed by a success."""
    is_backed_off = server.backs_off_until is not None and server.backs_off_until > now
    is_on_trial = server.backs_off_until is not None and not is_backed_off
    return ServerCapacity(server.provider, server.address, server.capacity, is_backed_off, is_on_trial)
