"""Queries of the memory store, which change nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from itertools import chain, islice, takewhile

from synergon.model.claims import CandidateQuery
from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.model.requirements import is_suitable
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.stores.columns import matches
from synergon.stores.memory.key_queues import key_queue_name
from synergon.stores.memory.ready_groups import Position
from synergon.stores.memory.ready_rows import open_groups
from synergon.stores.memory.row import Row, record_of
from synergon.stores.memory.tables import Tables
from synergon.stores.rules.node_capacity import requirements_of


def list_tasks(tables: Tables, query: TaskQuery) -> TaskPage:
    """One page of the matching tasks, newest id first."""
    matching = (row for row in _newest_first(tables, query.before) if _matches(row, query))
    found = list(islice(matching, query.limit + 1))
    page = found[: query.limit]
    has_more = len(found) > len(page)
    return TaskPage(tasks=tuple(record_of(row) for row in page), next=page[-1].id if has_more and page else None)


def _newest_first(tables: Tables, before: int | None) -> Iterator[Row]:
    if before is None:
        return reversed(tables.rows.values())
    ids = list(tables.rows)
    return (tables.rows[ids[index]] for index in range(bisect_left(ids, before) - 1, -1, -1))


def _matches(row: Row, query: TaskQuery) -> bool:
    task = row.task
    return (
        (query.states is None or row.state in query.states)
        and matches(task, query)
        and (query.tag is None or query.tag in task.tags)
    )


def counts(tables: Tables) -> dict[tuple[str, str, State], int]:
    """The numbers of tasks by queue, kind and state."""
    return {
        (queue, kind, state): number
        for (queue, kind), tally in tables.tallies.items()
        for state, number in tally.items()
        if number
    }


def queues(tables: Tables) -> list[QueueRecord]:
    """All queues, by name, with their counts."""
    numbers: dict[str, dict[State, int]] = {name: {} for name in tables.queues}
    for (queue, _, state), number in counts(tables).items():
        numbers[queue][state] = numbers[queue].get(state, 0) + number
    return [
        QueueRecord(name=name, paused_at=None if paused_at is None else to_datetime(paused_at), counts=numbers[name])
        for name, paused_at in sorted(tables.queues.items())
    ]


def read_candidates(tables: Tables, query: CandidateQuery, now: int) -> list[TaskRecord]:
    """Ready tasks of a kind in claim order, except those whose requirements the node can never meet."""
    after = None if query.after is None else (-query.after[0], query.after[1])
    suitable = (
        ready_group.rows(after)
        for ready_group in open_groups(tables, query.kind_request.kind, query.queues)
        if is_suitable(requirements_of(query.kind_request, ready_group.requirements), query.labels, query.totals)
    )
    fresh = (row for row in merge(*suitable, key=_position) if row.expires_at is None or row.expires_at > now)
    return [record_of(row) for row in islice(fresh, query.limit)]


def ahead(tables: Tables, task_id: int, limit: int) -> int | None:
    """How many tasks with this task's kind, state and key queue precede it."""
    row = tables.rows.get(task_id)
    if row is None or row.state not in (State.READY, State.WAITING):
        return None
    before = (other for other in _others(tables, row) if _position(other) < _position(row))
    return sum(1 for _ in islice(before, limit))


def _others(tables: Tables, row: Row) -> Iterator[Row]:
    """Tasks that may precede this one. For a ready task without a key queue: exactly the tasks that precede it."""
    name = key_queue_name(row)
    if name is not None:
        return tables.key_queues[name].rows(row.state)
    if row.state is State.WAITING:
        return _waiting(tables, row.task.kind)
    ready = tables.ready
    ready_groups = ready.ready_commands(row.task.kind) if row.task.is_command else ready.ready_groups(row.task.kind)
    mine = _position(row)
    return chain.from_iterable(
        takewhile(lambda other: _position(other) < mine, ready_group.rows()) for ready_group in ready_groups
    )


def _waiting(tables: Tables, kind: str) -> Iterator[Row]:
    for key_queue in tables.key_queues_of(kind):
        yield from key_queue.rows(State.WAITING)
    for group in tables.groups.values():
        yield from (row for row in group.followers.values() if row.task.kind == kind)


def _position(row: Row) -> Position:
    return -row.priority, row.id
