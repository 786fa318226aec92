"""Queries of the PostgreSQL store. They read rows as records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.nodes import NodeRecord
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.stores import columns
from synergon.stores.postgres.session import Session
from synergon.stores.rows import NodeCount, QueueRow, TaskCount
from synergon.stores.typed_rows import read_rows
from synergon.stores.unreadable import UnreadableRows

LAST_ID: Final = 2**63 - 1
"""The greatest id that a task can have."""


async def list_tasks(connection: Any, sql: Mapping[str, str], query: TaskQuery, unreadable: UnreadableRows) -> TaskPage:
    """One page of the matching tasks, newest id first, from both tables of tasks."""
    states = query.states if query.states is not None else frozenset(State)
    rows: list[Any] = []
    live, final = states & LIVE, states & FINAL
    if live:
        rows += await _newest_live(connection, sql, query, live)
    if final:
        rows += await _newest(connection, sql["final_records"], query, final if final != FINAL else None)
    records = read_rows(TaskRecord, tuple(rows[0].keys()), rows, unreadable) if rows else []
    records.sort(key=lambda record: -record.id)
    page = records[: query.limit]
    return TaskPage(tasks=tuple(page), next=page[-1].id if len(records) > query.limit else None)


async def _newest_live(
    connection: Any, sql: Mapping[str, str], query: TaskQuery, states: frozenset[State]
) -> list[Any]:
    if states == LIVE:
        return await _newest(connection, sql["live_records"], query, None)
    # The newest rows first, which the primary key finds: a full page of them is the answer.
    recent = await _newest(connection, sql["recent_records"], query, states)
    return recent if len(recent) > query.limit else await _newest(connection, sql["live_records"], query, states)


async def _newest(connection: Any, table: str, query: TaskQuery, states: frozenset[State] | None) -> list[Any]:
    sql, values = page_of(table, query, states)
    rows: list[Any] = await connection.fetch(sql, *values)
    return rows


def page_of(table: str, query: TaskQuery, states: frozenset[State] | None) -> tuple[str, list[Any]]:
    """The statement that reads one more row than the page holds, so that the last page is known to be the last."""
    conditions: list[str] = []
    values: list[Any] = []

    def where(condition: str, value: Any) -> None:
        values.append(value)
        conditions.append(condition.format(f"${len(values)}"))

    if query.before is not None:
        where("id < {}", query.before)
    else:
        where("id <= {}", LAST_ID)  # a range of the primary key, which the planner then reads backwards
    if states is not None:
        where("state = ANY ({})", sorted(states))
        if State.SUCCEEDED not in states and states <= FINAL:
            conditions.append("state <> 'succeeded'")
    for condition, value in columns.conditions(query):
        where(condition, value)
    if query.tag is not None:
        where("tags @> ARRAY[{}]", query.tag)
    values.append(query.limit + 1)
    return f"{table} WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT ${len(values)}", values


async def counts(session: Session) -> dict[tuple[str, str, State], int]:
    """Exact numbers of tasks by queue, kind and state."""
    return {(row.queue, row.kind, row.state): row.count for row in await session.typed(TaskCount, "counts")}


async def queues(session: Session) -> list[QueueRecord]:
    """All queues, by name, with their counts."""
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
