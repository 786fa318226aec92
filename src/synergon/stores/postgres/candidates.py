"""Queries over ready and waiting tasks: the candidates of a claim, and the tasks that precede a task. They change
nothing."""

from __future__ import annotations

from typing import Final

from synergon.model.claims import CandidateQuery
from synergon.model.lifecycle import State
from synergon.model.requirements import is_suitable
from synergon.model.task_records import TaskRecord
from synergon.stores.postgres.session import Session
from synergon.stores.rules.node_capacity import requirements_of

BEFORE_ALL: Final = (2**63 - 1, 0, 0)
"""A position before that of every task."""


async def read_candidates(session: Session, query: CandidateQuery) -> list[TaskRecord]:
    """Ready tasks of a kind in claim order, except expired ones, those of paused queues, and those whose requirements
    the node can never meet."""
    kind_request = query.kind_request
    queues = sorted(query.queues) if query.queues is not None else None
    found = [row["requirements"] for row in await session.rows("requirement_texts", kind_request.kind, queues)]
    requirement_texts = [
        text
        for text in found
        if is_suitable(requirements_of(kind_request, text), query.labels, query.totals, query.node_id)
    ]
    if not requirement_texts:
        return []
    after = query.after or BEFORE_ALL
    asked = (kind_request.kind, requirement_texts, queues, *after, query.limit)
    records = await session.typed(TaskRecord, "first_in_ready_groups", *asked)
    return sorted(records, key=lambda record: (-record.priority, record.fair_tag, record.id))


async def ahead(session: Session, task_id: int, limit: int) -> int | None:
    """How many tasks with this task's kind, state and key queue precede it, at most `limit`. None if the task is
    neither `ready` nor `waiting`."""
    row = await session.row("position_of", task_id)
    if row is None:
        return None
    kind, state, priority, fair_tag, limit_key, is_dependent = row
    if limit_key is None and state == State.READY:
        found = await session.value("ahead_ready", kind, priority, fair_tag, task_id, limit)
    elif limit_key is None or is_dependent:
        found = await session.value("ahead_dependent", kind, limit_key, priority, task_id, limit)
    else:
        found = await session.value("ahead_in_key_queue", kind, limit_key, state, priority, task_id, limit)
    count: int = found
    return count


async def next_start(session: Session, kind: str, limit_key: str) -> int | None:
    """The moment from which the next start of a key queue is within its rate, as stored. None if no value is stored."""
    row = await session.row("next_start", kind, limit_key)
    return None if row is None else int(row["next_at"])
