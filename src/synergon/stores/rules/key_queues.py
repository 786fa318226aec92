"""Balances key queues: of the tasks of one kind and limit key, only as many are `ready` or `running` as the limit
`key:<kind>` allows. The others are `waiting`. If the tasks of the kind run in batches, `batches` decides instead.

`balance` derives everything from the rows, in whatever state they are, and does not change a key queue that is
balanced. No store has counters for key queues, so there is nothing to repair.

The caller has locked the key queues. Only claims run concurrently. A claim may take a task that `balance` was about to
demote, so tasks are counted again before others are promoted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from synergon.model.lifecycle import State
from synergon.model.limits import NewBatch
from synergon.stores.claim_primitives import KeyQueueRows
from synergon.stores.rows import ChangedTask, KeyQueueCounts, KeyQueueLimit, KeyQueueName, RateState
from synergon.stores.rules import batches, rates
from synergon.stores.rules.shared_capacity import UNLIMITED
from synergon.stores.session import KEY_QUEUES_AT_ONCE, Moves, Session

FEW: Final = 8
"""How many waiting tasks of each key queue are read together with the counts. If more are needed, they are read for
each key queue alone."""


async def balance(session: Session, names: Collection[KeyQueueName]) -> Moves:
    """Balance these key queues. Returns the moved tasks."""
    rows, moves = session.key_queues, Moves()
    limits = await rows.limits({kind for kind, _ in names})
    for some in _parts([name for name in names if limits[name[0]].is_unlimited]):
        # Tasks of paused queues too: in an unlimited key queue they block no other task.
        _note(moves, await rows.promote_all(some))
    batched: dict[NewBatch, list[KeyQueueName]] = {}
    limited: list[KeyQueueName] = []
    for name in names:
        limit = limits[name[0]]
        if limit.batch is not None:
            batched.setdefault(limit.batch, []).append(name)
        elif not limit.is_unlimited:
            limited.append(name)
    for batch, its_names in batched.items():
        for some in _parts(its_names):
            moves.update(await batches.balance(session, some, batch))
    for some in _parts(limited):
        await _Balance(rows, limits, some, moves).restore()
    return moves


def _parts(names: Sequence[KeyQueueName]) -> Iterator[Sequence[KeyQueueName]]:
    for start in range(0, len(names), KEY_QUEUES_AT_ONCE):
        yield names[start : start + KEY_QUEUES_AT_ONCE]


def _note(moves: Moves, changed: Iterable[ChangedTask]) -> None:
    moves.update((task.id, (task.kind, task.state)) for task in changed)


class _Allowance(NamedTuple):
    """How many tasks the rate of a key queue allows to start now. If none, also when the next may start."""

    starts: int = UNLIMITED
    """How many tasks may start now."""
    next_start: int | None = None
    """When the next task may start. None if tasks may start now, or if a scheduled task of the key queue is due before
    that."""


class _Balance:
    """Balances key queues that have a limit or a rate."""

    __slots__ = ("_allowances", "_few", "_limits", "_moves", "_names", "_rows")

    def __init__(
        self, rows: KeyQueueRows, limits: dict[str, KeyQueueLimit], names: Sequence[KeyQueueName], moves: Moves
    ) -> None:
        self._rows = rows
        self._limits = limits
        self._names = names
        self._moves = moves
        self._few = max(min(limits[kind].value or FEW, FEW) for kind, _ in names)
        self._allowances: dict[KeyQueueName, _Allowance] = {}

    async def restore(self) -> None:
        """Demote tasks, count again, and promote tasks. Repeats the count and the promotion if some tasks could not be
        promoted."""
        await self._read_rates()
        counts = await self._rows.counts(self._names, self._few)
        if excess := await self._excess(counts):
            _note(self._moves, await self._rows.demote(excess))
            counts = await self._rows.counts(self._names, self._few)
        while kinds := await self._next(counts):
            promoted = await self._rows.promote(list(kinds))
            self._moves.update((task_id, (kinds[task_id], State.READY)) for task_id in promoted)
            if len(promoted) == len(kinds):
                break
            counts = await self._rows.counts(self._names, self._few)
        if self._allowances:
            await self._postpone(counts)

    async def _read_rates(self) -> None:
        rated = [name for name in self._names if self._limits[name[0]].rate is not None]
        for state in await self._rows.rates(rated) if rated else ():
            name = (state.kind, state.limit_key)
            self._allowances[name] = self._allowance(state)
            if state.is_due:
                # A due task is `waiting` again before the count, so that no later task overtakes it.
                _note(self._moves, await self._rows.queue_due(name, state.now))

    def _allowance(self, state: RateState) -> _Allowance:
        rate = self._limits[state.kind].rate
        assert rate is not None, "only rates that exist are read"
        starts = rates.allowed(rate, state.next_at, state.now)
        if starts > 0:
            return _Allowance(starts)
        next_start = rates.next_start(rate, state.next_at, state.now)
        is_awaited = state.next_scheduled is not None and state.next_scheduled <= next_start
        return _Allowance(0, None if is_awaited else next_start)

    def _free(self, counts: KeyQueueCounts) -> int:
        """How many tasks may be ready by the value of the limit: the value less the running tasks."""
        value = self._limits[counts.kind].value
        return UNLIMITED if value is None else max(value - counts.running, 0)

    def _allowed(self, counts: KeyQueueCounts) -> int:
        """How many tasks may be ready, by the value and the rate of the limit."""
        allowance = self._allowances.get(counts.name)
        return self._free(counts) if allowance is None else min(self._free(counts), allowance.starts)

    async def _excess(self, found: Iterable[KeyQueueCounts]) -> list[int]:
        """The ready tasks that must be demoted: those beyond the allowed number, of paused queues, or behind waiting
        ones."""
        excess: list[int] = []
        for counts in found:
            allowed = self._allowed(counts)
            if counts.ready > allowed or counts.ready_in_paused > 0 or _is_overtaken(counts):
                excess += await self._rows.excess(counts.name, allowed)
        return excess

    async def _next(self, found: Iterable[KeyQueueCounts]) -> dict[int, str]:
        """The waiting tasks to promote, and their kinds."""
        kinds: dict[int, str] = {}
        for counts in found:
            wanted = self._allowed(counts) - counts.ready
            if wanted <= 0 or not counts.first_waiting:
                continue
            if wanted > len(counts.first_waiting) == self._few:
                ids = await self._rows.first_waiting(counts.name, wanted)
            else:
                ids = [task_id for _, task_id in counts.first_waiting[:wanted]]
            kinds.update(dict.fromkeys(ids, counts.kind))
        return kinds

    async def _postpone(self, found: Iterable[KeyQueueCounts]) -> None:
        """Where only the rate blocks a key queue, schedule its first task for the next permitted start."""
        moments: dict[int, int] = {}
        for counts in found:
            next_start = self._allowances.get(counts.name, _Allowance()).next_start
            if next_start is not None and counts.first_waiting and self._free(counts) > 0:
                (_, task_id), *_ = counts.first_waiting
                moments[task_id] = next_start
        if moments:
            _note(self._moves, await self._rows.postpone(moments))


def _is_overtaken(counts: KeyQueueCounts) -> bool:
    """Whether a waiting task precedes a ready one in claim order."""
    return counts.last_ready is not None and bool(counts.first_waiting) and counts.first_waiting[0] < counts.last_ready


async def charge_starts(session: Session, started: Counter[KeyQueueName]) -> None:
    """Charge the rates of key queues for tasks that have started. `started` has the number of starts of each."""
    limits = await session.key_queues.limits({kind for kind, _ in started})
    moments: dict[KeyQueueName, int] = {}
    for some in _parts([name for name in started if limits[name[0]].rate is not None]):
        for state in await session.key_queues.rates(some):
            name, rate = (state.kind, state.limit_key), limits[state.kind].rate
            assert rate is not None, "only rates that exist are read"
            moments[name] = rates.after(rate, state.next_at, state.now, started[name])
            session.touched.add(*name)
    if moments:
        await session.key_queues.set_next_starts(moments)


async def touch_kind(session: Session, kind: str) -> None:
    """Note all key queues of a kind in `session.touched`, so that `follow_ups.apply_follow_ups` balances them."""
    session.touched.key_queues.update(await session.key_queues.of_kind(kind))


async def touch_queue(session: Session, queue: str) -> None:
    """Note all key queues with tasks in a queue in `session.touched`, so that `follow_ups.apply_follow_ups` balances
    them."""
    session.touched.key_queues.update(await session.key_queues.of_queue(queue))
