"""Queries of the PostgreSQL store. They read rows as records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.nodes import NodeRecord, ProcessIdentity
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.stores import columns
from synergon.stores.postgres.session import Session
from synergon.stores.typed_rows import read_rows

AFTER_ALL: Final = 2**63 - 1
"""No task has a greater id."""


async def list_tasks(connection: Any, sql: Mapping[str, str], query: TaskQuery) -> TaskPage:
    """One page of the matching tasks, newest id first, from both tables of tasks."""
    states = query.states if query.states is not None else frozenset(State)
    records: list[TaskRecord] = []
    live, final = states & LIVE, states & FINAL
    if live:
        records += await _newest_live(connection, sql, query, live)
    if final:
        records += await _newest(connection, sql["final_records"], query, final if final != FINAL else None)
    records.sort(key=lambda record: -record.id)
    page = records[: query.limit]
    return TaskPage(tasks=tuple(page), next=page[-1].id if len(records) > query.limit else None)


async def _newest_live(
    connection: Any, sql: Mapping[str, str], query: TaskQuery, states: frozenset[State]
) -> list[TaskRecord]:
    if states == LIVE:
        return await _newest(connection, sql["live_records"], query, None)
    # The newest rows first, which the primary key finds: a full page of them is the answer.
    recent = await _newest(connection, sql["recent_records"], query, states)
    return recent if len(recent) > query.limit else await _newest(connection, sql["live_records"], query, states)


async def _newest(connection: Any, table: str, query: TaskQuery, states: frozenset[State] | None) -> list[TaskRecord]:
    sql, values = page_of(table, query, states)
    return read_rows(TaskRecord, await connection.fetch(sql, *values))


def page_of(table: str, query: TaskQuery, states: frozenset[State] | None) -> tuple[str, list[Any]]:
    """The statement that reads one more row than the page holds, so that the last page is known to be the last."""
    conditions: list[str] = []
    values: list[Any] = []

    def where(condition: str, value: Any) -> None:
        values.append(value)
        conditions.append(condition.format(f"${len(values)}"))

    where("id < {}", query.before if query.before is not None else AFTER_ALL)
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
    return {(queue, kind, State(state)): number for queue, kind, state, number in await session.rows("counts")}


async def queues(session: Session) -> list[QueueRecord]:
    """All queues, by name, with their counts."""
    by_queue: dict[str, dict[State, int]] = {}
    for (queue, _, state), number in (await counts(session)).items():
        numbers = by_queue.setdefault(queue, {})
        numbers[state] = numbers.get(state, 0) + number
    return [
        QueueRecord(name=name, paused_at=paused_at, counts=by_queue.get(name, {}))
        for name, paused_at in await session.rows("queues")
    ]


async def nodes(session: Session) -> list[NodeRecord]:
    """All registered nodes, including dead ones that are not reaped yet."""
    return [
        NodeRecord(
            id=row["id"],
            name=row["name"],
            process=msgspec.json.decode(row["process"], type=ProcessIdentity),
            kinds=tuple(row["kinds"]),
            queues=tuple(row["queues"]) if row["queues"] is not None else None,
            concurrency=row["concurrency"],
            version=row["version"],
            address=row["address"],
            registered_at=row["registered_at"],
            lease_remaining=row["lease_remaining"],
            cordoned_at=row["cordoned_at"],
            published=msgspec.Raw(row["published"].encode()),
            published_ago=row["published_ago"],
        )
        for row in await session.rows("nodes")
    ]
