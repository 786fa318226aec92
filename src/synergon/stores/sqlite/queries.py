"""Queries of the SQLite store: reads rows as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from synergon.model.lifecycle import FINAL, LIVE, Reason, State
from synergon.model.outcomes import Progress
from synergon.model.record import to_datetime
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.stores.sqlite.transaction import Transaction, as_json, decode_tags
from synergon.stores.typed_rows import decode_errors

_COLUMNS: Final = (
    "id, kind, queue, state, {reason}, priority, run_at, attempts, max_attempts, crashes, claim_no, node_id, server, "
    "enqueued_at, started_at, {finished_at}, expires_at, cancel_requested, overdue, payload, overrides, {result}, "
    "errors, progress, key, tags, meta, limit_key, group_id, {after_group}, is_command, target, requirements, "
    "{reserved_by}"
)
_LIVE_COLUMNS: Final = _COLUMNS.format(
    reason="NULL", finished_at="NULL", result="NULL", after_group="after_group", reserved_by="reserved_by"
)
_ENDED_COLUMNS: Final = _COLUMNS.format(
    reason="reason", finished_at="finished_at", result="result", after_group="NULL", reserved_by="NULL"
)
LIVE_TASKS: Final = f"SELECT {_LIVE_COLUMNS} FROM synergon_task"
_ENDED: Final = f"SELECT {_ENDED_COLUMNS} FROM synergon_history"


def get(transaction: Transaction, ids: Sequence[int]) -> list[TaskRecord | None]:
    """These tasks, live or final."""
    wanted = as_json(ids)
    where = " WHERE id IN (SELECT value FROM json_each(?))"
    rows = transaction.select(LIVE_TASKS + where, (wanted,)) + transaction.select(_ENDED + where, (wanted,))
    found = {row[0]: record(row) for row in rows}
    return [found.get(task_id) for task_id in ids]


def list_tasks(transaction: Transaction, query: TaskQuery) -> TaskPage:
    """One page, newest first: the newest tasks of both tables, merged."""
    states = query.states if query.states is not None else frozenset(State)
    rows: list[Any] = []
    for table, its_states in ((LIVE_TASKS, LIVE), (_ENDED, FINAL)):
        wanted = states & its_states
        if wanted:
            rows += _newest(transaction, table, query, wanted if wanted != its_states else None)
    rows.sort(key=lambda row: -int(row[0]))
    page = rows[: query.limit]
    return TaskPage(
        tasks=tuple(record(row) for row in page),
        next=page[-1][0] if len(rows) > query.limit else None,
    )


def _newest(transaction: Transaction, table: str, query: TaskQuery, states: frozenset[State] | None) -> list[Any]:
    """The newest rows of one table: one more than the page holds, which shows whether it is the last page."""
    filters: list[tuple[str, Any]] = []
    if states is not None:
        filters.append(("state IN (SELECT value FROM json_each(?))", as_json(states)))
        if State.SUCCEEDED not in states and table is _ENDED:
            filters.append(("state <> 'succeeded' AND 1 = ?", 1))
    for column, value in (("kind", query.kind), ("queue", query.queue), ("key", query.key)):
        if value is not None:
            filters.append((f"{column} = ?", value))
    if query.tag is not None:
        filters.append(("tags IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)", query.tag))
    if query.before is not None:
        filters.append(("id < ?", query.before))
    where = f" WHERE {' AND '.join(text for text, _ in filters)}" if filters else ""
    return transaction.select(
        f"{table}{where} ORDER BY id DESC LIMIT ?", [*(value for _, value in filters), query.limit + 1]
    )


def counts(transaction: Transaction) -> dict[tuple[str, str, State], int]:
    """Exact numbers of tasks by queue, kind and state."""
    return {(queue, kind, State(state)): number for queue, kind, state, number in transaction.rows("counts")}


def queues(transaction: Transaction) -> list[QueueRecord]:
    """All queues with their counts."""
    by_queue: dict[str, dict[State, int]] = {}
    for (queue, _, state), number in counts(transaction).items():
        numbers = by_queue.setdefault(queue, {})
        numbers[state] = numbers.get(state, 0) + number
    return [
        QueueRecord(name=name, paused_at=_moment(paused_at), counts=by_queue.get(name, {}))
        for name, paused_at in transaction.rows("queues")
    ]


def record(row: tuple[Any, ...]) -> TaskRecord:
    """The record of a row of either table of tasks."""
    (
        task_id, kind, queue, state, reason, priority, run_at, attempts, max_attempts, crashes, claim_no, node_id,
        server, enqueued_at, started_at, finished_at, expires_at, cancel_requested, overdue, payload, overrides, result,
        errors, progress, key, tags, meta, limit_key, group_id, after_group, is_command, target, requirements,
        reserved_by,
    ) = row  # fmt: skip
    return TaskRecord(
        id=task_id,
        kind=kind,
        queue=queue,
        state=State(state),
        reason=Reason(reason) if reason else None,
        priority=priority,
        run_at=to_datetime(run_at),
        attempts=attempts,
        max_attempts=max_attempts,
        crashes=crashes,
        claim_no=claim_no,
        node_id=node_id,
        server=server,
        enqueued_at=to_datetime(enqueued_at),
        started_at=_moment(started_at),
        finished_at=_moment(finished_at),
        expires_at=_moment(expires_at),
        cancel_requested=bool(cancel_requested),
        overdue=bool(overdue),
        payload=msgspec.Raw(payload),
        overrides=msgspec.Raw(overrides) if overrides else None,
        result_json=msgspec.Raw(result) if result is not None else None,
        errors=decode_errors(errors),
        progress=msgspec.json.decode(progress, type=Progress) if progress else None,
        key=key,
        limit_key=limit_key,
        group_id=group_id,
        after_group=after_group,
        is_command=bool(is_command),
        target=target,
        requirements=requirements,
        reserved_by=reserved_by,
        tags=decode_tags(tags),
        meta=msgspec.json.decode(meta) if meta else {},
    )


def _moment(microseconds: int | None) -> Any:
    return to_datetime(microseconds) if microseconds is not None else None
