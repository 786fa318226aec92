"""Lines: of the tasks of one kind and limit key only so many are `ready` or `running`, the others are `waiting`.

`balance` brings lines into that order from what their rows say, whatever has happened to them, and does nothing to a
line that is in order. Nothing is counted by hand, so there is nothing to repair.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import msgspec

from synergon.model.lifecycle import State
from synergon.model.limits import NewRate
from synergon.stores.rules import rates
from synergon.stores.rules.shared_capacity import UNLIMITED
from synergon.stores.sqlite.transaction import SQL, Moves, Transaction, as_json

SIZES: Final = (1, 4, 16, 64, 256)
"""A list of lines is filled up with NULLs to one of these, so that few statements have to be prepared. The keys are
parameters and not JSON, because SQLite cuts a string in JSON at a zero byte."""

MANY: Final = 8
"""So many of those who wait in a line are looked at together with their neighbours; for more it is asked alone."""


class Terms(NamedTuple):
    """What the limit of a kind's lines says."""

    value: int | None = None
    rate: NewRate | None = None


class KeyQueueCounts(NamedTuple):
    """How a line stands."""

    limit_key: str
    running: int
    ready: int
    last_ready: tuple[int, int] | None
    """Its priority and id."""
    first_waiting: tuple[tuple[int, int], ...]
    """A few of them, without those of paused queues."""


_LAST: Final = msgspec.json.Decoder(tuple[int, int])
_FIRST: Final = msgspec.json.Decoder(tuple[tuple[int, int], ...])


def balance(transaction: Transaction, key_queues: Iterable[tuple[str, str]]) -> Moves:
    """Put lines, given as pairs of kind and limit key, in order; what was moved for it."""
    moves: Moves = {}
    has_paused = bool(transaction.rows("paused_queues"))
    for kind, keys in _by_kind(key_queues).items():
        balancer = _Balancer(transaction, kind, moves)
        for chunk in _chunks(keys):
            balancer.put_in_order(chunk, has_paused=has_paused)
    return moves


def _chunks(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), SIZES[-1]):
        yield keys[start : start + SIZES[-1]]


_KEY_NAMES: Final = tuple(f"key_{number}" for number in range(SIZES[-1]))
"""The names of the parameters."""

_TEXTS: Final = {
    (name, size): SQL[name].replace("{keys}", ", ".join(f"(:{key_name})" for key_name in _KEY_NAMES[:size]))
    for name in ("survey", "promote_key_queues", "demote_paused", "rates", "join_key_queue")
    for size in SIZES
}


def _of_key_queues(transaction: Transaction, name: str, kind: str, keys: Sequence[str], **more: int) -> list[Any]:
    """All rows of a named statement that takes a list of lines, and perhaps more."""
    size = next(size for size in SIZES if size >= len(keys))
    return transaction.select(_TEXTS[name, size], dict(zip_longest(_KEY_NAMES[:size], keys)) | {"kind": kind, **more})


def terms_of(transaction: Transaction, kind: str) -> Terms:
    """What is said of the lines of a kind; a limit that nobody has declared says nothing."""
    row = transaction.row("terms", kind)
    if row is None:
        return Terms()
    value, every, burst = row
    return Terms(value, NewRate(every=every, burst=burst) if every is not None else None)


class _Balancer:
    """Puts lines of one kind in order."""

    def __init__(self, transaction: Transaction, kind: str, moves: Moves) -> None:
        self._transaction = transaction
        self._kind = kind
        self._terms = terms_of(transaction, kind)
        self._moves = moves
        self._few = min(self._terms.value or MANY, MANY)

    def put_in_order(self, keys: Sequence[str], *, has_paused: bool) -> None:
        """Many lines at once."""
        value, rate = self._terms
        if value is None and rate is None:
            # In paused queues too: a line without end has no place to keep for others.
            self._move_all("promote_key_queues", keys, State.READY)
            return
        if has_paused:  # a task that nobody may claim must not take the place of one that could run
            self._move_all("demote_paused", keys, State.WAITING)
        next_moments: dict[str, int] = {}
        if rate is not None:
            # Whose turn has come is in line again, noticed or not: nobody behind it may take the place meanwhile.
            self._move_all("join_key_queue", keys, State.WAITING, now=self._transaction.now)
            next_moments = dict(_of_key_queues(self._transaction, "rates", self._kind, keys))
        promoted: list[int] = []
        for row in _of_key_queues(self._transaction, "survey", self._kind, keys, limit=self._few):
            promoted += self._balance_one(_counts(row), next_moments.get(row[0]))
        self._promote(promoted)

    def _move_all(self, statement: str, keys: Sequence[str], state: State, **more: int) -> None:
        for (task_id,) in _of_key_queues(self._transaction, statement, self._kind, keys, **more):
            self._moves[task_id] = self._kind, state

    def _balance_one(self, key_queue: KeyQueueCounts, next_at: int | None) -> Sequence[int]:
        """Demote what has no place in the line; the ones that may be promoted."""
        permits = UNLIMITED if self._terms.value is None else max(self._terms.value - key_queue.running, 0)
        rate = self._terms.rate
        if rate is None or permits == 0:
            return self._fill(key_queue, permits)
        allowed = rates.allowed(rate, next_at, self._transaction.now)
        promoted = self._fill(key_queue, min(permits, allowed))
        if allowed == 0:
            self._defer(key_queue.limit_key, rates.next_start(rate, next_at, self._transaction.now))
        return promoted

    def _fill(self, key_queue: KeyQueueCounts, permits: int) -> Sequence[int]:
        wanted = permits - key_queue.ready
        if wanted < 0 or wanted > len(key_queue.first_waiting) == self._few or _is_overtaken(key_queue):
            return self._rank(key_queue.limit_key, permits)
        return [task_id for _, task_id in key_queue.first_waiting[:wanted]]

    def _rank(self, limit_key: str, permits: int) -> Sequence[int]:
        """The long way, for a line whose order has changed or that has many places."""
        first = self._transaction.rows("first_of_key_queue", kind=self._kind, limit_key=limit_key, limit=permits)
        staying = {task_id for task_id, state in first if state == State.READY}
        ready = [task_id for (task_id,) in self._transaction.rows("ready_of_key_queue", self._kind, limit_key)]
        self._demote([task_id for task_id in ready if task_id not in staying])
        return [task_id for task_id, state in first if state == State.WAITING]

    def _promote(self, ids: Sequence[int]) -> None:
        if ids:
            self._transaction.run("promote", as_json(ids))
            self._moves.update((task_id, (self._kind, State.READY)) for task_id in ids)

    def _demote(self, ids: Sequence[int]) -> None:
        if ids:
            self._transaction.run("demote", as_json(ids))
            self._moves.update((task_id, (self._kind, State.WAITING)) for task_id in ids)

    def _defer(self, limit_key: str, next_start: int) -> None:
        """Only time holds the line back: its first task comes when it may start, and looks for a place then."""
        first = self._transaction.rows("first_of_key_queue", kind=self._kind, limit_key=limit_key, limit=1)
        if first and self._transaction.row("is_deferred", self._kind, limit_key, next_start) is None:
            ((task_id, _),) = first
            self._transaction.run("defer", next_start, task_id)
            self._moves[task_id] = self._kind, State.SCHEDULED


def _counts(row: tuple[Any, ...]) -> KeyQueueCounts:
    limit_key, running, ready, last_ready, first_waiting = row
    return KeyQueueCounts(
        limit_key,
        running,
        ready,
        _LAST.decode(last_ready) if last_ready is not None else None,
        _FIRST.decode(first_waiting),
    )


def _is_overtaken(key_queue: KeyQueueCounts) -> bool:
    """Whether one that waits has a better place than one that is ready."""
    if key_queue.last_ready is None or not key_queue.first_waiting:
        return False
    return _order(key_queue.first_waiting[0]) < _order(key_queue.last_ready)


def _order(position: tuple[int, int]) -> tuple[int, int]:
    priority, task_id = position
    return -priority, task_id


def charge_starts(transaction: Transaction, started: Counter[tuple[str, str]]) -> None:
    """Write down that so many tasks of these lines have started, where a rate lets only so many."""
    for kind, keys in _by_kind(started).items():
        rate = terms_of(transaction, kind).rate
        if rate is None:
            continue
        for chunk in _chunks(keys):
            next_moments = dict(_of_key_queues(transaction, "rates", kind, chunk))
            for key in chunk:
                next_at = rates.after(rate, next_moments.get(key), transaction.now, started[kind, key])
                transaction.run("charge_rate", kind, key, next_at)
                transaction.touch(kind, key)


def _by_kind(key_queues: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    by_kind: dict[str, list[str]] = defaultdict(list)
    for kind, limit_key in key_queues:
        by_kind[kind].append(limit_key)
    return by_kind


def touch_kind(transaction: Transaction, kind: str) -> None:
    """All lines of the kind may have to be put in order."""
    transaction.key_queues.update((kind, row[0]) for row in transaction.rows("key_queues_of_kind", kind=kind))


def touch_queue(transaction: Transaction, queue: str) -> None:
    """All lines that tasks of the queue stand in may have to be put in order."""
    transaction.key_queues.update((row[0], row[1]) for row in transaction.rows("key_queues_of_queue", queue))
