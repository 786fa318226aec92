"""Ready groups: the ready tasks of one kind, queue and requirements. Each is one range of an index, in order.

Groups that were not requested, or that the node cannot run, are never read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from synergon.model.claims import KindRequest
from synergon.stores.rules.claim_plan import ReadyTask, server_to_avoid
from synergon.stores.sqlite.transaction import Transaction, as_json

KIND: Final = 2
LIMIT_KEY: Final = 12
PRIORITY: Final = 14
DEMAND: Final = 17
SPARED_UNTIL: Final = 18
RUN_AT: Final = 19
RESERVED_BY: Final = 20
RESERVED_UNTIL: Final = 21
_QUEUE: Final = 3
_ATTEMPTS: Final = 5
_TARGET: Final = 15
_SERVER: Final = 16

Order = Callable[[tuple[Any, ...]], tuple[int, ...]]


class Lane(NamedTuple):
    """Where tasks stand that are as good as each other but for priority and age."""

    room: KindRequest
    queue: str
    requirements: str


class Lanes:
    """The lanes of kinds, in queues that are asked for and not paused; those of commands in every queue."""

    def __init__(self, transaction: Transaction, queues: frozenset[str] | None) -> None:
        self._transaction = transaction
        self._queues = queues
        self._paused = {row[0] for row in transaction.rows("paused_queues")}

    def of(self, rooms: Sequence[KindRequest]) -> list[Lane]:
        """All lanes of these kinds that have tasks."""
        asked = rooms if len(rooms) == 1 else self._with_tasks({room.kind: room for room in rooms})
        return [
            Lane(room, queue, requirements)
            for room in asked
            for queue, requirements in self._transaction.rows("lanes_of_kind", kind=room.kind)
            if self._is_open(room, queue)
        ]

    def _with_tasks(self, rooms: Mapping[str, KindRequest]) -> Iterator[KindRequest]:
        """From each kind that has ready tasks to the next one that is asked for: kinds without tasks cost nothing."""
        kinds, number = sorted(rooms), 0
        while number < len(kinds):
            (found,) = self._transaction.row("next_kind", kinds[number])
            if found is None:
                return
            number = bisect_left(kinds, found, number)
            if number < len(kinds) and kinds[number] == found:
                yield rooms[found]
                number += 1

    def _is_open(self, room: KindRequest, queue: str) -> bool:
        if room.is_command:
            return True
        return queue not in self._paused and (self._queues is None or queue in self._queues)

    def first(self, lane: Lane, limit: int) -> list[Any]:
        """At most so many rows of a lane, in order."""
        return self._transaction.rows(
            "ready", lane.room.kind, lane.queue, lane.requirements, self._transaction.now, limit
        )

    def commands_for(self, lane: Lane, servers: Collection[str], limit: int) -> list[Any]:
        """Commands for any server or for one of these; no other's are looked at."""
        now, kind, rows = self._transaction.now, lane.room.kind, self._transaction.rows
        targets = [row[0] for row in rows("wanted_servers", kind=kind) if row[0] is None or row[0] in servers]
        found = merged([rows("ready_commands", kind, target, now, limit) for target in targets], limit, itemgetter(0))
        return [row for row in found if lane_of(row) == (kind, lane.queue, lane.requirements)]

    def among(self, rooms: Mapping[str, KindRequest], ids: Sequence[int]) -> list[Any]:
        """The rows of these tasks that stand in a lane of these kinds, in any order."""
        rows = self._transaction.rows("ready_among", as_json(ids), self._transaction.now)
        return [row for row in rows if row[KIND] in rooms and self._is_open(rooms[row[KIND]], row[_QUEUE])]


def order_of(lanes: Sequence[Lane]) -> Order:
    """`node_capacity.claim_order` for kinds that share nothing but slots: priority, rank, age."""
    ranks = {lane.room.kind: lane.room.rank for lane in lanes}
    if len(set(ranks.values())) == 1:
        return _by_age
    return lambda row: (-row[PRIORITY], ranks[row[KIND]], row[0])


def _by_age(row: tuple[Any, ...]) -> tuple[int, int]:
    return -row[PRIORITY], row[0]


def merged(lists: Sequence[list[Any]], limit: int, order: Order) -> list[Any]:
    """The first rows of lists that are in order."""
    lists = [rows for rows in lists if rows]
    return lists[0][:limit] if len(lists) == 1 else list(islice(merge(*lists, key=order), limit))


def lane_of(row: tuple[Any, ...]) -> tuple[str, str, str]:
    """The lane in which a row stands."""
    return row[KIND], row[_QUEUE], row[DEMAND]


def ready_task(row: tuple[Any, ...], *, may_reserve: bool = False) -> ReadyTask:
    """The row, as the planner needs it."""
    avoid = server_to_avoid(row[_SERVER], row[_ATTEMPTS])
    return ReadyTask(row[0], row[PRIORITY], row[KIND], row[_QUEUE], row[DEMAND], row[_TARGET], avoid, may_reserve)


def target_of(row: tuple[Any, ...]) -> str | None:
    """The one server that will do."""
    target: str | None = row[_TARGET]
    return target
