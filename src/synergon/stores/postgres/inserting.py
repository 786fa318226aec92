"""Tasks come in."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec

from synergon.errors import KeyConflict
from synergon.lifecycle import State
from synergon.records import Insertion, NewTask, to_datetime
from synergon.stores.postgres.session import Session


async def insert(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Store all of `tasks`, in queues that may be new, or raise and leave the transaction to be rolled back."""
    if all(task.key is None for task in tasks):
        await _add_queues(session, tasks)
        return await insert_plain(session, tasks)
    created: set[int] = set()
    inserted = [await _insert_keyed(session, task, created) for task in tasks]
    came_in = [task for task, one in zip(tasks, inserted, strict=True) if one.created or task.on_conflict == "replace"]
    await _add_queues(session, came_in)
    return inserted


async def insert_in_turn(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """The same, after others who do so: two lists with the same keys in another order would wait for each other."""
    await session.rows("take_turn")
    return await insert(session, tasks)


async def _add_queues(session: Session, tasks: Sequence[NewTask]) -> None:
    await session.rows("add_queues", sorted({task.queue for task in tasks}))


async def insert_plain(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Store tasks without keys in one statement."""
    rows = await session.rows("insert", *_columns(tasks))
    rows.sort(key=itemgetter(0))  # ids are in the order of the tasks, rows need not be
    return [Insertion(row[0], True, State(row[1])) for row in rows]


def _columns(tasks: Sequence[NewTask]) -> tuple[list[Any], ...]:
    return (
        [task.kind for task in tasks],
        [task.queue for task in tasks],
        [task.priority for task in tasks],
        [_moment(task.run_at) for task in tasks],
        [task.delay for task in tasks],
        [task.payload.decode() for task in tasks],
        [task.max_attempts for task in tasks],
        [task.key for task in tasks],
        [task.expires_in for task in tasks],
        [_text(task.overrides) for task in tasks],
        [msgspec.json.encode(task.tags).decode() if task.tags else None for task in tasks],
        [_text(task.meta) for task in tasks],
        [task.origin for task in tasks],
    )


def _text(value: bytes | None) -> str | None:
    return value.decode() if value is not None else None


def _moment(microseconds: int | None) -> Any:
    return to_datetime(microseconds) if microseconds is not None else None


async def _insert_keyed(session: Session, task: NewTask, created: set[int]) -> Insertion:
    """Insert, or meet the holder of the key; a holder that ends in between frees it, so look again then.

    `created` are the tasks of the same call, which nobody will know of if the call is refused.
    """
    if task.key is None:
        return (await insert_plain(session, [task]))[0]
    while True:
        row = await session.row("insert_keyed", *_columns([task]))
        if row is not None:
            created.add(row[0])
            return Insertion(row[0], True, State(row[1]))
        holder = await session.row("lock_holder", task.kind, task.key)
        if holder is not None:
            return await _meet(session, task, holder[0], State(holder[1]), is_new=holder[0] in created)


async def _meet(session: Session, task: NewTask, holder: int, state: State, *, is_new: bool) -> Insertion:
    if task.on_conflict == "return":
        return Insertion(holder, False, state)
    if task.on_conflict == "raise" or state is State.RUNNING:
        what = "is live" if task.on_conflict == "raise" else "is running and cannot be replaced"
        who = "another task of the same call" if is_new else f"task {holder}"
        raise KeyConflict(
            f"the key {task.key!r} of kind {task.kind!r} is taken: {who} {what}; "
            f'wait for its end, or use on_conflict="return"',
            0 if is_new else holder,
        )
    state = await session.value(
        "replace",
        holder,
        task.queue,
        task.priority,
        _moment(task.run_at),
        task.delay,
        task.payload.decode(),
        task.max_attempts,
        task.expires_in,
        _text(task.overrides),
        list(task.tags) or None,
        _text(task.meta),
        task.origin,
    )
    return Insertion(holder, False, State(state))
