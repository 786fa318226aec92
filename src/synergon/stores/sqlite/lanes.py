"""The first ready tasks of a kind: one index probe per queue that has any, merged; what nobody asked for is never
looked at."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final

from synergon.stores.allotting import Candidate
from synergon.stores.sqlite.transaction import Transaction

KIND: Final = 2
LIMIT_KEY: Final = 12
_ATTEMPTS: Final = 5
_PRIORITY: Final = 14
_TARGET: Final = 15
_SERVER: Final = 16


class Lanes:
    """Ready tasks by kind, in queues that are asked for and not paused."""

    def __init__(self, transaction: Transaction, queues: frozenset[str] | None) -> None:
        self._transaction = transaction
        self._queues = queues
        self._paused = {row[0] for row in transaction.rows("paused_queues")}

    def first(self, kind: str, limit: int) -> list[Any]:
        """At most so many rows, in order."""
        return self._first(kind, self._open(kind), limit) if limit > 0 else []

    def first_anywhere(self, kind: str, limit: int) -> list[Any]:
        """The same from every queue, asked for or not, paused or not."""
        return self._first(kind, self._all(kind), limit)

    def first_for(self, kind: str, servers: Collection[str], limit: int) -> list[Any]:
        """Commands for any server or for one of these, whatever their queues; no other's are looked at."""
        now, rows = self._transaction.now, self._transaction.rows
        targets = [row[0] for row in rows("wanted_servers", kind) if row[0] is None or row[0] in servers]
        return merged([rows("ready_commands", kind, target, now, limit) for target in targets], limit)

    def _first(self, kind: str, queues: list[str], limit: int) -> list[Any]:
        now = self._transaction.now
        return merged([self._transaction.rows("ready", kind, queue, now, limit) for queue in queues], limit)

    def _all(self, kind: str) -> list[str]:
        return [row[0] for row in self._transaction.rows("queues_of_kind", kind)]

    def _open(self, kind: str) -> list[str]:
        queues = [name for name in self._all(kind) if name not in self._paused]
        return queues if self._queues is None else [name for name in queues if name in self._queues]


def merged(lists: Sequence[list[Any]], limit: int) -> list[Any]:
    """The first rows of lists that are in order."""
    lists = [rows for rows in lists if rows]
    return lists[0][:limit] if len(lists) == 1 else list(islice(merge(*lists, key=order), limit))


def order(row: tuple[Any, ...]) -> tuple[int, int]:
    """Higher priority first, then first in, first out."""
    return -row[_PRIORITY], row[0]


def candidate(row: tuple[Any, ...]) -> Candidate:
    """What the allotment has to know of a row: a retry avoids the server of the attempt before."""
    avoid = row[_SERVER] if row[_ATTEMPTS] > 0 else None
    return Candidate(row[0], row[_PRIORITY], row[KIND], row[_TARGET], avoid)


def target_of(row: tuple[Any, ...]) -> str | None:
    """The one server that will do."""
    target: str | None = row[_TARGET]
    return target
