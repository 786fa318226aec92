"""One transaction: a connection, its profile with the statements of its schema, and the shard of its tallies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from synergon.lifecycle import State

if TYPE_CHECKING:
    from synergon.stores.postgres.profile import Profile

Lanes = Counter[tuple[str, str, str]]
"""How many ended tasks of which queue, kind and state came or went."""


class Session:
    """What a piece of work may use."""

    __slots__ = ("_connection", "_lanes", "_shard", "_sql", "profile")

    def __init__(self, connection: Any, profile: Profile, sql: Mapping[str, str], shard: int) -> None:
        self.profile = profile
        self._connection = connection
        self._sql = sql
        self._shard = shard
        self._lanes: Lanes = Counter()

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

    def count(self, queue: str, kind: str, state: State | str, number: int) -> None:
        """Note that ended tasks came or went."""
        self._lanes[queue, kind, str(state)] += number

    async def flush(self) -> None:
        """Write the notes; last, because others wait for these rows, and in one order, so that none wait in a ring."""
        lanes = sorted((lane, number) for lane, number in self._lanes.items() if number)
        self._lanes.clear()
        if lanes:
            queues, kinds, states = zip(*(lane for lane, _ in lanes), strict=True)
            await self.run("tally", queues, kinds, states, [number for _, number in lanes], self._shard)
