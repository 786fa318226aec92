"""Inserts new tasks: resolves conflicts of unique keys, gives tenants their turns, adds tasks to key queues and groups,
and connects them with the tasks that they depend on.

`insert` stores all tasks or none. If a live task holds the key of a new one, the option `on_conflict` decides: `return`
returns the live task; `replace` writes the new task into the row of the live task, unless that task runs; `raise`
raises `KeyConflict`.

A task with `unique_for` also holds its key for a time after its insertion, in a row that outlives the task. While such
a hold has not expired, and no live task has the key, `return` returns the task that took the hold, even if it has ended
or was pruned; `replace` and `raise` raise `KeyConflict`. The hold is taken after the insertion. If another transaction
has taken it meanwhile, this one is repeated as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from synergon.errors import KeyConflict
from synergon.model.lifecycle import State
from synergon.model.operator_actions import NewAction
from synergon.model.record import to_datetime
from synergon.model.tasks import Insertion, NewTask, RequestKey
from synergon.stores.columns import is_bound
from synergon.stores.contention import Contention
from synergon.stores.rows import KeyHold, KeyHolder, KeyName
from synergon.stores.rules import dependencies, fair_shares, follow_ups
from synergon.stores.session import Moves, Session

REQUEST_KEY_MICROSECONDS: Final = 24 * 3600 * 1_000_000
"""For how long a repeated request gets the task of the first one."""


async def insert(session: Session, tasks: Sequence[NewTask]) -> list[Insertion]:
    """Store all of `tasks`, or raise `KeyConflict` or `TaskNotFound` and store none."""
    for task in tasks:
        if task.key is not None or is_bound(task):
            break
    else:
        return await session.tasks.add(tasks)  # the usual case: there is nothing to lock, to check or to balance
    await session.locks.for_new_tasks(tasks)
    holders = await check_keys(session, tasks)
    inserted = await store(session, tasks, holders, await dependencies.check(session, tasks))
    return with_new_states(inserted, await follow_ups.apply_follow_ups(session)) if session.touched else inserted


async def insert_for(session: Session, task: NewTask, who: str, request: RequestKey | None = None) -> Insertion:
    """Store a task that a caller of the web API requests, and record it in the audit. The task holds the key of
    `request`, in addition to its own unique key, so that a repeated request gets the task of the first one. A second
    hold, with the digest of the request, distinguishes a repeated request from a different request with that key."""
    keys = () if request is None else (request.key, f"{request.key} {request.digest}")
    held = await session.key_holds.held([(task.kind, key) for key in keys]) if keys else {}
    if keys and (first := held.get((task.kind, keys[0]))) is not None:
        return Insertion(first.task_id, False, None, is_of_other_request=(task.kind, keys[1]) not in held)
    (inserted,) = await insert(session, [task])
    for key in keys:
        if not await session.key_holds.take(task.kind, key, inserted.id, REQUEST_KEY_MICROSECONDS):
            raise Contention(f"another request of kind {task.kind!r} has this key at this moment")
    outcome = f"created task {inserted.id}" if inserted.created else f"task {inserted.id} holds its key"
    await session.audit.add(NewAction(verb="enqueue", subject=task.kind, value=inserted.id, who=who), outcome)
    return inserted


def with_new_states(entries: Sequence[Insertion], moves: Moves) -> list[Insertion]:
    """The insertions, with the states that follow-ups gave the tasks. The last one also says whether another task
    became ready (`completes_batch`)."""
    if not moves:
        return list(entries)
    told = [replace(entry, state=moves[entry.id][1]) if entry.id in moves else entry for entry in entries]
    own = {entry.id for entry in told}
    if told and any(state is State.READY and task_id not in own for task_id, (_, state) in moves.items()):
        told[-1] = replace(told[-1], completes_batch=True)
    return told


async def check_keys(
    session: Session, tasks: Sequence[NewTask], *, are_steps: bool = False
) -> dict[KeyName, KeyHolder]:
    """Raise `KeyConflict` if the option `on_conflict` of a task demands it. Called before anything is written, because
    a caller's transaction cannot be undone in part. `are_steps`: the tasks are steps of a flow, which needs tasks of
    its own. Returns the live tasks that hold the keys of `replace` and `raise` tasks."""
    names = {(task.kind, task.key) for task in tasks if task.key is not None and task.on_conflict != "return"}
    if not names:
        return {}
    holders = await session.tasks.key_holders(names)
    without_task = names - holders.keys()
    holds = await session.key_holds.held(without_task) if without_task else {}
    earlier: set[KeyName] = set()
    needed = {need.task_id for task in tasks for need in task.after}
    for task in tasks:
        if task.key is None:
            continue
        name = (task.kind, task.key)
        _check(task, holders.get(name), is_taken=name in earlier, is_step=are_steps)
        _check_circle(task, holders.get(name), needed)
        if name in holds:
            _check_hold(task, holds[name], is_step=are_steps)
        earlier.add(name)
    return holders


def _check(task: NewTask, holder: KeyHolder | None, *, is_taken: bool = False, is_step: bool = False) -> None:
    """Raise `KeyConflict` if the task must not be stored: because of the holder of its key, or of an earlier task of
    the call with this key (`is_taken`)."""
    is_running = holder is not None and holder.state is State.RUNNING
    if task.on_conflict == "raise" and (holder is not None or is_taken):
        what = "is live"
    elif task.on_conflict == "replace" and is_running:
        what = "is running and cannot be replaced"
    else:
        return
    which = "another task of the same call" if holder is None else f"task {holder.id}"
    # `return` is no remedy for a step or for the task that follows a group: those need tasks of their own.
    remedy = "another key" if _needs_own(task, is_step=is_step) else 'on_conflict="return"'
    raise KeyConflict(
        f"the key {task.key!r} of kind {task.kind!r} is taken: {which} {what}; wait for its end, or use {remedy}",
        0 if holder is None else holder.id,
    )


def _needs_own(task: NewTask, *, is_step: bool) -> bool:
    """Whether the task must not be replaced by the live task that holds its key: it is a step of a flow, or follows a
    group."""
    return is_step or any(need.step is not None for need in task.after)


def _check_circle(task: NewTask, holder: KeyHolder | None, needed: Collection[int | None]) -> None:
    """Raise `KeyConflict` if a task with dependencies would replace a task that others depend on: it could end up
    waiting for itself."""
    is_replaced = holder is not None and task.on_conflict == "replace" and bool(task.after)
    if holder is not None and is_replaced and (holder.has_dependents or holder.id in needed):
        raise KeyConflict(
            f"the key {task.key!r} of kind {task.kind!r} is taken: other tasks depend on task {holder.id}, so a task "
            "that waits for others cannot replace it; use another key",
            holder.id,
        )


def _check_hold(task: NewTask, hold: KeyHold, *, is_step: bool = False) -> None:
    """Raise `KeyConflict` if the task must not be stored because a task that has ended holds its key."""
    if task.on_conflict == "return":
        return
    until = to_datetime(hold.until).isoformat(sep=" ", timespec="seconds")
    cannot = " and cannot be replaced" if task.on_conflict == "replace" else ""
    remedy = 'use on_conflict="return"' if not _needs_own(task, is_step=is_step) else "use another key"
    raise KeyConflict(
        f"the key {task.key!r} of kind {task.kind!r} is taken until {until}: task {hold.task_id} has unique_for, "
        f"and has ended{cannot}; retry or delete that task, wait, or {remedy}",
        hold.task_id,
    )


async def _hold_key(session: Session, task: NewTask, task_id: int) -> None:
    """Hold the key of a task that was just inserted, if it has `unique_for`. Raises `Contention` if another transaction
    has taken the key since the insert checked it, for a task that has ended already."""
    assert task.key is not None
    holds = session.key_holds
    if task.unique_for is None:
        is_ours = await holds.is_free(task.kind, task.key, task_id)
    else:
        is_ours = await holds.take(task.kind, task.key, task_id, task.unique_for)
    if not is_ours:
        raise Contention(f"another task has taken the key {task.key!r} of kind {task.kind!r} at this moment")


async def store(
    session: Session,
    tasks: Sequence[NewTask],
    holders: Mapping[KeyName, KeyHolder] | None = None,
    needed: dependencies.Needed | None = None,
) -> list[Insertion]:
    """Store tasks. The caller has locked their key queues and groups, has checked the keys of `raise` and `replace`
    tasks and the tasks that they need (`dependencies.check`), and calls `follow_ups.apply_follow_ups` afterwards."""
    tasks = [replace(task, priority=0) if task.is_command else task for task in tasks]
    if not any(task.after for task in tasks):
        return await _store(session, tasks, holders)
    tasks, needed = await dependencies.prepare(session, tasks, needed)
    return await dependencies.connect(session, tasks, await _store(session, tasks, holders), needed)


async def _store(
    session: Session, tasks: Sequence[NewTask], holders: Mapping[KeyName, KeyHolder] | None
) -> list[Insertion]:
    if all(task.key is None for task in tasks):
        tasks = await fair_shares.with_tags(session, tasks)
        inserted = await session.tasks.add(tasks)
        for task, entry in zip(tasks, inserted, strict=True):
            _touch(session, task, entry.state)
    else:
        known = dict(holders or {})
        inserted = [await _store_one(session, task, known) for task in tasks]
    await fair_shares.tag(session, _untagged(tasks, inserted))
    return inserted


def _untagged(tasks: Sequence[NewTask], inserted: Sequence[Insertion]) -> list[int]:
    """The ready tasks of tenants that have been inserted without a tag."""
    return [
        entry.id
        for task, entry in zip(tasks, inserted, strict=True)
        if task.fair_key is not None and task.fair_tag == 0 and entry.state is State.READY
    ]


def _touch(session: Session, task: NewTask, state: State | None) -> None:
    """Note the key queue that a new task joins, so that `follow_ups.apply_follow_ups` balances it."""
    if state is State.WAITING and not task.is_dependent:
        session.touched.add(task.kind, task.limit_key)


async def _held(session: Session, task: NewTask) -> KeyHold | None:
    assert task.key is not None
    name = (task.kind, task.key)
    return (await session.key_holds.held([name])).get(name)


async def _store_one(session: Session, task: NewTask, known: dict[KeyName, KeyHolder]) -> Insertion:
    """Insert a task, or apply `on_conflict`. If another transaction has ended the holder of the key meanwhile, the task
    is inserted."""
    if task.key is None:
        (inserted,) = await session.tasks.add([task])
        _touch(session, task, inserted.state)
        return inserted
    holder = known.pop((task.kind, task.key), None)  # once: it may be replaced by now
    while holder is None:
        added = await session.tasks.add_keyed(task)
        if added is not None:
            await _hold_key(session, task, added.id)
            _touch(session, task, added.state)
            return added
        holder = await session.tasks.key_holder(task.kind, task.key)
        hold = await _held(session, task) if holder is None else None
        if hold is not None:
            _check_hold(task, hold)
            return Insertion(hold.task_id, False, None)
    _check(task, holder)
    if task.on_conflict != "replace":
        return Insertion(holder.id, False, holder.state)
    session.touched.add(task.kind, holder.limit_key)
    state = await session.tasks.replace(holder, task)
    if task.unique_for is not None:  # if another task holds the key, an operator has retried this one meanwhile
        await session.key_holds.take(task.kind, task.key, holder.id, task.unique_for)
    if holder.has_dependencies:
        await session.dependencies.delete_of([holder.id])
    _touch(session, task, state)
    return Insertion(holder.id, False, state)
