"""Queries of the PostgreSQL store: reads rows as records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.nodes import NodeRecord, ProcessIdentity
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.stores import columns
from synergon.stores.postgres.session import Session
from synergon.stores.typed_rows import read_rows


async def list_tasks(connection: Any, sql: Mapping[str, str], query: TaskQuery) -> TaskPage:
    """One page, newest first: the newest of both tables, merged."""
    states = query.states if query.states is not None else frozenset(State)
    records: list[TaskRecord] = []
    for name, its_states in (("live_records", LIVE), ("final_records", FINAL)):
        wanted = states & its_states
        if wanted:
            is_narrowed = wanted != its_states
            records += await _newest(connection, sql[name], query, wanted if is_narrowed else None)
    records.sort(key=lambda record: -record.id)
    page = records[: query.limit]
    return TaskPage(tasks=tuple(page), next=page[-1].id if len(records) > query.limit else None)


async def _newest(connection: Any, table: str, query: TaskQuery, states: frozenset[State] | None) -> list[TaskRecord]:
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
    return read_rows(TaskRecord, rows)


async def counts(session: Session) -> dict[tuple[str, str, State], int]:
    """Exact numbers of tasks by queue, kind and state."""
    return {(queue, kind, State(state)): number for queue, kind, state, number in await session.rows("counts")}


async def queues(session: Session) -> list[QueueRecord]:
    """All queues with their counts."""
    by_queue: dict[str, dict[State, int]] = {}
    for (queue, _, state), number in (await counts(session)).items():
        numbers = by_queue.setdefault(queue, {})
        numbers[state] = numbers.get(state, 0) + number
    return [
        QueueRecord(name=name, paused_at=paused_at, counts=by_queue.get(name, {}))
        for name, paused_at in await session.rows("queues")
    ]


async def nodes(session: Session) -> list[NodeRecord]:
    """All registered nodes."""
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
            is_stopping=row["is_stopping"],
            published=msgspec.Raw(row["published"].encode()),
            published_ago=row["published_ago"],
        )
        for row in await session.rows("nodes")
    ]
