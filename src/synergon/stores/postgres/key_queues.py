"""Lines: of the tasks of one kind and limit key only so many are `ready` or `running`, the others are `waiting`.

`balance` brings lines into that order from what their rows say, whatever has happened to them, and does nothing to a
line that is in order. Nothing is counted by hand, so there is nothing to repair. The lines are locked meanwhile; only
claims go on, and turn ready into running: whoever was to lose its place may have been quicker, so it is counted again
before others are promoted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from synergon.model.lifecycle import State
from synergon.model.record import from_datetime, to_datetime
from synergon.stores.postgres.lock_order import lock_key_queues
from synergon.stores.postgres.session import Moves, Session
from synergon.stores.rules import rates
from synergon.stores.rules.shared_capacity import UNLIMITED

KeyQueueName = tuple[str, str]
"""Kind and limit key."""

KEY_QUEUES_AT_ONCE: Final = 500
FEW: Final = 8
"""So many of those who wait in a line are looked at together with their neighbours; for more it is asked alone."""
LAST_MOMENT: Final = 200_000_000_000_000_000
"""A date that the database and Python can write, after which nothing is expected to happen."""


class KeyQueueCounts(NamedTuple):
    """How a line stands."""

    running: int
    ready: int
    paused: int
    """How many of the ready ones are in paused queues."""
    last_ready: tuple[int, int] | None
    """Its place in the order."""
    first_waiting: tuple[tuple[int, int], ...]
    """The places of a few of them, without those of paused queues; an id is the second part of a place."""

    @property
    def is_out_of_order(self) -> bool:
        """Whether one that waits has a better place than one that is ready, or one is ready that nobody may claim."""
        if self.paused > 0:
            return True
        return bool(self.first_waiting) and self.last_ready is not None and self.first_waiting[0] < self.last_ready


class RateState(NamedTuple):
    """What the rate of a line allows."""

    allowed: int = UNLIMITED
    next_start: int | None = None
    """When the next one may start, if nobody comes back by then."""


async def balance(session: Session, key_queues: Collection[KeyQueueName]) -> Moves:
    """Put lines in order; what was moved for it."""
    moves: Moves = {}
    await lock_key_queues(session, {kind for kind, _ in key_queues})
    limited = [key_queue for key_queue in key_queues if not session.terms[key_queue[0]].is_endless]
    for chunk in _chunks([key_queue for key_queue in key_queues if session.terms[key_queue[0]].is_endless]):
        # In paused queues too: a line without end has no place to keep for others.
        _note(moves, await session.rows("promote_key_queues", *_columns(chunk)), State.READY)
    for chunk in _chunks(limited):
        await _Balancer(session, chunk, moves).put_in_order()
    return moves


def _chunks(key_queues: Sequence[KeyQueueName]) -> Iterator[Sequence[KeyQueueName]]:
    for start in range(0, len(key_queues), KEY_QUEUES_AT_ONCE):
        yield key_queues[start : start + KEY_QUEUES_AT_ONCE]


def _columns(key_queues: Iterable[KeyQueueName]) -> tuple[list[str], list[str]]:
    pairs = list(key_queues)
    return [kind for kind, _ in pairs], [key for _, key in pairs]


def _note(moves: Moves, rows: Iterable[Any], state: State) -> None:
    moves.update((row["id"], (row["kind"], state)) for row in rows)


class _Balancer:
    """Puts lines in order that have an end."""

    def __init__(self, session: Session, key_queues: Sequence[KeyQueueName], moves: Moves) -> None:
        self._session = session
        self._key_queues = key_queues
        self._moves = moves
        self._rate_states: dict[KeyQueueName, RateState] = {}

    async def put_in_order(self) -> None:
        """Demote, count again, promote; again, should somebody's own transaction have changed one of them."""
        self._rate_states = await self._read_rate_states()
        counts_by_queue = await self._survey(self._key_queues)
        if misplaced := await self._misplaced(counts_by_queue):
            _note(self._moves, await self._session.rows("demote", misplaced), State.WAITING)
            counts_by_queue = await self._survey(self._key_queues)
        while ids := await self._next(counts_by_queue):
            promoted = await self._session.rows("promote", ids)
            _note(self._moves, promoted, State.READY)
            if len(promoted) == len(ids):
                break
            counts_by_queue = await self._survey(self._key_queues)
        await self._defer(counts_by_queue)

    async def _read_rate_states(self) -> dict[KeyQueueName, RateState]:
        rated = [key_queue for key_queue in self._key_queues if self._session.terms[key_queue[0]].rate is not None]
        if not rated:
            return {}
        rate_states: dict[KeyQueueName, RateState] = {}
        for row in await self._session.rows("rates", *_columns(rated)):
            key_queue = (row["kind"], row["limit_key"])
            rate_states[key_queue] = self._rate_state(row)
            if row["is_due"]:
                # It is in line again, noticed or not: nobody behind it may take the place meanwhile.
                due = await self._session.rows("join_key_queue", *key_queue, to_datetime(row["now"]))
                _note(self._moves, due, State.WAITING)
        return rate_states

    def _rate_state(self, row: Any) -> RateState:
        rate = self._session.terms[row["kind"]].rate
        assert rate is not None, "only lines that have one are asked for"
        allowed = rates.allowed(rate, row["next_at"], row["now"])
        if allowed > 0:
            return RateState(allowed)
        next_start = min(rates.next_start(rate, row["next_at"], row["now"]), LAST_MOMENT)
        is_awaited = row["awaited"] is not None and from_datetime(row["awaited"]) <= next_start
        return RateState(0, None if is_awaited else next_start)

    async def _survey(self, key_queues: Sequence[KeyQueueName]) -> dict[KeyQueueName, KeyQueueCounts]:
        rows = await self._session.rows("survey", *_columns(key_queues), FEW)
        return {(row["kind"], row["limit_key"]): _counts(row) for row in rows}

    def _free(self, key_queue: KeyQueueName, counts: KeyQueueCounts) -> int:
        """How many may be ready as far as the limit goes."""
        value = self._session.terms[key_queue[0]].value
        return UNLIMITED if value is None else max(value - counts.running, 0)

    def _permits(self, key_queue: KeyQueueName, counts: KeyQueueCounts) -> int:
        return min(self._free(key_queue, counts), self._rate_states.get(key_queue, RateState()).allowed)

    async def _misplaced(self, counts_by_queue: dict[KeyQueueName, KeyQueueCounts]) -> list[int]:
        """The ready tasks that have no place."""
        found: list[int] = []
        for key_queue, counts in counts_by_queue.items():
            permits = self._permits(key_queue, counts)
            if counts.ready > permits or counts.is_out_of_order:
                found += [row["id"] for row in await self._session.rows("misplaced", *key_queue, permits)]
        return found

    async def _next(self, counts_by_queue: dict[KeyQueueName, KeyQueueCounts]) -> list[int]:
        """The waiting tasks that have a place."""
        found: list[int] = []
        for key_queue, counts in counts_by_queue.items():
            wanted = self._permits(key_queue, counts) - counts.ready
            if wanted <= 0 or not counts.first_waiting:
                continue
            if wanted > len(counts.first_waiting) == FEW:
                found += [row["id"] for row in await self._session.rows("first_waiting", *key_queue, wanted)]
            else:
                found += [task_id for _, task_id in counts.first_waiting[:wanted]]
        return found

    async def _defer(self, counts_by_queue: dict[KeyQueueName, KeyQueueCounts]) -> None:
        """Where only time holds a line back, its first task comes when it may start, and looks for a place then."""
        next_starts = {
            counts_by_queue[key_queue].first_waiting[0][1]: to_datetime(rate_state.next_start)
            for key_queue, rate_state in self._rate_states.items()
            if rate_state.next_start is not None
            and counts_by_queue[key_queue].first_waiting
            and self._free(key_queue, counts_by_queue[key_queue]) > 0
        }
        if next_starts:
            given = await self._session.rows("defer", list(next_starts), list(next_starts.values()))
            _note(self._moves, given, State.SCHEDULED)


def _counts(row: Any) -> KeyQueueCounts:
    last = (-row["last_priority"], row["last_id"]) if row["last_id"] is not None else None
    waiting = zip(row["priorities"] or (), row["ids"] or (), strict=True)
    return KeyQueueCounts(
        row["running"], row["ready"], row["paused"], last, tuple(sorted((-priority, one) for priority, one in waiting))
    )


async def charge_starts(session: Session, started: Counter[KeyQueueName]) -> None:
    """Write down that so many tasks of these lines have started, where a rate lets only so many."""
    await lock_key_queues(session, {kind for kind, _ in started})
    rated = [key_queue for key_queue in started if session.terms[key_queue[0]].rate is not None]
    if not rated:
        return
    moments: dict[KeyQueueName, int] = {}
    for row in await session.rows("rates", *_columns(rated)):
        key_queue = (row["kind"], row["limit_key"])
        rate = session.terms[key_queue[0]].rate
        assert rate is not None, "only lines that have one are asked for"
        moments[key_queue] = rates.after(rate, row["next_at"], row["now"], started[key_queue])
        session.touch(*key_queue)
    await session.run("charge_rates", *_columns(moments), list(moments.values()))


async def touch_kind(session: Session, kind: str) -> None:
    """All lines of the kind may have to be put in order."""
    session.key_queues.update((kind, row["limit_key"]) for row in await session.rows("key_queues_of_kind", kind))


async def touch_queue(session: Session, queue: str) -> None:
    """All lines that tasks of the queue stand in may have to be put in order."""
    session.key_queues.update(
        (row["kind"], row["limit_key"]) for row in await session.rows("key_queues_of_queue", queue)
    )
