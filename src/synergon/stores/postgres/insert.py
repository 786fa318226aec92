"""Tasks come in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from synergon.errors import KeyConflict
from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.postgres.follow_ups import draw
from synergon.stores.postgres.lock_order import Bond, lock
from synergon.stores.postgres.session import Moves, Session

PIECE: Final = 1000
"""So many tasks are sent in one statement at the most."""


def is_bound(task: NewTask) -> bool:
    """Whether the row has more to it than the task itself."""
    return (
        task.limit_key is not None
        or task.group_id is not None
        or task.after_group is not None
        or task.target is not None
        or task.is_command
    )


async def insert(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Store all of `tasks`, in queues that may be new, or raise and leave the transaction to be rolled back."""
    await lock(session, bonds_of(tasks, is_callers=session.is_callers))
    inserted = await store(session, tasks)
    return with_new_states(inserted, await draw(session))


def bonds_of(tasks: Iterable[NewTask], *, is_callers: bool = False) -> list[Bond]:
    """What new tasks are bound to; to no line yet if the transaction is a caller's."""
    return [
        (task.kind, None if is_callers else task.limit_key, task.group_id, task.after_group)
        for task in tasks
        if is_bound(task)
    ]


def with_new_states(inserted: Sequence[Insertion], moves: Moves) -> list[Insertion]:
    """What became of tasks that their lines have put in order since."""
    return [
        Insertion(entry.id, entry.created, moves[entry.id][1]) if entry.id in moves else entry for entry in inserted
    ]


async def store(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """The same; what they are bound to is locked already, and the consequences are the caller's to draw."""
    if any(map(is_bound, tasks)):
        tasks = await _checked(session, tasks)
    if all(task.key is None for task in tasks):
        await _add_queues(session, tasks)
        return await (_insert_bound if any(map(is_bound, tasks)) else insert_plain)(session, tasks)
    created: set[int] = set()
    inserted = [await _insert_keyed(session, task, created) for task in tasks]
    came_in = [task for task, one in zip(tasks, inserted, strict=True) if one.created or task.on_conflict == "replace"]
    await _add_queues(session, came_in)
    return inserted


async def _checked(session: Session, tasks: Sequence[NewTask]) -> list[NewTask]:
    """Nobody waits for a group that has ended, and commands have no priority."""
    groups = sorted({task.after_group for task in tasks if task.after_group is not None})
    is_open = {row[0] for row in await session.rows("open_groups", groups)} if groups else set()
    return [
        replace(
            task,
            after_group=task.after_group if task.after_group in is_open else None,
            priority=0 if task.is_command else task.priority,
        )
        for task in tasks
    ]


async def insert_locked(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """The same, after others who do so: two lists with the same keys in another order would wait for each other."""
    await session.rows("lock_keys")
    return await insert(session, tasks)


async def _add_queues(session: Session, tasks: Sequence[NewTask]) -> None:
    await session.rows("add_queues", sorted({task.queue for task in tasks}))


async def insert_plain(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Store tasks without keys and bonds in one statement."""
    rows = await session.rows("insert", *_columns(tasks))
    rows.sort(key=itemgetter(0))  # ids are in the order of the tasks, rows need not be
    return [Insertion(row[0], True, State(row[1])) for row in rows]


def is_bare(task: NewTask) -> bool:
    """Whether a task without key and bonds is due now and has none of the rarer options."""
    return (
        task.run_at is None
        and task.delay is None
        and task.expires_in is None
        and task.overrides is None
        and task.meta is None
        and not task.tags
    )


async def insert_bare(session: Session, task: NewTask) -> list[Insertion]:
    """Store one task that is due now: the same as `insert_plain`, without all that such a task has not got. That is how
    most come, one by one, and somebody waits for the start of each."""
    task_id = await session.value(
        "insert_bare",
        task.kind,
        task.queue,
        task.priority,
        task.payload.decode(),
        task.max_attempts,
        task.origin,
        task.requirements,
    )
    return [Insertion(task_id, True, State.READY)]


async def insert_pieces(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """The same for very many: to encode them all at once would keep the event loop from everything else."""
    inserted: list[Insertion] = []
    for start in range(0, len(tasks), PIECE):
        inserted += await insert_plain(session, tasks[start : start + PIECE])
    return inserted


async def _insert_bound(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    rows = await session.rows("insert_bound", *_columns(tasks), *_bonds(tasks), _first_state(session))
    rows.sort(key=itemgetter(0))
    for task, row in zip(tasks, rows, strict=True):
        _touch(session, task, row[1])
    return [Insertion(row[0], True, State(row[1])) for row in rows]


def _touch(session: Session, task: NewTask, state: str) -> None:
    if state == State.WAITING and task.after_group is None:
        session.touch(task.kind, task.limit_key)


def _first_state(session: Session) -> str:
    """Where a task begins that is due and has a line. In a caller's own transaction the line is not locked: it is left
    to the alarm of some node to put the task into it."""
    return (State.SCHEDULED if session.is_callers else State.WAITING).value


def _bonds(tasks: Sequence[NewTask]) -> tuple[list[Any], ...]:
    return (
        [task.limit_key for task in tasks],
        [task.group_id for task in tasks],
        [task.after_group for task in tasks],
        [task.is_command for task in tasks],
        [task.target for task in tasks],
        [task.provider for task in tasks],
    )


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
        [task.requirements for task in tasks],
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
        return (await (_insert_bound if is_bound(task) else insert_plain)(session, [task]))[0]
    while True:
        row = await session.row("insert_keyed", *_columns([task]), *_bonds([task]), _first_state(session))
        if row is not None:
            created.add(row[0])
            _touch(session, task, row[1])
            return Insertion(row[0], True, State(row[1]))
        holder = await session.row("lock_holder", task.kind, task.key)
        if holder is not None:
            return await _meet(session, task, *holder, is_new=holder[0] in created)


async def _meet(
    session: Session, task: NewTask, holder: int, state: str, limit_key: str | None, *, is_new: bool
) -> Insertion:
    if task.on_conflict == "return":
        return Insertion(holder, False, State(state))
    if task.on_conflict == "raise" or state == State.RUNNING:
        what = "is live" if task.on_conflict == "raise" else "is running and cannot be replaced"
        who = "another task of the same call" if is_new else f"task {holder}"
        other_way = (
            'on_conflict="return"' if task.after_group is None else "another key"
        )  # it must be a task of its own
        raise KeyConflict(
            f"the key {task.key!r} of kind {task.kind!r} is taken: {who} {what}; wait for its end, or use {other_way}",
            0 if is_new else holder,
        )
    return Insertion(holder, False, await _replace(session, task, holder, limit_key))


async def _replace(session: Session, task: NewTask, holder: int, limit_key: str | None) -> State:
    """Another task under the same id; it stays in its group. It may have left a line, and may stand in one."""
    if limit_key is not None and session.is_callers:
        await session.rows("nudge", task.kind, limit_key, holder)
    elif limit_key is not None:
        session.touch(task.kind, limit_key)
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
        task.limit_key,
        task.after_group,
        task.is_command,
        task.target,
        task.provider,
        _first_state(session),
        task.requirements,
    )
    _touch(session, task, state)
    return State(state)
