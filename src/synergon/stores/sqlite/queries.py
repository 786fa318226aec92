"""Queries of the SQLite store: reads rows as records."""

from __future__ import annotations

from typing import Any, Final

from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.record import to_datetime
from synergon.model.task_records import QueueRecord, TaskPage, TaskQuery, TaskRecord
from synergon.stores.columns import conditions
from synergon.stores.sqlite.transaction import SQL, Transaction, as_json

LIVE_RECORDS: Final = SQL["live_records"]
_FINAL_RECORDS: Final = SQL["final_records"]


def list_tasks(transaction: Transaction, query: TaskQuery) -> TaskPage:
    """One page, newest first: the newest tasks of both tables, merged."""
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
    """One more row than the page holds, so that the last page is known to be the last."""
    filters: list[tuple[str, Any]] = []
    if states is not None:
        filters.append(("state IN (SELECT value FROM json_each(?))", as_json(states)))
        if State.SUCCEEDED not in states and table is _FINAL_RECORDS:
            filters.append(("state <> 'succeeded' AND 1 = ?", 1))
    filters += [(condition.format("?"), value) for condition, value in conditions(query)]
    if query.tag is not None:
        filters.append(("tags IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)", query.tag))
    if query.before is not None:
        filters.append(("id < ?", query.before))
    where = f" WHERE {' AND '.join(text for text, _ in filters)}" if filters else ""
    return transaction.typed_select(
        TaskRecord, f"{table}{where} ORDER BY id DESC LIMIT ?", [*(value for _, value in filters), query.limit + 1]
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


def _moment(microseconds: int | None) -> Any:
    return to_datetime(microseconds) if microseconds is not None else None
