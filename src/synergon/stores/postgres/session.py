"""One transaction: a connection, its profile with the statements of its schema, the shard of its tallies, and notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from synergon.model.lifecycle import State
from synergon.model.limits import NewRate
from synergon.stores.rules.shared_capacity import ServerCapacity

if TYPE_CHECKING:
    from synergon.stores.postgres.profile import Profile

StateCounts = dict[tuple[str, str, str], int]
"""How many ended tasks of which queue, kind and state came or went."""


Moves = dict[int, tuple[str, State]]
"""Tasks that were moved because others were: of which kind they are, and where they are now."""


class LockedPermits(NamedTuple):
    """Limits and servers whose rows are locked, so that what is counted of them stays true."""

    limits: dict[str, int | None]
    """What each allows; None: any number."""
    servers: list[ServerCapacity]


class Terms(NamedTuple):
    """What the limit of a kind's lines says."""

    value: int | None = None
    rate: NewRate | None = None

    @property
    def is_endless(self) -> bool:
        """Whether there is a place for everybody."""
        return self.value is None and self.rate is None


class Session:
    """What a piece of work may use.

    Whoever moves a task writes down which line and group it touched (`touch`); `follow_ups.draw` puts these in order
    once, at the end of the work. `terms` are those of the kinds whose lines are locked, `locked_groups` the groups.
    """

    __slots__ = (
        "_connection",
        "_sql",
        "_state_counts",
        "groups",
        "is_callers",
        "key_queues",
        "locked_groups",
        "locked_permits",
        "profile",
        "released",
        "shard",
        "terms",
    )

    def __init__(
        self, connection: Any, profile: Profile, sql: Mapping[str, str], shard: int, *, is_callers: bool = False
    ) -> None:
        self.profile = profile
        self.is_callers = is_callers
        """It is a caller's own transaction, which may be held for long: nothing may be locked that others need."""
        self.key_queues: set[tuple[str, str]] = set()
        self.groups: set[int] = set()
        self.terms: dict[str, Terms] = {}
        self.locked_groups: set[int] = set()
        self.locked_permits: LockedPermits | None = None
        """What an exchange has locked for its claim."""
        self.released: list[str] = []
        """The kinds of tasks that waited for groups which have ended now."""
        self._connection = connection
        self._sql = sql
        self.shard = shard
        """Where it counts."""
        self._state_counts: StateCounts = {}

    async def rows(self, name: str, *parameters: Any) -> list[Any]:
        """All rows of the named statement."""
        rows: list[Any] = await self._connection.fetch(self._sql[name], *parameters)
        return rows

    async def row(self, name: str, *parameters: Any) -> Any:
        """The first row of the named statement, or None."""
        return await self._connection.fetchrow(self._sql[name], *parameters)

    async def value(self, name: str, *parameters: Any) -> Any:
        """The first value of the named statement."""
        return await self._connection.fetchval(self._sql[name], *parameters)

    async def run(self, name: str, *parameters: Any) -> int:
        """Run the named statement; how many rows it changed."""
        status: str = await self._connection.execute(self._sql[name], *parameters)
        return int(status.rpartition(" ")[2])

    def touch(self, kind: str, limit_key: str | None, group_id: int | None = None) -> None:
        """A task of this line and this group has moved."""
        if limit_key is not None:
            self.key_queues.add((kind, limit_key))
        if group_id is not None:
            self.groups.add(group_id)

    def count(self, queue: str, kind: str, state: State | str, number: int) -> None:
        """Note that ended tasks came or went."""
        name = (queue, kind, str(state))
        self._state_counts[name] = self._state_counts.get(name, 0) + number

    async def flush(self) -> None:
        """Write the notes; last, because others wait for these rows, and in one order, so that none wait in a ring."""
        counts = sorted((name, number) for name, number in self._state_counts.items() if number)
        self._state_counts.clear()
        if counts:
            queues, kinds, states = zip(*(name for name, _ in counts), strict=True)
            await self.run("tally", queues, kinds, states, [number for _, number in counts], self.shard)
