"""The state that all nodes share: paused queues, limits, and servers of providers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from synergon.explain.explanation import Cause, Why
from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.limits import LimitRecord, ServerRecord
from synergon.model.nodes import NodeRecord
from synergon.model.record import from_datetime
from synergon.model.task_records import QueueRecord, TaskRecord
from synergon.policies import rate_text
from synergon.stores.rules import rates
from synergon.stores.rules.claim_plan import ReadyTask, server_to_avoid
from synergon.stores.rules.rates import RateMeter
from synergon.stores.rules.server_health import capacity_of
from synergon.stores.rules.shared_capacity import UNLIMITED, ServerCapacity, SharedCapacity


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
        """The ids of the nodes whose reservations count: they are live and not cordoned."""

    def free_permits(self) -> SharedCapacity:
        """The free permits of all limits and servers."""
        values = {limit.name: limit.value for limit in self._limits.values()}
        in_use = {limit.name: limit.in_use for limit in self._limits.values()}
        servers = [(_server_capacity(server, self._now), server.in_use) for server in self._servers.values()]
        meters = {limit.name: meter for limit in self._limits.values() if (meter := self._meter(limit)) is not None}
        return SharedCapacity.counted(values, in_use, servers, meters)

    def _meter(self, limit: LimitRecord) -> RateMeter | None:
        """The meter of a limit whose rate permits no start now. None if the limit has no rate, or the rate permits a
        start."""
        if limit.rate is None or limit.free_at is None:
            return None
        now = from_datetime(self._now)
        return RateMeter(limit.rate, rates.after(limit.rate, from_datetime(limit.free_at), now, limit.rate.burst), now)

    def limit(self, name: str) -> LimitRecord | None:
        """The limit with this name. None if it is not declared."""
        return self._limits.get(name)

    def is_paused(self, queue: str) -> bool:
        """Whether the queue is paused."""
        return queue in self._paused

    def pause(self, task: TaskRecord) -> list[Cause]:
        """The cause PAUSED, if the task's queue is paused. Empty for a command, which a paused queue does not hold
        back."""
        if task.is_command or not self.is_paused(task.queue):
            return []
        return [Cause(why=Why.PAUSED, subject=task.queue, since=self._paused[task.queue])]

    def may_be_reserved(self, task: TaskRecord, request: ClaimRequest) -> bool:
        """Whether a node with this request may reserve capacity for the task: the task has waited long enough, and no
        other live node has reserved capacity for it."""
        if request.reserved_task is not None or request.patience is None:
            return False
        if self._now - task.run_at < timedelta(microseconds=request.patience):
            return False
        return task.reserved_by in (None, request.node_id) or task.reserved_by not in self._may_reserve_ids

    def causes(self, task: TaskRecord, kind_request: KindRequest) -> list[Cause]:
        """The causes for which the task gets no permit on a node with this kind request: full limits, or servers that
        take no task."""
        free_permits = self.free_permits()
        if free_permits.take(kind_request, ready_task(task)) is not None:
            return []
        full = [self._full(name) for name in free_permits.full(kind_request.limits)]
        return full or list(self._server_causes(task, kind_request.provider or "", free_permits))

    def _full(self, name: str) -> Cause:
        limit = self._limits[name]
        if limit.rate is not None and limit.free_at is not None and limit.in_use < (limit.value or UNLIMITED):
            return Cause(why=Why.LIMIT_RATE, subject=name, rate=rate_text(limit.rate), until=limit.free_at)
        return Cause(why=Why.LIMIT, subject=name, in_use=limit.in_use, of=limit.value)

    def _server_causes(self, task: TaskRecord, provider: str, free_permits: SharedCapacity) -> Iterator[Cause]:
        pool = free_permits.servers_for(provider, task.target)
        if not pool and task.target is not None:
            yield Cause(why=Why.REMOVED, subject=task.target)
        elif not pool:
            yield Cause(why=Why.NO_SERVERS, subject=provider)
        above: set[str] = set()
        for server in pool:
            ignores_health = task.is_command and task.target is not None
            if server.free_for_commands if ignores_health else server.free:  # so a limit that covers it is full
                above.update(free_permits.full_above(server.address))
            else:
                yield self._server_cause(server, ignores_health=ignores_health)
        yield from (self._full(name) for name in sorted(above))

    def _server_cause(self, server: ServerCapacity, *, ignores_health: bool) -> Cause:
        if server.capacity != 0 and not ignores_health:
            record = self._servers[server.provider, server.address]
            if server.is_backed_off:
                why = Why.PROBED if record.has_probe else Why.BACKED_OFF
                return Cause(why=why, subject=server.address, until=record.backs_off_until)
            if server.is_on_trial:
                return Cause(why=Why.ON_TRIAL, subject=server.address)
        return Cause(why=Why.SERVER, subject=server.address, in_use=len(server.slots), of=server.capacity)


def ready_task(task: TaskRecord, *, may_reserve: bool = False) -> ReadyTask:
    """The task in the form that the claim planner needs."""
    avoid = server_to_avoid(task.server, task.attempts, task.server_failures)
    return ReadyTask(
        task.id,
        task.priority,
        task.kind,
        task.queue,
        task.requirements,
        task.target,
        avoid,
        may_reserve,
        task.fair_tag,
        task.units,
        task.server_failures > 0,
    )


def _server_capacity(server: ServerRecord, now: datetime) -> ServerCapacity:
    """The capacity of a server, as its health allows."""
    return capacity_of(
        (server.provider, server.address),
        server.capacity,
        recent_failures=server.recent_failures,
        is_out=server.is_out,
        backs_off=server.backs_off_until is not None and server.backs_off_until > now,
        is_probed=server.has_probe,
    )
