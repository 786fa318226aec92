"""Queries of the SQLite store. They read rows as records."""

from __future__ import annotations

from typing import Any, Final

from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.stores.columns import conditions
from synergon.stores.rows import NodeCount, QueueRow, TaskCount
from synergon.stores.sqlite.transaction import SQL, Transaction, as_json

LIVE_RECORDS: Final = SQL["live_records"]
_FINAL_RECORDS: Final = SQL["final_records"]


def list_tasks(transaction: Transaction, query: TaskQuery) -> TaskPage:
    """One page of the matching tasks, newest id first, from both tables of tasks."""
    states = query.states if query.states is not None else frozenset(State)
    records: list[TaskRecord] = []
    for table, its_states in ((LIVE_RECORDS, LIVE), (_FINAL_RECORDS, FINAL)):
        wanted = states & its_states
        if wanted:
            records += _newest(transaction, table, query, wanted if wanted != its_states else None)
    records.sort(key=lambda record: -record.id)
    page = records[: query.limit]
    return TaskPage(tasks=tuple(page), next=page[-1].id if len(records) > query.limit else None)


def _newest(
    transaction: Transaction, table: str, query: TaskQuery, states: frozenset[State] | None
) -> list[TaskRecord]:
    """The newest matching tasks of one table: one more than the page has, which shows whether there is a next page."""
    filters: list[tuple[str, Any]] = []
    if states is not None:
        filters.append(("state IN (SELECT value FROM json_each(?))", as_json(states)))
        if State.SUCCEEDED not in states and table is _FINAL_RECORDS:
            filters.append(("state <> 'succeeded' AND 1 = ?", 1))
    filters += [(condition.format("?"), value) for condition, value in conditions(query)]
    if query.tag is not None:
        # Tags that are not JSON would make the statement fail.
        tags = "json_each(iif(json_valid(tags), tags, '[]'))"
        filters.append((f"tags IS NOT NULL AND EXISTS (SELECT 1 FROM {tags} WHERE value = ?)", query.tag))
    if query.before is not None:
        filters.append(("id < ?", query.before))
    where = f" WHERE {' AND '.join(text for text, _ in filters)}" if filters else ""
    return transaction.typed_select(
        TaskRecord, f"{table}{where} ORDER BY id DESC LIMIT ?", [*(value for _, value in filters), query.limit + 1]
    )


def counts(transaction: Transaction) -> dict[tuple[str, str, State], int]:
    """Exact numbers of tasks by queue, kind and state."""
    return {(row.queue, row.kind, row.state): row.count for row in transaction.typed(TaskCount, "counts")}


def queues(transaction: Transaction) -> list[QueueRecord]:
    """All queues, by name, with their counts."""
    by_queue: dict[str, dict[State, int]] = {}
    for (queue, _, state), number in counts(transaction).items():
        numbers = by_queue.setdefault(queue, {})
        numbers[state] = numbers.get(state, 0) + number
    return [
        QueueRecord(name=row.name, paused_at=row.paused_at, counts=by_queue.get(row.name, {}))
        for row in transaction.typed(QueueRow, "queues")
    ]


def running_by_node(transaction: Transaction) -> dict[str, int]:
    """The number of running tasks of each node."""
    return {row.node_id: row.count for row in transaction.typed(NodeCount, "running_by_node")}
