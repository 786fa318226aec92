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
REQUIREMENTS: Final = 17
SPARED_UNTIL: Final = 18
RUN_AT: Final = 19
RESERVED_BY: Final = 20
RESERVED_UNTIL: Final = 21
_QUEUE: Final = 3
_ATTEMPTS: Final = 5
_TARGET: Final = 15
_SERVER: Final = 16

Order = Callable[[tuple[Any, ...]], tuple[int, ...]]


class ReadyGroup(NamedTuple):
    """Where tasks stand that are as good as each other but for priority and age."""

    kind_request: KindRequest
    queue: str
    requirements: str


class ReadyGroups:
    """The lanes of kinds, in queues that are asked for and not paused; those of commands in every queue."""

    def __init__(self, transaction: Transaction, queues: frozenset[str] | None) -> None:
        self._transaction = transaction
        self._queues = queues
        self._paused = {row[0] for row in transaction.rows("paused_queues")}

    def of(self, kind_requests: Sequence[KindRequest]) -> list[ReadyGroup]:
        """All lanes of these kinds that have tasks."""
        asked = (
            kind_requests
            if len(kind_requests) == 1
            else self._with_tasks({kind_request.kind: kind_request for kind_request in kind_requests})
        )
        return [
            ReadyGroup(kind_request, queue, requirements)
            for kind_request in asked
            for queue, requirements in self._transaction.rows("ready_groups_of_kind", kind=kind_request.kind)
            if self._is_open(kind_request, queue)
        ]

    def _with_tasks(self, kind_requests: Mapping[str, KindRequest]) -> Iterator[KindRequest]:
        """From each kind that has ready tasks to the next one that is asked for: kinds without tasks cost nothing."""
        kinds, number = sorted(kind_requests), 0
        while number < len(kinds):
            (found,) = self._transaction.row("next_kind", kinds[number])
            if found is None:
                return
            number = bisect_left(kinds, found, number)
            if number < len(kinds) and kinds[number] == found:
                yield kind_requests[found]
                number += 1

    def _is_open(self, kind_request: KindRequest, queue: str) -> bool:
        if kind_request.is_command:
            return True
        return queue not in self._paused and (self._queues is None or queue in self._queues)

    def first(self, ready_group: ReadyGroup, limit: int) -> list[Any]:
        """At most so many rows of a lane, in order."""
        return self._transaction.rows(
            "ready",
            ready_group.kind_request.kind,
            ready_group.queue,
            ready_group.requirements,
            self._transaction.now,
            limit,
        )

    def commands_for(self, ready_group: ReadyGroup, servers: Collection[str], limit: int) -> list[Any]:
        """Commands for any server or for one of these; no other's are looked at."""
        now, kind, rows = self._transaction.now, ready_group.kind_request.kind, self._transaction.rows
        targets = [row[0] for row in rows("wanted_servers", kind=kind) if row[0] is None or row[0] in servers]
        found = merged([rows("ready_commands", kind, target, now, limit) for target in targets], limit, itemgetter(0))
        return [row for row in found if ready_group_of(row) == (kind, ready_group.queue, ready_group.requirements)]

    def among(self, kind_requests: Mapping[str, KindRequest], ids: Sequence[int]) -> list[Any]:
        """The rows of these tasks that stand in a lane of these kinds, in any order."""
        rows = self._transaction.rows("ready_among", as_json(ids), self._transaction.now)
        return [
            row for row in rows if row[KIND] in kind_requests and self._is_open(kind_requests[row[KIND]], row[_QUEUE])
        ]


def order_of(ready_groups: Sequence[ReadyGroup]) -> Order:
    """`node_capacity.claim_order` for kinds that share nothing but slots: priority, rank, age."""
    ranks = {ready_group.kind_request.kind: ready_group.kind_request.rank for ready_group in ready_groups}
    if len(set(ranks.values())) == 1:
        return _by_age
    return lambda row: (-row[PRIORITY], ranks[row[KIND]], row[0])


def _by_age(row: tuple[Any, ...]) -> tuple[int, int]:
    return -row[PRIORITY], row[0]


def merged(lists: Sequence[list[Any]], limit: int, order: Order) -> list[Any]:
    """The first rows of lists that are in order."""
    lists = [rows for rows in lists if rows]
    return lists[0][:limit] if len(lists) == 1 else list(islice(merge(*lists, key=order), limit))


def ready_group_of(row: tuple[Any, ...]) -> tuple[str, str, str]:
    """The lane in which a row stands."""
    return row[KIND], row[_QUEUE], row[REQUIREMENTS]


def ready_task(row: tuple[Any, ...], *, may_reserve: bool = False) -> ReadyTask:
    """The row, as the planner needs it."""
    avoid = server_to_avoid(row[_SERVER], row[_ATTEMPTS])
    return ReadyTask(row[0], row[PRIORITY], row[KIND], row[_QUEUE], row[REQUIREMENTS], row[_TARGET], avoid, may_reserve)


def target_of(row: tuple[Any, ...]) -> str | None:
    """The one server that will do."""
    target: str | None = row[_TARGET]
    return target
