"""Batches: decides when the tasks of a key queue are run together, and which of them.

The tasks of a kind with batches wait in key queues. Only the first of a key queue becomes `ready`, when its batch is
complete (`size` tasks) or due (the oldest has waited for `wait`): it is the leader of the batch. A claim takes the
leader like any other task, with the capacity and permits that it needs, and then the next waiting tasks of its key
queue, which need neither: a batch is one execution. So the claim decides which tasks a batch has, and nothing has to be
undone if a task is cancelled, expires or is replaced before that.

While a batch is neither complete nor due, an alarm is stored: the moment at which it will be due. An alarm holds no
task; it only tells `wake` which key queue to balance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from synergon.model.claims import Claim, ClaimRequest
from synergon.model.lifecycle import State
from synergon.model.limits import KEY_QUEUES, BatchOutlook, NewBatch
from synergon.stores.rows import KeyQueueName, LiveTask, NextBatch
from synergon.stores.rules.rates import LAST_MOMENT
from synergon.stores.session import Moves, Session

ITEMS_AT_ONCE: Final = 1000
"""A claim that has taken this many tasks takes no further batch, because a longer transaction would delay others."""


async def balance(session: Session, names: Collection[KeyQueueName], batch: NewBatch) -> Moves:
    """Make the first task of each key queue ready if its next batch is complete or due, and all other tasks `waiting`.
    Returns the moved tasks. The caller has locked the key queues."""
    rows, now, moves = session.key_queues, await session.read_clock(), Moves()
    excess: list[int] = []
    leaders: dict[int, str] = {}
    alarms: dict[KeyQueueName, int | None] = {}
    for found in await rows.next_batches(list(names), batch.size):
        is_due = _is_due(found, batch, now)
        ready = found.ready
        if ready:
            demoted = await rows.excess(found.name, int(is_due))
            ready -= len(demoted)
            excess += demoted
        if is_due and not ready:
            leaders.update(dict.fromkeys(await rows.first_waiting(found.name, 1), found.kind))
        alarm = _alarm(found, batch, is_due=is_due)
        if alarm != found.alarm:
            alarms[found.name] = alarm
    if excess:
        moves.update((task.id, (task.kind, task.state)) for task in await rows.demote(excess))
    if leaders:
        moves.update((task_id, (leaders[task_id], State.READY)) for task_id in await rows.promote(list(leaders)))
    if alarms:
        await rows.set_alarms(alarms)
    return moves


def _is_due(found: NextBatch, batch: NewBatch, now: int) -> bool:
    """Whether the batch can start: it is complete, or its oldest task has waited long enough."""
    due_at = _due_at(found, batch)
    return found.count >= batch.size or (due_at is not None and due_at <= now)


def _alarm(found: NextBatch, batch: NewBatch, *, is_due: bool) -> int | None:
    return None if is_due else _due_at(found, batch)


def _due_at(found: NextBatch, batch: NewBatch) -> int | None:
    """When the oldest task of the batch has waited long enough. None if there is no task. A damaged row may have any
    wait."""
    return None if found.since is None else min(found.since + batch.wait, LAST_MOMENT)


async def outlook(session: Session, kind: str, limit_key: str) -> BatchOutlook | None:
    """The next batch of a key queue. None if the tasks of the kind run alone. Locks nothing."""
    name = f"{KEY_QUEUES}{kind}"
    batch = next((row.batch for row in await session.limits.all() if row.name == name), None)
    if batch is None:
        return None
    (found,) = await session.key_queues.next_batches([(kind, limit_key)], batch.size)
    is_due = _is_due(found, batch, await session.read_clock())
    due_at = _alarm(found, batch, is_due=is_due)
    return BatchOutlook(size=batch.size, count=min(found.count, batch.size), due_at=due_at)


# ---------------------------------------------------------------- claims


def sizes_of(request: ClaimRequest) -> dict[str, int]:
    """The sizes of batches, by kind. Empty if no requested kind has batches."""
    return {kind.kind: kind.batch_size for kind in request.kinds if kind.batch_size}


async def take_members(
    session: Session, node_id: str, sizes: Mapping[str, int], leaders: Iterable[Claim]
) -> dict[int, list[Claim]]:
    """Claim the other tasks of the batches of these leaders. Returns the claims of each batch, leader first, by the id
    of the leader. Tasks without a key queue run alone, and are missing. The caller applies the follow-ups: the next
    task of a key queue may become a leader."""
    batches: dict[int, list[Claim]] = {}
    for leader in leaders:
        size = sizes.get(leader.kind)
        if size is None or leader.limit_key is None:
            continue
        members = await session.ready.take_members(node_id, leader, size - 1)
        members.sort(key=lambda claim: claim.id)
        batches[leader.id] = [replace(leader, batch_id=leader.id), *members]
        session.touched.add(leader.kind, leader.limit_key)
    return batches


# ---------------------------------------------------------------- suspects and refused tasks


def must_run_alone(task: LiveTask) -> bool:
    """Whether a task that gets requirements of its own must leave its key queue. A suspect must not run beside other
    tasks, and a task that a node has refused must not lead a batch that this node could run."""
    return task.batch_id is not None and task.limit_key is not None
