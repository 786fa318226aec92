"""Dependencies: connects new tasks with the tasks that they need, and releases or cancels them when those have ended.

A task waits (`is_dependent`) as long as one of its rows of dependencies is open. There is no counter. The row of a task
says (`has_dependents`) whether its end concerns other tasks, so the end of a task without dependents costs nothing
more. The transaction that stores a dependent locks the tasks that it needs and marks them; the transaction that ends a
task locks its dependents before it looks for open rows. So if two needed tasks end at one moment, the later transaction
sees that the other dependency is closed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from synergon.errors import TaskNotFound
from synergon.model.dependencies import DELETED, RESULTS_LIMIT_BYTES, Dependency
from synergon.model.lifecycle import FINAL, LIVE, Reason, State
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.rows import DependencyRow, FinalTask, KeyHolder, LiveTask, NeededTask
from synergon.stores.rules import ends
from synergon.stores.session import Moves, Session

Needed = Mapping[int, State]
"""The states of the stored tasks that new tasks need. A task that does not exist is missing."""

NO_BYTES: Final = -1
"""The limit of bytes that excludes all results, for readers that do not want them."""


# ---------------------------------------------------------------- new tasks


async def check(session: Session, tasks: Iterable[NewTask]) -> Needed:
    """Lock and read the stored tasks that these new tasks need. Raises TaskNotFound if one does not exist. Called
    before anything is written."""
    needed = await _read_needed(session, tasks)
    for task in tasks:
        for need in task.after:
            if need.task_id is not None and need.task_id not in needed:
                raise TaskNotFound(
                    f"`after` of a task of kind {task.kind!r} names task {need.task_id}, which does not exist: it "
                    "never did, was deleted, or its history was pruned; nothing was stored",
                    need.task_id,
                )
    return needed


async def _read_needed(session: Session, tasks: Iterable[NewTask]) -> Needed:
    ids = {need.task_id for task in tasks for need in task.after if need.task_id is not None}
    return await session.dependencies.lock_needed(ids) if ids else {}


async def prepare(session: Session, tasks: Sequence[NewTask], needed: Needed | None) -> tuple[list[NewTask], Needed]:
    """Set the fields of new tasks that follow from their dependencies (`has_dependencies`, `is_dependent`,
    `has_dependents`). `needed` is the result of `check`. It is None for children of a task, whose end cannot fail any
    more: for them a task that does not exist counts as ended without success."""
    if needed is None:
        needed = await _read_needed(session, tasks)
    steps = {need.step for task in tasks for need in task.after}
    return [
        replace(
            task,
            has_dependencies=bool(task.after),
            is_dependent=_must_wait(session, task, needed),
            has_dependents=index in steps or task.has_dependents,
        )
        for index, task in enumerate(tasks)
    ], needed


def _must_wait(session: Session, task: NewTask, needed: Needed) -> bool:
    states = [None if need.task_id is None else needed.get(need.task_id, DELETED) for need in task.after]
    return any(state is None or state not in FINAL for state in states) or _is_unsettled(session, task, needed)


def _is_unsettled(session: Session, task: NewTask, needed: Needed) -> bool:
    """Whether the next `wake` must settle the dependencies of the task: because one has failed already, and a producer
    ends no tasks; or because a caller's transaction must not lock the tasks that it needs."""
    states = [needed.get(need.task_id, DELETED) for need in task.after if need.task_id is not None]
    if session.is_callers and any(state not in FINAL for state in states):
        return True
    return task.if_dependency_fails == "cancel" and any(
        state in (State.FAILED, State.CANCELLED, DELETED) for state in states
    )


async def connect(
    session: Session, tasks: Sequence[NewTask], inserted: Sequence[Insertion], needed: Needed
) -> list[Insertion]:
    """Store the dependencies of tasks that were just inserted, and mark the tasks that they need. Returns the
    insertions with their new states."""
    rows = [row for task, entry in zip(tasks, inserted, strict=True) for row in _rows(task, entry, inserted, needed)]
    await session.dependencies.add(rows)
    pairs = [(task, entry) for task, entry in zip(tasks, inserted, strict=True) if _is_stored(task, entry)]
    unsettled = [entry.id for task, entry in pairs if _is_unsettled(session, task, needed)]
    if unsettled:
        await session.dependencies.defer(unsettled)
    if not session.is_callers:
        await session.dependencies.mark_needed({row.needs_id for row in rows if needed.get(row.needs_id) in LIVE})
    later = set(unsettled)
    # A step is not created if a live task holds its key. A task that needs only such steps waits for nothing.
    waiting = {row.task_id for row in rows if row.ended_as is None} | later
    session.touched.dependents.update(
        entry.id for task, entry in pairs if task.is_dependent and entry.id not in waiting
    )
    return [replace(entry, state=State.SCHEDULED) if entry.id in later else entry for entry in inserted]


def _is_stored(task: NewTask, entry: Insertion) -> bool:
    """Whether the new task was stored, as a new row or in the row of a replaced task. False if an existing live task
    was returned instead."""
    return entry.created or task.on_conflict == "replace"


def _rows(task: NewTask, entry: Insertion, inserted: Sequence[Insertion], needed: Needed) -> Iterable[DependencyRow]:
    if not _is_stored(task, entry):
        return
    seen: set[int] = set()
    for position, need in enumerate(task.after):
        ended_as: str | None = None
        if need.step is not None:
            if not inserted[need.step].created:
                continue
            needs_id = inserted[need.step].id
        else:
            assert need.task_id is not None, "a need has an id or a step"
            needs_id = need.task_id
            state = needed.get(needs_id)
            ended_as = DELETED if state is None else state.value if state in FINAL else None
        if needs_id not in seen:
            seen.add(needs_id)
            yield DependencyRow(entry.id, needs_id, position, None, task.if_dependency_fails, ended_as)


async def find_circle(session: Session, map_id: int, items: Iterable[NewTask]) -> KeyHolder | None:
    """A task that holds the unique key of an item of the map and waits for the map itself: if it were the task of that
    item, it would wait for its own end. None if there is none."""
    names = {(item.kind, item.key) for item in items if item.key is not None}
    holders = await session.tasks.key_holders(names) if names else {}
    later = await _dependents(session, map_id) if holders else set[int]()
    return next((holder for holder in holders.values() if holder.id in later), None)


async def add_items(session: Session, map_id: int, items: Sequence[Insertion]) -> None:
    """Make the tasks that wait for a map wait for the tasks of its items, too. If an existing task holds the unique key
    of an item, it is the task of that item, which two maps may share. It is left out if it waits for the map by now,
    because another map has ended since `find_circle`."""
    waiting = await session.dependencies.open_on([map_id])
    if not waiting:
        return
    known = [entry.id for entry in items if not entry.created]
    later = await _dependents(session, map_id) if known else set[int]()
    # Without a state, a task was found by a hold of its key, which outlives the task.
    states = await session.dependencies.lock_needed([entry.id for entry in items if entry.state is None])
    rows = [
        DependencyRow(row.task_id, entry.id, row.position, index, row.if_fails, _end_of_item(entry, states))
        for row in waiting
        for index, entry in enumerate(items)
        if entry.id not in later
    ]
    await session.dependencies.add(rows)
    await session.dependencies.mark_needed({row.needs_id for row in rows if row.ended_as is None})
    session.touched.doomed.update(row.task_id for row in rows if _prevents(row))


def _end_of_item(entry: Insertion, states: Needed) -> str | None:
    return None if entry.state is not None else str(states.get(entry.id, DELETED))


async def _dependents(session: Session, task_id: int) -> set[int]:
    """The tasks that wait for the task, directly or through other tasks."""
    found: set[int] = set()
    new = {task_id}
    while new:
        new = {row.task_id for row in await session.dependencies.open_on(new)} - found
        found |= new
    return found


async def settle(session: Session, limit: int) -> None:
    """Settle the dependencies of due tasks whose insert could not settle them: the tasks now wait, or follow-ups
    release or cancel them."""
    ids = await session.dependencies.unsettled(limit)
    if not ids:
        return
    needed, ended = await _lock_open(session, ids)
    tasks = await session.tasks.live(ids)
    waiting = [task.id for task in tasks.values() if task.is_dependent and task.state is State.SCHEDULED]
    await session.dependencies.make_dependent(waiting)
    doomed = {row.task_id for row in await session.dependencies.of(waiting) if _prevents(row)}
    await session.dependencies.mark_needed(needed.keys() - ended.keys())
    session.touched.ended.update(ended)
    session.touched.dependents.update(set(waiting) - doomed)
    session.touched.doomed.update(doomed)


async def _lock_open(session: Session, ids: Collection[int]) -> tuple[Needed, dict[int, str]]:
    """Lock the tasks on which the tasks `ids` have open dependencies. Returns their states, and how the tasks that are
    not live ended."""
    is_open = {row.needs_id for row in await session.dependencies.of(ids) if row.ended_as is None}
    needed = await session.dependencies.lock_needed(is_open) if is_open else {}
    return needed, {
        needs_id: str(needed.get(needs_id, DELETED)) for needs_id in is_open if needed.get(needs_id) not in LIVE
    }


# ---------------------------------------------------------------- ends of tasks


async def follow(session: Session) -> Moves:
    """Close the dependencies on the tasks that have ended, cancel the dependents that must not run without them, and in
    turn their dependents, and release the tasks that have no open dependency left. Returns the moved tasks."""
    touched, rows, moves = session.touched, session.dependencies, Moves()
    while touched.ended or touched.dependents or touched.doomed:
        ended, touched.ended = touched.ended, {}
        checked, touched.dependents = touched.dependents, set()
        doomed, touched.doomed = touched.doomed, set()
        failed = {task_id for task_id, how in ended.items() if how != State.SUCCEEDED}
        waiting = await rows.open_on(failed) if failed else []
        doomed |= {row.task_id for row in waiting if row.if_fails == "cancel"}
        if doomed:
            doomed = set(await rows.doomed(doomed))
        # The lock of the dependents: between this line and the commit no other transaction closes their dependencies.
        dependents = await rows.lock_dependents(ended, checked | doomed)
        if ended:
            await rows.close(ended)
        if doomed:
            moves.update(await _cancel(session, await session.tasks.live(doomed)))
        moves.update(await _release(session, [task_id for task_id in dependents if task_id not in doomed]))
    return moves


async def _cancel(session: Session, tasks: Mapping[int, LiveTask]) -> Moves:
    dependent = [task for task in tasks.values() if task.is_dependent]
    if not dependent:
        return {}
    await ends.end(session, dependent, State.CANCELLED, Reason.DEPENDENCY)
    return {task.id: (task.kind, State.CANCELLED) for task in dependent}


async def _release(session: Session, ids: Sequence[int]) -> Moves:
    released = await session.dependencies.release(ids) if ids else []
    for task in released:
        session.touched.add_changed(task)
        session.touched.groups.discard(task.group_id)  # a group with a live task has not ended
    return {task.id: (task.kind, task.state) for task in released}


# ---------------------------------------------------------------- retries


async def cancelled_with(session: Session, ids: Collection[int]) -> dict[int, FinalTask]:
    """The final tasks that were cancelled because of the tasks `ids`, directly or through other tasks. Leaves out tasks
    that another unsuccessful task still prevents from running, tasks whose unique key a live task holds, and all tasks
    that depend on these."""
    found = await session.tasks.final(set(await session.dependencies.cancelled_with(ids)).difference(ids))
    if not found:
        return {}
    names = {(task.kind, task.key): task.id for task in found.values() if task.key is not None}
    held = await session.tasks.key_holders(names) if names else {}
    dependents: dict[int, list[int]] = {}
    for row in await session.dependencies.of(found):
        if _prevents(row):
            dependents.setdefault(row.needs_id, []).append(row.task_id)
    lost = [needs_id for needs_id in dependents if needs_id not in found and needs_id not in ids]
    lost += [names[name] for name in held]
    while lost:
        task_id = lost.pop()
        found.pop(task_id, None)
        lost += dependents.pop(task_id, ())
    return found


async def left_behind(session: Session, ids: Collection[int]) -> set[int]:
    """The tasks of `ids` that no dependency prevents from running any more. All of `ids` were cancelled because of a
    dependency. A retry of the dependency left them out, because a live task held their unique key."""
    rows = await session.dependencies.of(ids) if ids else []
    return set(ids) - {row.task_id for row in rows if _prevents(row)}


def _prevents(row: DependencyRow) -> bool:
    """Whether the task must not run because of how the task that it needs has ended."""
    return row.if_fails == "cancel" and row.ended_as not in (None, State.SUCCEEDED.value)


async def reopen(session: Session, ids: Collection[int]) -> None:
    """Reopen the dependencies on tasks that run again: the tasks that need them and have not started wait once more.
    The dependencies of ended tasks are reopened, too: the new end of the needed task decides whether a later retry of
    another task brings them back."""
    rows = await session.dependencies.on(ids)
    if not rows:
        return
    await session.dependencies.mark_needed({row.needs_id for row in rows})
    concerned = [row for row in rows if row.if_fails != "group"]
    tasks = await session.tasks.live({row.task_id for row in concerned})
    running = {task.id for task in tasks.values() if task.state is State.RUNNING}
    await session.dependencies.reopen([row for row in concerned if row.task_id not in running])
    waiting = tasks.keys() - running
    if waiting:
        for task in await session.dependencies.make_dependent(waiting):
            session.touched.add(task.kind, task.limit_key)


async def wait_again(session: Session, ids: Collection[int]) -> Moves:
    """Make revived tasks wait if they have open dependencies. Follow-ups release or cancel them if the needed tasks
    have ended since. Returns the tasks that wait."""
    needed, ended = await _lock_open(session, ids) if ids else ({}, {})
    if not needed and not ended:
        return {}
    waiting = {row.task_id for row in await session.dependencies.of(ids) if row.ended_as is None}
    tasks = await session.dependencies.make_dependent(waiting)
    for task in tasks:
        session.touched.add(task.kind, task.limit_key)
    await session.dependencies.mark_needed(needed.keys() - ended.keys())
    session.touched.ended.update(ended)
    session.touched.dependents.update(waiting)
    return {task.id: (task.kind, State.WAITING) for task in tasks}


# ---------------------------------------------------------------- reading


async def read(session: Session, ids: Sequence[int], *, with_results: bool = False) -> list[list[Dependency]]:
    """The dependencies of each of these tasks, in order. With `with_results`, they include results, unless the results
    for one task are too large together."""
    found: dict[int, list[Dependency]] = {task_id: [] for task_id in ids}
    for row in await session.dependencies.read(ids, RESULTS_LIMIT_BYTES if with_results else NO_BYTES):
        found[row.task_id].append(
            Dependency(
                task_id=row.needs_id,
                position=row.position,
                item=row.item,
                kind=row.kind,
                state=_state(row),
                reason=row.reason,
                result_json=None if row.result is None else Raw(row.result),
            )
        )
    return [found[task_id] for task_id in ids]


def _state(row: NeededTask) -> State | None:
    """The state of a needed task, or, if it was pruned, the state in which it ended. None if it was deleted."""
    if row.state is not None or row.ended_as in (None, DELETED):
        return row.state
    return State(row.ended_as)
