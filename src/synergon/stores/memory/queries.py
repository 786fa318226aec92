"""Queries of the memory store. They change nothing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import merge
from itertools import chain, islice, takewhile

import msgspec

from synergon.model.claims import CandidateQuery
from synergon.model.lifecycle import State
from synergon.model.positions import RANGES, Position, start_of
from synergon.model.requirements import is_suitable
from synergon.model.task_records import SEARCHED_TASKS, SORTED_STATES, TaskPage, TaskQuery, TaskRecord
from synergon.stores.columns import matches
from synergon.stores.listing import Found, has_meta, json_forms, page_of
from synergon.stores.memory.key_queues import key_queue_name
from synergon.stores.memory.ready_groups import Position as ReadyPosition
from synergon.stores.memory.ready_rows import open_groups
from synergon.stores.memory.row import Row, record_of
from synergon.stores.memory.tables import Tables
from synergon.stores.rules.node_capacity import requirements_of


def list_tasks(tables: Tables, query: TaskQuery) -> TaskPage:
    """One page of the matching tasks, in the order of the query."""
    start, states = start_of(query), query.selected_states
    rows = (row for row in _in_order(tables, query, start) if row.state in states and _matches(row, query))
    if query.search is None:
        return page_of(query, [_found(query, row) for row in islice(rows, query.limit + 1)])
    looked_at = list(islice(rows, SEARCHED_TASKS + 1))
    searched, text = looked_at[:SEARCHED_TASKS], query.search.lower()
    bound = _listed_at(query, searched[-1]) if len(looked_at) > SEARCHED_TASKS else None
    found = (row for row in searched if _contains(row, text))
    return page_of(query, [_found(query, row) for row in islice(found, query.limit + 1)], bound)


def _in_order(tables: Tables, query: TaskQuery, start: Position | None) -> Iterator[Row]:
    """The rows after the position, in the order of the listing."""
    if query.sort == "id":
        ids = list(tables.rows)
        if query.ascending:
            first = 0 if start is None else bisect_right(ids, start.id)
            return (tables.rows[ids[index]] for index in range(first, len(ids)))
        end = len(ids) if start is None else bisect_left(ids, start.id)
        return (tables.rows[ids[index]] for index in range(end - 1, -1, -1))
    states = SORTED_STATES[query.sort]
    placed = [(_listed_at(query, row), row) for row in tables.rows.values() if row.state in states]
    if start is not None:
        placed = [one for one in placed if (one[0] > start if query.ascending else one[0] < start)]
    placed.sort(key=lambda one: one[0], reverse=not query.ascending)
    return (row for _, row in placed)


def _listed_at(query: TaskQuery, row: Row) -> Position:
    return Position({"id": row.id, "due": row.run_at, "end": row.finished_at or 0}[query.sort], row.id)


def _found(query: TaskQuery, row: Row) -> Found:
    return Found(_listed_at(query, row), record_of(row))


def _matches(row: Row, query: TaskQuery) -> bool:
    task = row.task
    return (
        (query.kinds is None or task.kind in query.kinds)
        and (query.nodes is None or row.node_id in query.nodes)
        and matches(task, query)
        and (query.tag is None or query.tag in task.tags)
        and (query.meta is None or has_meta(query, record_of(row)))
        and all(_is_within(query, column, getattr(row, f"{column}_at")) for column in RANGES)
    )


def _is_within(query: TaskQuery, column: str, moment: int | None) -> bool:
    since, until = getattr(query, f"{column}_since"), getattr(query, f"{column}_until")
    if since is None and until is None:
        return True
    return moment is not None and (since is None or since <= moment) and (until is None or moment < until)


def _contains(row: Row, text: str) -> bool:
    """Whether the arguments or errors contain `text`, which is in lower case. Searches their JSON, as the other stores
    do."""
    documents = [value.decode().lower() for value in (row.task.payload, msgspec.json.encode(row.errors))]
    return any(form in document for form in json_forms(text) for document in documents)


def read_candidates(tables: Tables, query: CandidateQuery, now: int) -> list[TaskRecord]:
    """Ready tasks of a kind in claim order, except expired ones, those of paused queues, and those whose requirements
    the node can never meet."""
    after = None if query.after is None else (-query.after[0], *query.after[1:])
    suitable = (
        ready_group.rows(after)
        for ready_group in open_groups(tables, query.kind_request.kind, query.queues)
        if is_suitable(
            requirements_of(query.kind_request, ready_group.requirements), query.labels, query.totals, query.node_id
        )
    )
    fresh = (row for row in merge(*suitable, key=_position) if row.expires_at is None or row.expires_at > now)
    return [record_of(row) for row in islice(fresh, query.limit)]


def ahead(tables: Tables, task_id: int, limit: int) -> int | None:
    """How many tasks with this task's kind, state and key queue precede it, at most `limit`. None if the task is
    neither `ready` nor `waiting`."""
    row = tables.rows.get(task_id)
    if row is None or row.state not in (State.READY, State.WAITING):
        return None
    return sum(1 for _ in islice(preceding(tables, row), limit))


def preceding(tables: Tables, row: Row) -> Iterator[Row]:
    """The tasks with this task's kind, state and key queue that precede it, in no order."""
    mine = _position(row)
    return (other for other in _others(tables, row) if _position(other) < mine)


def _others(tables: Tables, row: Row) -> Iterator[Row]:
    """The tasks that `preceding` filters: those with this task's kind, state and key queue. For a ready task without a
    key queue, only the tasks that precede it."""
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
    yield from (row for row in tables.dependent.values() if row.task.kind == kind)


def _position(row: Row) -> ReadyPosition:
    return -row.priority, row.fair_tag, row.id
