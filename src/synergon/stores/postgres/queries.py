"""Queries of the PostgreSQL store: reads rows as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import FINAL, LIVE, Reason, State
from synergon.model.nodes import NodeRecord, ProcessIdentity
from synergon.model.outcomes import Progress
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.stores.postgres.session import Session
from synergon.stores.typed_rows import decode_errors

_KEEPER: Final = "CASE WHEN reserved_until > now() THEN reserved_by END AS keeper"


async def get(session: Session, ids: Sequence[int]) -> list[TaskRecord | None]:
    """These tasks, live or final."""
    rows = await session.rows("get_live", list(ids)) + await session.rows("get_ended", list(ids))
    found = {row["id"]: record_of(row) for row in rows}
    return [found.get(task_id) for task_id in ids]


async def list_tasks(connection: Any, schema: str, query: TaskQuery) -> TaskPage:
    """One page, newest first: the newest tasks of both tables, merged."""
    states = query.states if query.states is not None else frozenset(State)
    rows: list[Any] = []
    live = (
        f"SELECT NULL AS reason, NULL::timestamptz AS finished_at, NULL AS result, task.*, {_KEEPER} FROM {schema}.task"
    )
    for table, its_states in ((live, LIVE), (f"SELECT * FROM {schema}.history", FINAL)):
        wanted = states & its_states
        if wanted:
            rows += await _newest(connection, table, query, wanted if wanted != its_states else None)
    rows.sort(key=lambda row: -int(row["id"]))
    page = rows[: query.limit]
    return TaskPage(
        tasks=tuple(record_of(row) for row in page), next=page[-1]["id"] if len(rows) > query.limit else None
    )


async def _newest(connection: Any, table: str, query: TaskQuery, states: frozenset[State] | None) -> list[Any]:
    """The newest rows of one table: one more than the page holds, which shows whether it is the last page."""
    conditions: list[str] = []
    values: list[Any] = []

    def where(condition: str, value: Any) -> None:
        values.append(value)
        conditions.append(condition.format(f"${len(values)}"))

    if states is not None:
        where("state = ANY ({})", sorted(states))
        if State.SUCCEEDED not in states and "history" in table:
            conditions.append("state <> 'succeeded'")
    for column, value in (("kind", query.kind), ("queue", query.queue), ("key", query.key)):
        if value is not None:
            where(f"{column} = {{}}", value)
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


def record_of(row: Any) -> TaskRecord:
    """The record of a row of either table of tasks."""
    return TaskRecord(
        id=row["id"],
        kind=row["kind"],
        queue=row["queue"],
        state=State(row["state"]),
        reason=Reason(row["reason"]) if row["reason"] else None,
        priority=row["priority"],
        run_at=row["run_at"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        crashes=row["crashes"],
        claim_no=row["claim_no"],
        node_id=row["node_id"],
        server=row["server"],
        enqueued_at=row["enqueued_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        expires_at=row["expires_at"],
        cancel_requested=row["cancel_requested"],
        overdue=row["overdue"],
        payload=msgspec.Raw(row["payload"].encode()),
        overrides=msgspec.Raw(row["overrides"].encode()) if row["overrides"] else None,
        result_json=msgspec.Raw(row["result"].encode()) if row["result"] is not None else None,
        errors=decode_errors(row["errors"]),
        progress=msgspec.json.decode(row["progress"], type=Progress) if row["progress"] else None,
        key=row["key"],
        limit_key=row["limit_key"],
        group_id=row["group_id"],
        after_group=row.get("after_group"),
        is_command=row["is_command"],
        target=row["target"],
        requirements=row["requirements"],
        reserved_by=row.get("keeper"),
        tags=tuple(row["tags"] or ()),
        meta=msgspec.json.decode(row["meta"]) if row["meta"] else {},
    )
