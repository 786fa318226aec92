"""The memory store: behaves as every other store, without a database.

Engines of one process that use one name `memory://name` share its tasks, from any thread and event loop. Plain
`memory://` belongs to one store object. The tasks are deleted when the last store of a name is closed. The clock is the
host's, but never runs back.

The module is long because it has all calls of the port `Store` that are not rules. Each call takes the lock of the
tables; other modules of the package do the work.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from synergon.errors import ConfigurationError, NotAvailable, NotConnected
from synergon.model.claims import AttemptRequest, CandidateQuery, ClaimRequest, Claims
from synergon.model.clock import Clock, SystemClock
from synergon.model.groups import NewGroup, OpenedGroup
from synergon.model.lifecycle import State
from synergon.model.nodes import NewNode, NodeRecord
from synergon.model.outcomes import FencedOutcome, Verdict
from synergon.model.record import to_datetime
from synergon.model.task_records import TaskPage, TaskQuery, TaskRecord
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.base import Capabilities, LeaseKeeper, TaskTransaction
from synergon.stores.base_store import BaseStore
from synergon.stores.final_events import NOW, OrderedFinalEvents, Position
from synergon.stores.memory import (
    claim,
    final_events,
    leases,
    queries,
)
from synergon.stores.memory.node_rows import delete_node
from synergon.stores.memory.session import Session
from synergon.stores.memory.tables import Tables
from synergon.stores.rules import finish
from synergon.stores.rules.claim import rejected
from synergon.stores.session import Touched

Result = TypeVar("Result")
SCHEME: Final = "memory://"

_shared: Final[WeakValueDictionary[str, Tables]] = WeakValueDictionary()
"""The tables of each name. The references are weak, so that a store that was dropped without `close` does not retain
its tables."""
_sharing: Final = threading.Lock()


class MemoryStore(BaseStore):
    """A `Store` in the memory of this process."""

    capabilities = Capabilities(shared=False, durable=False, transactions=False)

    def __init__(self, url: str = SCHEME, clock: Clock | None = None) -> None:
        if not url.startswith(SCHEME):
            raise ConfigurationError(f"{url!r} is not a memory store; write memory:// or memory://name")
        self.url = url
        self._name = url.removeprefix(SCHEME)
        self._clock: Clock = clock or SystemClock()
        self._tables: Tables | None = None
        self._session: Session | None = None

    # ------------------------------------------------------------ open and close

    async def open(self) -> None:
        """Find the tables of this name, or create them."""
        with _sharing:
            if self._tables is None:
                self._tables = self._find_or_make()
                self._session = Session(self._tables)
                self._tables.open_stores += 1

    def _find_or_make(self) -> Tables:
        return _shared.setdefault(self._name, Tables()) if self._name else Tables()

    async def close(self) -> None:
        """Release the tables. The last store of a name deletes them."""
        with _sharing:
            tables, self._tables, self._session = self._tables, None, None
            if tables is not None:
                tables.open_stores -= 1
                if not tables.open_stores:
                    _shared.pop(self._name, None)  # not left to the garbage collector: a frame may still hold it

    async def now(self) -> int:
        """The host's clock, but never earlier than any moment that a store of this name has returned."""
        with self._transaction() as (_, now):
            return now

    async def secret(self) -> bytes:
        """The secret that all stores of this name share."""
        with self._transaction() as (tables, _):
            return tables.secret

    async def replace_secret(self) -> None:
        """Generate a new secret for all stores of this name."""
        with self._transaction() as (tables, _):
            tables.secret = secrets.token_bytes(32)

    async def identity(self) -> bytes:
        """A value that distinguishes the tables of this name from all others: their first secret."""
        with self._transaction() as (tables, _):
            return tables.identity

    async def schema_versions(self) -> None:
        """Returns None: the store has no schema."""

    def schema_sql(self) -> str:
        """Raises `NotAvailable`: the store has no tables in SQL."""
        raise NotAvailable(f"{self.url} has no tables to make")

    def grants_sql(self, role: str, name: str) -> str:  # noqa: ARG002  there is nothing to grant
        """Raises `NotAvailable`: the store has no roles."""
        raise NotAvailable(f"{self.url} has no roles")

    async def _transact(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        session = self._session
        if session is None:
            raise self._not_open()
        tables, moment = session.tables, self._clock.wall()
        with tables.lock:
            tables.latest_moment = session.now = max(moment, tables.latest_moment)
            try:
                return await rule(session, *arguments)  # never suspends, so the lock is held to its end
            except BaseException:
                session.touched = Touched()
                raise

    async def _query(self, rule: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        return await self._transact(rule, *arguments)

    def _transaction(self) -> _Transaction:
        if self._tables is None:
            raise self._not_open()
        return _Transaction(self._tables, self._clock)

    def _not_open(self) -> NotConnected:
        return NotConnected(f"the store {self.url} is not open; connect the engine first")

    # ------------------------------------------------------------ insert

    async def announce_queues(self, queues: Iterable[str]) -> None:
        """Does nothing: no transaction of this store waits for the row of a queue."""

    async def insert_on(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:
        """Raises `NotAvailable`: there is no database whose transaction could be joined."""
        return self.insert_on_sync(connection, tasks)

    def insert_on_sync(self, connection: Any, tasks: Sequence[NewTask]) -> list[Insertion]:  # noqa: ARG002  the port's
        """Raises `NotAvailable`: there is no database whose transaction could be joined."""
        raise NotAvailable(
            f"{self.url} has no transactions to join, so conn= cannot work; "
            "enqueue without it, or use sqlite:/// or postgresql://"
        )

    async def open_group_on(self, connection: Any, new: NewGroup) -> OpenedGroup:
        return self.open_group_on_sync(connection, new)

    def open_group_on_sync(self, connection: Any, new: NewGroup) -> OpenedGroup:
        self.insert_on_sync(connection, new.tasks)
        raise AssertionError("the line above raises")

    async def listen(self, on_kinds: Callable[[Iterable[str] | None], None]) -> None:  # noqa: ARG002  it is the port's
        """Raises `NotAvailable`: this store announces no commits, because it cannot insert tasks in a caller's own
        transaction."""
        raise NotAvailable(f"{self.url} has nothing to listen to")

    # ------------------------------------------------------------ claim and finish

    async def claim(self, request: ClaimRequest) -> Claims:
        return await self._transact(claim.claim, request)

    async def read_candidates(self, query: CandidateQuery) -> list[TaskRecord]:
        with self._transaction() as (tables, now):
            return queries.read_candidates(tables, query, now)

    async def ahead(self, task_id: int, limit: int) -> int | None:
        with self._transaction() as (tables, _):
            return queries.ahead(tables, task_id, limit)

    async def next_start(self, kind: str, limit_key: str) -> int | None:
        with self._transaction() as (tables, _):
            return tables.next_starts.get((kind, limit_key))

    async def exchange(self, outcomes: Sequence[FencedOutcome], request: ClaimRequest) -> tuple[list[Verdict], Claims]:
        """`finish`, then `claim`, under one lock. Raises `LeaseLost`, without applying the outcomes, if the node has no
        live lease."""
        return await self._transact(self._exchange, outcomes, request)

    async def _exchange(
        self, session: Session, outcomes: Sequence[FencedOutcome], request: ClaimRequest
    ) -> tuple[list[Verdict], Claims]:
        if await session.ready.is_cordoned(request.node_id) is None:
            rejected(request.node_id, is_cordoned=None)
        return await self._finish(session, outcomes), await claim.claim(session, request)

    async def _finish(self, session: Session, outcomes: Sequence[FencedOutcome]) -> list[Verdict]:
        return await finish.finish(session, outcomes)

    async def begin(self, hold_seconds: float) -> TaskTransaction:  # noqa: ARG002  it is the port's
        """Raises `NotAvailable`: there is no database that a task function could write to."""
        raise NotAvailable(
            f"{self.url} has no transactions, so ctx.transaction() cannot work; use sqlite:/// or postgresql://. "
            "Children of ctx.enqueue() are stored together with success here too"
        )

    async def requests(self, node_id: str) -> list[AttemptRequest]:
        with self._transaction() as (tables, _):
            return [
                AttemptRequest(id=row.id, cancel_requested=row.cancel_requested, extended_by=row.extended_by)
                for row in tables.running.get(node_id, {}).values()
                if row.cancel_requested or row.extended_by is not None
            ]

    # ------------------------------------------------------------ nodes

    async def register(self, node: NewNode) -> None:
        with self._transaction() as (tables, now):
            leases.register(tables, node, now)

    async def keeper(self) -> LeaseKeeper:
        """Open a lease keeper. It uses the tables directly, because no call holds their lock for long."""
        return _MemoryLeaseKeeper(self._transaction)

    async def unregister(self, node_id: str) -> None:
        with self._transaction() as (tables, now):
            delete_node(tables, node_id, now)

    async def nodes(self) -> list[NodeRecord]:
        with self._transaction() as (tables, now):
            return leases.nodes(tables, now)

    async def running_by_node(self) -> dict[str, int]:
        with self._transaction() as (tables, _):
            return {node_id: len(rows) for node_id, rows in tables.running.items() if rows}

    # ------------------------------------------------------------ queries

    async def list_tasks(self, query: TaskQuery) -> TaskPage:
        with self._transaction() as (tables, _):
            return queries.list_tasks(tables, query)

    async def endings(
        self, after: str | None, states: Collection[State], kinds: Collection[str] | None = None
    ) -> OrderedFinalEvents:

        async def read_page(position: Position, limit: int) -> final_events.Found:
            with self._transaction() as (tables, _):
                return final_events.read_page(tables, position, states, kinds, limit)

        if after == NOW:
            with self._transaction() as (tables, _):
                return OrderedFinalEvents(read_page, (tables.last_end, 0), tables.last_end)
        return OrderedFinalEvents.after(read_page, after)

    async def describe(self) -> dict[str, str]:
        with self._transaction() as (tables, now):
            return {
                "store": "memory of this process; nothing survives it",
                "tasks": str(len(tables.rows)),
                "stores open": str(tables.open_stores),
                "clock": to_datetime(now).isoformat(),
            }


class _Transaction:
    """Takes the lock of the tables, and reads the clock once."""

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
        self._tables.lock.release()


class _MemoryLeaseKeeper:
    """Renews leases in the tables of the store."""

    def __init__(self, transaction: Callable[[], _Transaction]) -> None:
        self._transaction = transaction

    async def renew(self, node_id: str, lease: int, published: bytes | None = None) -> bool:
        with self._transaction() as (tables, now):
            return leases.renew(tables, node_id, lease, published, now)

    async def close(self) -> None:
        """Does nothing."""
