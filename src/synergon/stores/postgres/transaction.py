"""One transaction of the PostgreSQL store. Runs named statements on a connection, and collects what is to be written at
the end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.stores.rows import KeyQueueLimit, ServerHealth, ServerName, SharedLimits
from synergon.stores.session import Touched
from synergon.stores.sql_rows.named_statements import NamedStatements
from synergon.stores.typed_rows import Row, field_names, read_rows
from synergon.stores.unreadable import UnreadableRows

if TYPE_CHECKING:
    from synergon.stores.postgres.profile import Profile
    from synergon.stores.postgres.ready_rows import ClaimState

FinalCounts = dict[tuple[str, str, str], int]
"""Changes of the numbers of final tasks, by (queue, kind, state)."""


class Transaction(NamedStatements):
    """Runs named statements on one connection.

    `key_queue_limits` has the limits of the kinds whose key queues are locked. `locked_groups` has the groups that are
    locked.
    """

    __slots__ = (
        "_connection",
        "_final_counts",
        "_sql",
        "claim",
        "clock",
        "is_callers",
        "key_queue_limits",
        "known_queues",
        "locked_groups",
        "locked_limits",
        "new_queues",
        "profile",
        "server_health",
        "shard",
        "touched",
        "unreadable",
    )

    def __init__(
        self,
        connection: Any,
        profile: Profile,
        sql: Mapping[str, str],
        shard: int,
        unreadable: UnreadableRows | None = None,
        *,
        is_callers: bool = False,
        known_queues: AbstractSet[str] = frozenset(),
    ) -> None:
        self.unreadable: Final = unreadable or UnreadableRows()
        self.profile: Final = profile
        self.is_callers: Final = is_callers
        """Whether this is a caller's own transaction. It may last long, so it must not lock rows that other
        transactions need."""
        self.touched: Touched = Touched()
        self.key_queue_limits: dict[str, KeyQueueLimit] = {}
        self.locked_groups: set[int] = set()
        self.locked_limits: SharedLimits | None = None
        """The limits and servers that an exchange has locked for its claim."""
        self.claim: ClaimState | None = None
        """What a claim remembers between its statements."""
        self.server_health: dict[ServerName, ServerHealth | None] = {}
        """The health of servers, read under a lock. None for a server that was not locked, because its health does not
        change."""
        self._connection = connection
        self._sql = sql
        self.clock: int | None = None
        """The moment at which the transaction began. None before it was read."""
        self.shard: Final = shard
        """The shard of the table `tally` to which this engine writes."""
        self._final_counts: FinalCounts = {}
        self.known_queues: Final = known_queues
        """Queues whose rows exist."""
        self.new_queues: set[str] = set()
        """Queues whose rows may be missing."""

    async def rows(self, name: str, /, *parameters: Any) -> list[Any]:
        """All rows of the named statement."""
        rows: list[Any] = await self._connection.fetch(self._sql[name], *parameters)
        return rows

    async def inserted(self, name: str, new: str, *parameters: Any) -> list[Any]:
        """All rows of the named statement, which inserts tasks from `new` (`stores.columns.source`)."""
        rows: list[Any] = await self._connection.fetch(self._sql[name].replace("{new}", new), *parameters)
        return rows

    async def typed(self, row_type: type[Row], name: str, /, *parameters: Any) -> list[Row]:
        """All rows of the named statement as structs, whose fields are the columns of the statement."""
        rows = await self.rows(name, *parameters)
        if not rows:
            return []
        # Rows of a caller's driver have no column names; only those of our own connections can be checked.
        columns = field_names(row_type) if self.is_callers else tuple(rows[0].keys())
        return read_rows(row_type, columns, rows, self.unreadable)

    async def ids(self, name: str, /, *parameters: Any) -> list[int]:
        """The values of the only column of the named statement."""
        return [task_id for (task_id,) in await self.rows(name, *parameters)]

    async def row(self, name: str, /, *parameters: Any) -> Any:
        """The first row of the named statement, or None."""
        return await self._connection.fetchrow(self._sql[name], *parameters)

    async def value(self, name: str, /, *parameters: Any) -> Any:
        """The first value of the first row of the named statement, or None."""
        return await self._connection.fetchval(self._sql[name], *parameters)

    async def run(self, name: str, /, *parameters: Any) -> int:
        """Run the named statement. Returns how many rows it changed."""
        status: str = await self._connection.execute(self._sql[name], *parameters)
        return int(status.rpartition(" ")[2])

    async def run_all(self, name: str, rows: Sequence[Sequence[Any]], /) -> int:
        """Write these rows with the named statement, which has one array for each column. Returns how many rows it
        changed; in a caller's transaction, whose driver does not report this, the number of given rows."""
        columns = map(list, zip(*rows, strict=True))
        if self.is_callers:
            await self.rows(name, *columns)
            return len(rows)
        return await self.run(name, *columns) if rows else 0

    def pairs(self, pairs: Collection[tuple[Any, Any]], /) -> tuple[list[Any], list[Any]]:
        """Pairs as two parameters: an array of the first values, and one of the second."""
        return [first for first, _ in pairs], [second for _, second in pairs]

    def moment(self, moment: int, /) -> datetime:
        """A moment as a parameter."""
        return to_datetime(moment)

    def count(self, queue: str, kind: str, state: State | str, number: int) -> None:
        """Note a change of the number of final tasks. `flush` writes it."""
        name = (queue, kind, str(state))
        self._final_counts[name] = self._final_counts.get(name, 0) + number

    def note_queues(self, queues: Iterable[str]) -> None:
        """Note queues to which tasks were added. `flush` inserts those that are not known."""
        self.new_queues.update(set(queues) - self.known_queues)

    async def flush(self) -> None:
        """Insert the new queues and write the noted numbers of final tasks. Called last, because other transactions
        wait for these rows. Writes in a fixed order, so that transactions cannot deadlock."""
        if self.new_queues:
            await self.rows("add_queues", sorted(self.new_queues))
        changes = sorted((name, number) for name, number in self._final_counts.items() if number)
        self._final_counts.clear()
        if changes:
            queues, kinds, states = zip(*(name for name, _ in changes), strict=True)
            await self.run("tally", queues, kinds, states, [number for _, number in changes], self.shard)
