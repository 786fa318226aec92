"""Inserts new tasks: resolves conflicts of unique keys, and adds tasks to key queues and groups.

`insert` stores all tasks or none. On a conflict the option `on_conflict` decides: `return` answers with the live task
that holds the key, `replace` writes the new task into its row unless it runs, `raise` raises `KeyConflict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from synergon.errors import KeyConflict
from synergon.model.lifecycle import State
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.columns import is_bound
from synergon.stores.rows import KeyHolder, KeyName
from synergon.stores.rules import follow_ups
from synergon.stores.session import Moves, Session


async def insert(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Store all of `tasks`, or raise `KeyConflict` and store none."""
    if not any(task.key is not None or is_bound(task) for task in tasks):
        return await session.tasks.add(tasks)  # the usual case: there is nothing to lock, to check or to balance
    await session.locks.for_new_tasks(tasks)
    inserted = await store(session, tasks, await check_keys(session, tasks))
    return with_new_states(inserted, await follow_ups.apply_follow_ups(session)) if session.touched else inserted


def with_new_states(entries: Sequence[Insertion], moves: Moves) -> list[Insertion]:
    """The insertions, with the states that follow-ups gave the tasks."""
    if not moves:
        return list(entries)
    return [Insertion(entry.id, entry.created, moves[entry.id][1]) if entry.id in moves else entry for entry in entries]


async def check_keys(session: Session, tasks: Sequence[NewTask]) -> dict[KeyName, KeyHolder]:
    """Raise `KeyConflict` before anything is written, because a caller's transaction cannot be undone in part. Returns
    the live tasks that hold keys of `replace` tasks."""
    names = {(task.kind, task.key) for task in tasks if task.key is not None and task.on_conflict != "return"}
    if not names:
        return {}
    holders = await session.tasks.key_holders(names)
    earlier: set[KeyName] = set()
    for task in tasks:
        if task.key is None:
            continue
        name = (task.kind, task.key)
        _check(task, holders.get(name), is_taken=name in earlier)
        earlier.add(name)
    return holders


def _check(task: NewTask, holder: KeyHolder | None, *, is_taken: bool = False) -> None:
    """Raise `KeyConflict` if the holder of the key, or an earlier task of the call with this key, forbids the task."""
    is_running = holder is not None and holder.state is State.RUNNING
    if task.on_conflict == "raise" and (holder is not None or is_taken):
        what = "is live"
    elif task.on_conflict == "replace" and is_running:
        what = "is running and cannot be replaced"
    else:
        return
    which = "another task of the same call" if holder is None else f"task {holder.id}"
    # `return` is no remedy for the task that follows a group: the group needs a task of its own.
    remedy = 'on_conflict="return"' if task.after_group is None else "another key"
    raise KeyConflict(
        f"the key {task.key!r} of kind {task.kind!r} is taken: {which} {what}; wait for its end, or use {remedy}",
        0 if holder is None else holder.id,
    )


async def store(
    session: Session, tasks: Sequence[NewTask], holders: Mapping[KeyName, KeyHolder] | None = None
) -> list[Insertion]:
    """Store tasks. The caller has locked their key queues and groups, has checked the keys of `raise` and `replace`
    tasks, and calls `follow_ups.apply_follow_ups` afterwards."""
    tasks = await _completed(session, tasks)
    if all(task.key is None for task in tasks):
        inserted = await session.tasks.add(tasks)
        for task, entry in zip(tasks, inserted, strict=True):
            _touch(session, task, entry.state)
        return inserted
    known = dict(holders or {})
    return [await _store_one(session, task, known) for task in tasks]


async def _completed(session: Session, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
    """Correct a new task: it does not wait for a group that has ended, and a command has priority 0."""
    groups = {task.after_group for task in tasks if task.after_group is not None}
    if not groups and not any(task.is_command for task in tasks):
        return tasks
    is_open = await session.groups.open(groups) if groups else set()
    return [
        replace(
            task,
            after_group=task.after_group if task.after_group in is_open else None,
            priority=0 if task.is_command else task.priority,
        )
        for task in tasks
    ]


def _touch(session: Session, task: NewTask, state: State) -> None:
    """Note the key queue of a new task, which is balanced before the transaction ends."""
    if state is State.WAITING and task.after_group is None:
        session.touched.add(task.kind, task.limit_key)


async def _store_one(session: Session, task: NewTask, known: dict[KeyName, KeyHolder]) -> Insertion:
    """Insert a task, or apply `on_conflict`. If another transaction has ended the holder meanwhile, the key is free."""
    if task.key is None:
        (inserted,) = await session.tasks.add([task])
        _touch(session, task, inserted.state)
        return inserted
    holder = known.pop((task.kind, task.key), None)  # once: it may be replaced by now
    while holder is None:
        added = await session.tasks.add_keyed(task)
        if added is not None:
            _touch(session, task, added.state)
            return added
        holder = await session.tasks.key_holder(task.kind, task.key)
    _check(task, holder)
    if task.on_conflict != "replace":
        return Insertion(holder.id, False, holder.state)
    session.touched.add(task.kind, holder.limit_key)
    state = await session.tasks.replace(holder, task)
    _touch(session, task, state)
    return Insertion(holder.id, False, state)
