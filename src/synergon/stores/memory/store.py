"""The memory store: the semantics of every other store, without the disk.

Promises: engines of one process that name the same `memory://name` share its tasks, from any thread and any event
loop; plain `memory://` belongs to one store object. The tasks are gone when the last store of that name is closed.
The clock is the host's, and never runs back.

Long, because every call of the port is here, each behind the same lock; what they do is in the modules beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Final
from weakref import WeakValueDictionary

from msgspec.structs import replace

from synergon.errors import ConfigurationError, NotAvailable, NotConnected
from synergon.model.claims import CandidateQuery, ClaimRequest, Claims
from synergon.model.clock import Clock, SystemClock
from synergon.model.groups import GroupRecord, NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.limits import LimitRecord, NewLimit, NewProvider, NewServer, ServerRecord
from synergon.model.nodes import NewNode, NodeRecord
from synergon.model.operator_actions import AuditRecord, NewAction
from synergon.model.outcomes import FencedOutcome, Report, Verdict
from synergon.model.record import to_datetime
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.model.tasks import Cutoffs, Insertion, Moved, NewTask, Reaped, Reprioritizing, Rescheduling, Woken
from synergon.stores.base import Capabilities, LeaseKeeper, TaskTransaction
from synergon.stores.final_events import NOW, OrderedFinalEvents, Position
from synergon.stores.memory import (
    attempts,
    final_events,
    groups,
    insert,
    nodes,
    operations,
    operator_actions,
    queries,
    servers,
    upkeep,
)
from synergon.stores.memory.row import record_of
from synergon.stores.memory.tables import Tables

SCHEME: Final = "memory://"

_shared: Final[WeakValueDictionary[str, Tables]] = WeakValueDictionary()
"""The tables of each name. Weak, so that a store that was dropped without a `close` does not keep them."""
_sharing: Final = threading.Lock()


class MemoryStore:
    """A `Store` in the memory of this process."""

    capabilities = Capabilities(shared=False, durable=False, transactions=False)

    def __init__(self, url: str = SCHEME, clock: Clock | None = None) -> None:
        if not url.startswith(SCHEME):
            raise ConfigurationError(f"{url!r} is not a memory store; write memory:// or memory://name")
        self.url = url
        self._name = url.removeprefix(SCHEME)
        self._clock: Clock = clock or SystemClock()
        self._tables: Tables | None = None

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Find the tables of this name, or make them."""
        with _sharing:
            if self._tables is None:
                self._tables = self._find_or_make()
                self._tables.open_stores += 1

    def _find_or_make(self) -> Tables:
        return _shared.setdefault(self._name, Tables()) if self._name else Tables()

    async def close(self) -> None:
        """Let go of the tables; the last store to do so ends them."""
        with _sharing:
            tables, self._tables = self._tables, None
            if tables is not None:
                tables.open_stores -= 1
                if not tables.open_stores:
                    _shared.pop(self._name, None)  # not left to the garbage collector: a frame may still hold it

    async def now(self) -> int:
        """The host's clock, and never less than what any store of this name has seen."""
        with self._transaction() as (_, now):
            return now

    async def secret(self) -> bytes:
        """The same for every store of this name."""
        with self._transaction() as (tables, _):
            return tables.secret

    async def schema_versions(self) -> None:
        """There is no schema."""

    def schema_sql(self) -> str:
        """Not available."""
        raise NotAvailable(f"{self.url} has no tables to make")

    def _transaction(self) -> _Transaction:
        if self._tables is None:
            raise NotConnected(f"the store {self.url} is not open; connect the engine first")
        return _Transaction(self._tables, self._clock)

    # ------------------------------------------------------------ tasks come in

    async def insert(self, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Store all of `tasks` or none."""
        with self._transaction() as (tables, now):
            return insert.insert(tables, tasks, now)

    async def announce_queues(self, queues: Iterable[str]) -> None:
        """Nobody waits for anybody here."""

    async def insert_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Not available: there is no database whose transaction could be joined."""
        return self.insert_on_sync(connection, tasks)

    def insert_on_sync(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:  # noqa: ARG002  the port's
        """Not available either."""
        raise NotAvailable(
            f"{self.url} has no transactions to join, so conn= cannot work; "
            "enqueue without it, or use sqlite:/// or postgresql://"
        )

    async def listen(self, on_kinds: Callable[[Iterable[str] | None], None]) -> None:  # noqa: ARG002  it is the port's
        """Not available: nobody's transaction brings anything."""
        raise NotAvailable(f"{self.url} has nothing to listen to")

    # ------------------------------------------------------------ tasks run

    async def claim(self, request: ClaimRequest) -> Claims:
        """Take the first ready tasks among the asked kinds and queues that the node can carry."""
        with self._transaction() as (tables, now):
            return attempts.claim(tables, request, now)

    async def look(self, look: CandidateQuery) -> list[TaskRecord]:
        """Ready tasks that a claim might take."""
        with self._transaction() as (tables, now):
            return queries.look(tables, look, now)

    async def ahead(self, task_id: int, limit: int) -> int | None:
        """How many go before this one."""
        with self._transaction() as (tables, _):
            return queries.ahead(tables, task_id, limit)

    async def next_start(self, kind: str, limit_key: str) -> int | None:
        """What the rate of a line remembers."""
        with self._transaction() as (tables, _):
            return tables.next_starts.get((kind, limit_key))

    async def finish(self, fenced_outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        """Settle attempts, each guarded by its claim number."""
        with self._transaction() as (tables, now):
            return self._finish(tables, fenced_outcomes, now)

    def _finish(self, tables: Tables, fenced_outcomes: Sequence[FencedOutcome], now: int) -> list[Verdict]:
        verdicts = attempts.finish(tables, fenced_outcomes, now)
        if verdicts and (released := groups.end_emptied(tables, now)):
            verdicts[-1] = replace(verdicts[-1], released=released)
        return verdicts

    async def exchange(self, outcomes: Sequence[FencedOutcome], request: ClaimRequest) -> tuple[list[Verdict], Claims]:
        """Finish and claim; neither without a lease."""
        with self._transaction() as (tables, now):
            attempts.check_lease(tables, request.node_id, now)
            return self._finish(tables, outcomes, now), attempts.claim(tables, request, now)

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """Write progress and overdue marks of running attempts."""
        with self._transaction() as (tables, _):
            return attempts.report(tables, reports)

    async def begin(self, hold_seconds: float) -> TaskTransaction:  # noqa: ARG002  it is the port's
        """Not available: a body has nothing here to write to."""
        raise NotAvailable(
            f"{self.url} has no transactions, so ctx.transaction() cannot work; use sqlite:/// or postgresql://. "
            "Children of ctx.enqueue() are stored together with success here too"
        )

    async def cancel_requests(self, node_id: str) -> list[int]:
        """The running tasks of this node that somebody wants cancelled."""
        with self._transaction() as (tables, _):
            return attempts.cancel_requests(tables, node_id)

    # ------------------------------------------------------------ time and death

    async def wake(self, limit: int) -> Woken:
        """Make due tasks ready, end expired ones, and tell when to look again."""
        with self._transaction() as (tables, now):
            return upkeep.wake(tables, limit, now)

    async def reap(self, gone: Sequence[str], limit: int) -> list[Reaped]:
        """Take tasks from dead nodes."""
        with self._transaction() as (tables, now):
            return upkeep.reap(tables, gone, limit, now)

    async def prune(self, cutoffs: Cutoffs, limit: int) -> int:
        """Delete ended tasks that are old enough."""
        with self._transaction() as (tables, now):
            if cutoffs.audit is not None:
                operator_actions.prune(tables, now - cutoffs.audit, limit)
            return upkeep.prune(tables, cutoffs, limit, now)

    # ------------------------------------------------------------ nodes

    async def register(self, node: NewNode) -> None:
        """Make the node known, with a lease from now."""
        with self._transaction() as (tables, now):
            nodes.register(tables, node, now)

    async def keeper(self) -> LeaseKeeper:
        """A path for renewing leases; nothing is ever long in the way here."""
        return _MemoryLeaseKeeper(self._transaction)

    async def unregister(self, node_id: str) -> None:
        """Forget the node."""
        with self._transaction() as (tables, _):
            tables.nodes.pop(node_id, None)

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes."""
        with self._transaction() as (tables, now):
            return nodes.nodes(tables, now)

    async def running_by_node(self) -> dict[str, int]:
        """How many tasks each node holds."""
        with self._transaction() as (tables, _):
            return {node_id: len(rows) for node_id, rows in tables.running.items() if rows}

    # ------------------------------------------------------------ operations

    async def cancel(self, ids: Sequence[int], why: str | None = None) -> list[Moved]:
        """End tasks that wait; record the wish for those that run."""
        with self._transaction() as (tables, now):
            return operations.cancel(tables, ids, why, now)

    async def retry(self, ids: Sequence[int]) -> list[Moved]:
        """Run ended tasks again."""
        with self._transaction() as (tables, now):
            return operations.retry(tables, ids, now)

    async def delete(self, ids: Sequence[int]) -> list[Moved]:
        """Remove tasks that are not running."""
        with self._transaction() as (tables, _):
            return operations.delete(tables, ids)

    async def reschedule(self, changes: Sequence[Rescheduling]) -> list[Moved]:
        """Change when tasks are due."""
        with self._transaction() as (tables, now):
            return operations.reschedule(tables, changes, now)

    async def set_priority(self, changes: Sequence[Reprioritizing]) -> list[Moved]:
        """Change the place of tasks that wait."""
        with self._transaction() as (tables, _):
            return operations.set_priority(tables, changes)

    async def pause(self, queues: Sequence[str]) -> list[bool]:
        """Let nobody claim from these queues."""
        with self._transaction() as (tables, now):
            return operations.pause(tables, queues, now)

    async def resume(self, queues: Sequence[str]) -> list[bool]:
        """Undo `pause`."""
        with self._transaction() as (tables, now):
            return operations.resume(tables, queues, now)

    # ------------------------------------------------------------ limits, servers, groups, orders

    async def declare(self, declared: Sequence[NewLimit], providers: Sequence[NewProvider]) -> None:
        """What the code says of them."""
        with self._transaction() as (tables, now):
            servers.declare(tables, declared, providers, now)

    async def set_limit(self, name: str, value: int | None) -> bool:
        """For everybody, from now on."""
        with self._transaction() as (tables, now):
            return servers.set_limit(tables, name, value, now)

    async def limits(self) -> list[LimitRecord]:
        """All limits, by name."""
        with self._transaction() as (tables, _):
            return servers.limits(tables)

    async def set_servers(self, provider: str, pool: Sequence[NewServer]) -> bool:
        """The pool from now on."""
        with self._transaction() as (tables, now):
            return servers.set_servers(tables, provider, pool, now)

    async def servers(self) -> list[ServerRecord]:
        """All servers, and removed ones that still have work."""
        with self._transaction() as (tables, _):
            return servers.servers(tables)

    async def open_group(self, group: NewGroup) -> OpenedGroup:
        """Store a group and its tasks."""
        with self._transaction() as (tables, now):
            return groups.open_group(tables, group, now)

    async def groups(self, ids: Sequence[int]) -> list[GroupRecord | None]:
        """These groups, counted from their rows."""
        with self._transaction() as (tables, _):
            return groups.groups(tables, ids)

    async def cancel_group(self, group_id: int, why: str | None = None) -> list[Moved]:
        """Cancel all of its tasks that have not ended."""
        with self._transaction() as (tables, now):
            return groups.cancel_group(tables, group_id, why, now)

    async def act(self, order: NewAction) -> AuditRecord:
        """Do it and write down that it was done."""
        with self._transaction() as (tables, now):
            return operator_actions.act(tables, order, now)

    async def audit(self, limit: int = 100, node_id: str | None = None) -> list[AuditRecord]:
        """The latest, or what a node has not carried out yet."""
        with self._transaction() as (tables, _):
            return operator_actions.audit(tables, limit, node_id)

    async def action_done(self, action_id: int, outcome: str) -> bool:
        """The node has carried it out."""
        with self._transaction() as (tables, now):
            return operator_actions.action_done(tables, action_id, outcome, now)

    # ------------------------------------------------------------ reading

    async def get(self, ids: Sequence[int]) -> list[TaskRecord | None]:
        """These tasks, live or final."""
        with self._transaction() as (tables, _):
            rows = [tables.rows.get(task_id) for task_id in ids]
            return [None if row is None else record_of(row) for row in rows]

    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        """One page of the tasks that match."""
        with self._transaction() as (tables, _):
            return queries.list_tasks(tables, query)

    async def endings(
        self, after: str | None, states: Collection[State], kinds: Collection[str] | None = None
    ) -> OrderedFinalEvents:
        """Read the ends of tasks."""

        async def look(position: Position, limit: int) -> final_events.Found:
            with self._transaction() as (tables, _):
                return final_events.look(tables, position, states, kinds, limit)

        if after == NOW:
            with self._transaction() as (tables, _):
                return OrderedFinalEvents(look, (tables.last_end, 0), tables.last_end)
        return OrderedFinalEvents.after(look, after)

    async def counts(self) -> dict[tuple[str, str, State], int]:
        """Exact numbers by (queue, kind, state)."""
        with self._transaction() as (tables, _):
            return queries.counts(tables)

    async def queues(self) -> list[QueueRecord]:
        """Every queue, by name."""
        with self._transaction() as (tables, _):
            return queries.queues(tables)

    async def describe(self) -> dict[str, str]:
        """Facts for people."""
        with self._transaction() as (tables, now):
            return {
                "store": "memory of this process; nothing survives it",
                "tasks": str(len(tables.rows)),
                "stores open": str(tables.open_stores),
                "clock": to_datetime(now).isoformat(),
            }


class _Transaction:
    """Nobody else uses the tables meanwhile, and time stands still."""

    __slots__ = ("_clock", "_tables")

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    def __enter__(self) -> tuple[Tables, int]:
        tables, moment = self._tables, self._clock.wall()
        tables.lock.acquire()
        tables.latest_moment = now = max(moment, tables.latest_moment)
        return tables, now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tables = self._tables
        try:
            if tables.emptied:
                groups.end_emptied(tables, tables.latest_moment)
            if tables.promoted:
                tables.promoted.clear()
        finally:
            tables.lock.release()


class _MemoryLeaseKeeper:
    """Renews leases through the store itself."""

    def __init__(self, transaction: Callable[[], _Transaction]) -> None:
        self._transaction = transaction

    async def renew(
        self, node_id: str, lease: int, published: bytes | None = None, *, is_stopping: bool = False
    ) -> bool:
        with self._transaction() as (tables, now):
            return nodes.renew(tables, node_id, lease, published, now, is_stopping=is_stopping)

    async def close(self) -> None:
        """There is nothing to give up."""
