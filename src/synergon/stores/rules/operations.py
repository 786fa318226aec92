"""Operations on tasks and queues, as an operator or a client calls them.

An operation that the state of a task does not allow changes nothing; its `Moved` has `done=False`. If a list names a
task twice, the second entry sees the effect of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from synergon.model.lifecycle import Reason, State, clears_suspicion
from synergon.model.outcomes import ErrorRecord
from synergon.model.requirements import suspect_text, without_refusals
from synergon.model.tasks import Extension, MetaChange, Moved, Reprioritizing, Rescheduling
from synergon.options.durations import LONGEST_SECONDS, microseconds
from synergon.options.overrides import Overrides
from synergon.options.payload import encode
from synergon.stores.rows import ChangedTask, FinalTask, LiveTask
from synergon.stores.rules import attempts, dependencies, ends
from synergon.stores.rules.finish import append_error
from synergon.stores.rules.follow_ups import apply_follow_ups, summary
from synergon.stores.rules.key_queues import touch_queue
from synergon.stores.session import Moves, Session


async def cancel(session: Session, ids: Sequence[int], why: str | None = None) -> list[Moved]:
    """Cancel tasks: end tasks that do not run, and mark running tasks, so that their nodes cancel them."""
    await session.locks.for_tasks(ids)
    live, final = await _found(session, ids)
    for task in live.values():
        await _prepare_cancel(session, task, why)
    not_running = {task.id: task for task in live.values() if task.state is not State.RUNNING}
    if not_running:
        await ends.end(session, list(not_running.values()), State.CANCELLED, Reason.CANCELLED)
    moved = [_cancelled(task_id, live.get(task_id), final.get(task_id), not_running) for task_id in ids]
    return _with_follow_ups(moved, await apply_follow_ups(session))


async def _found(session: Session, ids: Sequence[int]) -> tuple[dict[int, LiveTask], dict[int, FinalTask]]:
    live = await session.tasks.live(ids)
    others = [task_id for task_id in ids if task_id not in live]
    return live, await session.tasks.final(others) if others else {}


async def _prepare_cancel(session: Session, task: LiveTask, why: str | None) -> None:
    if why is not None and not task.cancel_requested:
        await append_error(session, task, ErrorRecord(attempt=0, type="Cancel", message=why))
    if task.state is State.RUNNING:
        await session.tasks.request_cancel(task.id)


def _cancelled(task_id: int, live: LiveTask | None, final: FinalTask | None, ended: dict[int, LiveTask]) -> Moved:
    if live is None:
        return _unchanged(task_id, final)
    if live.state is State.RUNNING:
        return Moved(id=task_id, done=True, state=State.RUNNING, kind=live.kind, node_id=live.node_id)
    is_first = ended.pop(task_id, None) is not None
    group_id = live.group_id if is_first else None
    return Moved(id=task_id, done=is_first, state=State.CANCELLED, kind=live.kind, group_id=group_id)


def _unchanged(task_id: int, task: LiveTask | FinalTask | None) -> Moved:
    """The `Moved` of a task that was not changed, or does not exist."""
    if task is None:
        return Moved(id=task_id, done=False, state=None)
    return Moved(id=task_id, done=False, state=task.state, kind=task.kind)


async def _rejected(session: Session, task_id: int) -> Moved:
    """The `Moved` of a task that was not changed. Reads the task again."""
    live, final = await _found(session, [task_id])
    return _unchanged(task_id, live.get(task_id) or final.get(task_id))


async def retry(session: Session, ids: Sequence[int]) -> list[Moved]:
    """Move final tasks from the history back to the live tasks, so that they run again. Tasks that were cancelled
    because of them come back, too. A map that has succeeded is left as it is: it would create its items once more."""
    await session.locks.for_tasks(ids)
    ended = await session.tasks.final(ids)
    maps = {task.id for task in ended.values() if task.state is State.SUCCEEDED and Overrides.is_map(task.overrides)}
    final = {task_id: task for task_id, task in ended.items() if task_id not in maps}
    dependent = {task.id for task in final.values() if task.has_dependencies}
    revived = await _revive(session, list(final.values()))
    moved = [
        Moved(id=task_id, done=False, state=State.SUCCEEDED, kind=ended[task_id].kind, is_map=True)
        if task_id in maps
        else await _retried(session, task_id, final.pop(task_id, None), revived)
        for task_id in ids
    ]
    retried = {entry.id for entry in moved if entry.done}
    brought_back = await _bring_back(session, retried, dependent & retried)
    moves = {**brought_back, **await apply_follow_ups(session)}
    return _with_follow_ups(_with_new_states(moved, moves), moves)


async def _bring_back(session: Session, retried: set[int], dependent: set[int]) -> Moves:
    """Revive the tasks that were cancelled because of the `retried` tasks, and make all tasks that need them and have
    not started wait. `dependent` are the retried tasks that need other tasks; they wait if these have not ended.
    Returns the tasks that wait."""
    if not retried:
        return {}
    cancelled = await dependencies.cancelled_with(session, retried)
    await _revive(session, list(cancelled.values()))
    # Upwards first: the end of a task locks it before the tasks that depend on it.
    waiting = await dependencies.wait_again(session, dependent.union(cancelled))
    await dependencies.reopen(session, retried.union(cancelled))
    return {**waiting, **{task_id: (task.kind, State.WAITING) for task_id, task in cancelled.items()}}


async def _revive(session: Session, tasks: Sequence[FinalTask]) -> dict[int, State]:
    """Move final tasks back to the live ones. Returns their new states, without those whose key a live task holds."""
    states = await session.tasks.revive(tasks) if tasks else {}
    for task in tasks:
        if task.id not in states:
            continue
        await attempts.keep_success(session, task)
        requirements = without_refusals(task.requirements)
        if clears_suspicion(task.state, task.reason):
            requirements = suspect_text(requirements, is_suspect=False)
        if requirements != task.requirements:
            await session.tasks.set_requirements(task.id, requirements)
        state = states[task.id]
        session.touched.add_changed(ChangedTask(task.id, task.kind, state, task.limit_key, fair_key=task.fair_key))
    flows = {task.group_id for task in tasks if task.id in states and task.group_id is not None}
    if flows:
        await session.groups.reopen_flows(flows)
    return states


async def _retried(session: Session, task_id: int, task: FinalTask | None, states: Mapping[int, State]) -> Moved:
    if task is None:
        return await _rejected(session, task_id)
    if task_id in states:
        return Moved(id=task_id, done=True, state=states[task_id], kind=task.kind)
    assert task.key is not None, "only a key is in the way"
    holder = await session.tasks.key_holder(task.kind, task.key)
    key_holder = None if holder is None else holder.id
    return Moved(id=task_id, done=False, state=task.state, kind=task.kind, key_holder=key_holder)


def _with_new_states(moved: Sequence[Moved], moves: Moves) -> list[Moved]:
    """The entries with the states that follow-ups gave the tasks: a key queue may have promoted them."""
    return [replace(entry, state=moves[entry.id][1]) if entry.id in moves else entry for entry in moved]


async def delete(session: Session, ids: Sequence[int]) -> list[Moved]:
    """Delete tasks that do not run, live or final. Their unique keys become free at once, even if `unique_for` has not
    passed."""
    await session.locks.for_tasks(ids)
    live, final = await _found(session, ids)
    moved = [await _delete(session, task_id, live, final) for task_id in ids]
    return _with_follow_ups(moved, await apply_follow_ups(session))


def _with_follow_ups(moved: Sequence[Moved], moves: Moves) -> list[Moved]:
    """The entries. The first entry also lists what follow-ups have changed."""
    if not moves or not moved:
        return list(moved)
    first, *others = moved
    return [replace(first, follow_ups=summary(moves, own={entry.id for entry in moved})), *others]


async def _delete(session: Session, task_id: int, live: dict[int, LiveTask], final: dict[int, FinalTask]) -> Moved:
    task = live.get(task_id)
    if task is not None and task.state is State.RUNNING:
        return Moved(id=task_id, done=False, state=State.RUNNING, kind=task.kind, node_id=task.node_id)
    if task is not None:
        del live[task_id]
        await session.key_holds.release(task_id)
        await ends.delete(session, task)
        return Moved(id=task_id, done=True, state=None, kind=task.kind, group_id=task.group_id)
    if task_id not in final:
        return Moved(id=task_id, done=False, state=None)
    ended = final.pop(task_id)
    needed_by = await session.dependencies.needed_by(task_id)
    if needed_by is not None:
        return Moved(id=task_id, done=False, state=ended.state, kind=ended.kind, needed_by=needed_by)
    await session.key_holds.release(task_id)
    await session.tasks.delete_final(ended)
    if ended.has_dependencies:
        await session.dependencies.delete_of([task_id])
    return Moved(id=task_id, done=True, state=None, kind=ended.kind)


async def reschedule(session: Session, changes: Sequence[Rescheduling]) -> list[Moved]:
    """Change when scheduled or ready tasks are due."""
    await session.locks.for_tasks([change.id for change in changes])
    moved = [
        await _moved(session, change.id, await session.tasks.reschedule(change.id, change.run_at, change.delay))
        for change in changes
    ]
    return _with_new_states(moved, await apply_follow_ups(session))


async def set_priority(session: Session, changes: Sequence[Reprioritizing]) -> list[Moved]:
    """Change the priority of tasks that are live, not running and not commands."""
    await session.locks.for_tasks([change.id for change in changes])
    moved = [
        await _moved(session, change.id, await session.tasks.set_priority(change.id, change.priority))
        for change in changes
    ]
    return _with_new_states(moved, await apply_follow_ups(session))


async def _moved(session: Session, task_id: int, task: ChangedTask | None) -> Moved:
    if task is None:
        return await _rejected(session, task_id)
    session.touched.add_changed(task)
    return Moved(id=task_id, done=True, state=task.state, kind=task.kind)


async def extend_timeout(session: Session, extensions: Sequence[Extension]) -> list[Moved]:
    """Record more time for the attempts of running tasks, so that their nodes move the deadlines."""
    ids = [extension.id for extension in extensions]
    await session.locks.for_tasks(ids)
    live, final = await _found(session, ids)
    return [
        await _extend_timeout(session, extension, live.get(extension.id) or final.get(extension.id))
        for extension in extensions
    ]


async def _extend_timeout(session: Session, extension: Extension, task: LiveTask | FinalTask | None) -> Moved:
    if not isinstance(task, LiveTask) or task.state is not State.RUNNING:
        return _unchanged(extension.id, task)
    await session.tasks.extend_timeout(task.id, extension.extra, microseconds(LONGEST_SECONDS))
    return Moved(id=task.id, done=True, state=State.RUNNING, kind=task.kind, node_id=task.node_id)


async def update_meta(session: Session, changes: Sequence[MetaChange]) -> list[dict[str, Any] | None]:
    """Change the metadata of tasks, live or final."""
    ids = [change.id for change in changes]
    await session.locks.for_tasks(ids)
    live, final = await _found(session, ids)
    tasks: dict[int, LiveTask | FinalTask] = {**live, **final}
    current = {record.id: record.meta for record in (await session.tasks.records(list(tasks))).values()}
    return [await _update_meta(session, change, tasks.get(change.id), current) for change in changes]


async def _update_meta(
    session: Session, change: MetaChange, task: LiveTask | FinalTask | None, current: dict[int, dict[str, Any]]
) -> dict[str, Any] | None:
    if task is None:
        return None
    both = {**current[task.id], **change.values}
    meta = current[task.id] = {
        name: value for name, value in both.items() if value is not None or name not in change.values
    }
    await session.tasks.set_meta(task, encode(meta, "meta"))
    return meta


async def pause(session: Session, queues: Sequence[str]) -> list[bool]:
    """Pause queues, including new ones. False for a queue that was paused already."""
    await session.locks.all_key_queues()  # a transaction that balances key queues must not see a queue change its pause
    return await _changed(session, queues, [await session.queues.pause(queue) for queue in queues])


async def resume(session: Session, queues: Sequence[str]) -> list[bool]:
    """Resume queues. False for a queue that was not paused."""
    await session.locks.all_key_queues()
    return await _changed(session, queues, [await session.queues.resume(queue) for queue in queues])


async def _changed(session: Session, queues: Sequence[str], done: list[bool]) -> list[bool]:
    """Balance the key queues with tasks in the changed queues: tasks of a paused queue do not count. Returns `done`."""
    for queue, is_changed in zip(queues, done, strict=True):
        if is_changed:
            await touch_queue(session, queue)
    await apply_follow_ups(session)
    return done
