"""Finds waiting tasks whose arguments do not fit the functions of the app: workers with its code would refuse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from synergon.engine import Engine
from synergon.errors import PayloadError
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskQuery, TaskRecord
from synergon.task import AnyTask

WAITING_STATES: Final = frozenset({State.READY, State.WAITING, State.SCHEDULED})

MOST_READ: Final = 1000
"""How many tasks of each kind are checked, the newest first."""

Misfit = tuple[str, str]
"""The problem, and what to do about it."""


async def find_misfits(engine: Engine, counts: Mapping[tuple[str, str, State], int]) -> list[Misfit]:
    """Find the misfits among the waiting tasks of each kind of the app."""
    waiting = {kind for (_, kind, state), number in counts.items() if state in WAITING_STATES and number}
    found = [await _misfits_of(engine, engine.kinds[kind]) for kind in sorted(waiting & engine.kinds.keys())]
    return [misfit for misfit in found if misfit is not None]


async def _misfits_of(engine: Engine, task_type: AnyTask) -> Misfit | None:
    page = await engine._store.list_tasks(TaskQuery(states=WAITING_STATES, kinds=(task_type.kind,), limit=MOST_READ))
    errors = {task.id: error for task in page if (error := _misfit(task_type, task)) is not None}
    if not errors:
        return None
    task_id, error = next(iter(errors.items()))
    checked = f" of the newest {MOST_READ}" if page.next is not None else ""
    return (
        f"waiting tasks of kind {task_type.kind!r} that do not fit its function in this app: {len(errors)}{checked}; "
        f"task {task_id}: {error}",
        f"start workers with the code that enqueued them, or `synergon tasks cancel {task_id}`",
    )


def _misfit(task_type: AnyTask, task: TaskRecord) -> PayloadError | None:
    try:
        task_type.signature.decode(task.payload)
    except PayloadError as error:
        return error
    return None
