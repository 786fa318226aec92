"""Queries of the PostgreSQL store: reads rows as records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.nodes import NodeRecord
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.stores import columns
from synergon.stores.postgres.session import Session
from synergon.stores.rows import NodeCount, QueueRow, TaskCount
from synergon.stores.typed_rows import read_rows
from synergon.stores.unreadable import UnreadableRows


async def list_tasks(connection: Any, sql: Mapping[str, str], query: TaskQuery, unreadable: UnreadableRows) -> TaskPage:
    """One page, newest first: the newest of both tables, merged."""
    states = query.states if query.states is not None else frozenset(State)
    records: list[TaskRecord] = []
    for name, its_states in (("live_records", LIVE), ("final_records", FINAL)):
        wanted = states & its_states
        if wanted:
            is_narrowed = wanted != its_states
            rows = await _newest(connection, sql[name], query, wanted if is_narrowed else None)
            if rows:
                records += read_rows(TaskRecord, tuple(rows[0].keys()), rows, unreadable)
    records.sort(key=lambda record: -record.id)
    page = records[: query.limit]
    return TaskPage(tasks=tuple(page), next=page[-1].id if len(records) > query.limit else None)


async def _newest(connection: Any, table: str, query: TaskQuery, states: frozenset[State] | None) -> list[Any]:
    """One more row than the page holds, so that the last page is known to be the last."""
    conditions: list[str] = []
    values: list[Any] = []

    def where(condition: str, value: Any) -> None:
        values.append(value)
        conditions.append(condition.format(f"${len(values)}"))

    if states is not None:
        where("state = ANY ({})", sorted(states))
        if State.SUCCEEDED not in states and states <= FINAL:
            conditions.append("state <> 'succeeded'")
    for condition, value in columns.conditions(query):
        where(condition, value)
    if query.tag is not None:
        where("tags @> ARRAY[{}]", query.tag)
    if query.before is not None:
        where("id < {}", query.before)
    text = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    values.append(query.limit + 1)
    rows: list[Any] = await connection.fetch(f"{table}{text} ORDER BY id DESC LIMIT ${len(values)}", *values)
    return rows


async def counts(session: Session) -> dict[tuple[str, str, State], int]:
    """Exact numbers of tasks by queue, kind and state."""
    return {(row.queue, row.kind, row.state): row.count for row in await session.typed(TaskCount, "counts")}


async def queues(session: Session) -> list[QueueRecord]:
    """All queues with their counts."""
    by_queue: dict[str, dict[State, int]] = {}
    for (queue, _, state), number in (await counts(session)).items():
        numbers = by_queue.setdefault(queue, {})
        numbers[state] = numbers.get(state, 0) + number
    return [
        QueueRecord(name=row.name, paused_at=row.paused_at, counts=by_queue.get(row.name, {}))
        for row in await session.typed(QueueRow, "queues")
    ]


async def nodes(session: Session) -> list[NodeRecord]:
    """All registered nodes that can be read."""
    return await session.typed(NodeRecord, "nodes")


async def running_by_node(session: Session) -> dict[str, int]:
    """The number of running tasks of each node."""
    return {row.node_id: row.count for row in await session.typed(NodeCount, "running_by_node")}
