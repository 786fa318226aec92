"""Queries of the SQLite store. They read rows as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.positions import Position, start_of
from synergon.model.task_records import SEARCHED_TASKS, Sort, TaskPage, TaskQuery, TaskRecord
from synergon.stores.listing import (
    Dialect,
    Found,
    bound_of,
    conditions,
    page_of,
    position_of,
    search_condition,
)
from synergon.stores.rows import NodeCount
from synergon.stores.sqlite.transaction import SQL, Transaction, as_json

LIVE_RECORDS: Final = SQL["live_records"]
_DIALECT: Final = Dialect(
    among="{column} IN (SELECT value FROM json_each({}))",
    values=as_json,
    text="CAST({column} AS TEXT)",
    moment=lambda moment: moment,
)
_KEYS: Final[dict[Sort, str]] = {"id": "id", "due": "run_at", "end": "finished_at"}


class _Part(NamedTuple):
    """A part of a listing: rows of one table that one index has in order."""

    records: str
    positions: str
    states: frozenset[State] | None
    """The states of its rows; None if the table has no others."""


def list_tasks(transaction: Transaction, query: TaskQuery) -> TaskPage:
    """One page of the matching tasks, in the order of the query, from both tables of tasks."""
    parts = list(_parts(query))
    bound = None
    if query.search is not None:
        found = (_last_to_search(transaction, query, part) for part in parts)
        bound = bound_of(query, [position for position in found if position is not None])
    matching = [task for part in parts for task in _first(transaction, query, part, bound)]
    return page_of(query, [Found(position_of(query, task), task) for task in matching], bound)


def _parts(query: TaskQuery) -> Iterator[_Part]:
    states = query.selected_states
    live, final = states & LIVE, states & FINAL
    # Sorted by end, there is one part for each state: the index has one state after the other.
    by_end = [frozenset({state}) for state in sorted(final)]
    if live:
        yield _Part(SQL["live_records"], SQL["live_positions"], live if live != LIVE else None)
    for wanted in by_end if query.sort == "end" else {final} - {frozenset()}:
        yield _Part(SQL["final_records"], SQL["final_positions"], wanted if wanted != FINAL else None)


def _first(transaction: Transaction, query: TaskQuery, part: _Part, bound: Position | None) -> list[TaskRecord]:
    """The first matching tasks of one part: one more than the page has, which shows whether there is a next page."""
    where = _conditions(query, part)
    if query.search is not None:
        text, values = search_condition(query.search, _DIALECT)
        where.append((f"({text.replace('{}', '?')})", values))
    if bound is not None:
        where.append(_beyond(query, bound, "<=" if query.ascending else ">="))
    return transaction.typed_select(TaskRecord, *_statement(part.records, query, where, query.limit + 1))


def _last_to_search(transaction: Transaction, query: TaskQuery, part: _Part) -> Position | None:
    """The position of the last task of a part that a page searches. None if the part has no more tasks than that."""
    sql, values = _statement(part.positions, query, _conditions(query, part), 2)
    sql = sql.replace("{key}", _KEYS[query.sort])
    rows = transaction.select(f"{sql} OFFSET ?", [*values, SEARCHED_TASKS - 1])
    return Position(*rows[0]) if len(rows) == 2 else None


def _conditions(query: TaskQuery, part: _Part) -> list[tuple[str, Sequence[Any]]]:
    where: list[tuple[str, Sequence[Any]]] = []
    states = part.states
    if states is not None and query.sort != "id":
        # A constant, for the index that has rows of this state in this order. By id no index of a state is of use.
        where.append((f"state = '{next(iter(states))}'", ()))
    elif states is not None:
        where.append(("state IN (SELECT value FROM json_each(?))", [as_json(states)]))
        if State.SUCCEEDED not in states and states <= FINAL:
            where.append(("state <> 'succeeded'", ()))
    where += [(condition.format("?"), [value]) for condition, value in conditions(query, _DIALECT)]
    if query.tag is not None:
        # Tags that are not JSON would make the statement fail.
        tags = "json_each(iif(json_valid(tags), tags, '[]'))"
        where.append((f"tags IS NOT NULL AND EXISTS (SELECT 1 FROM {tags} WHERE value = ?)", [query.tag]))
    start = start_of(query)
    if start is not None:
        where.append(_beyond(query, start, ">" if query.ascending else "<"))
    return where


def _beyond(query: TaskQuery, position: Position, sign: str) -> tuple[str, Sequence[Any]]:
    if query.sort == "id":
        return f"id {sign} ?", [position.id]
    return f"({_KEYS[query.sort]}, id) {sign} (?, ?)", position


def _statement(
    select: str, query: TaskQuery, where: Sequence[tuple[str, Sequence[Any]]], limit: int
) -> tuple[str, list[Any]]:
    direction = "ASC" if query.ascending else "DESC"
    key = "" if query.sort == "id" else f"{_KEYS[query.sort]} {direction}, "
    conditions = f" WHERE {' AND '.join(text for text, _ in where)}" if where else ""
    values = [value for _, some in where for value in some]
    return f"{select}{conditions} ORDER BY {key}id {direction} LIMIT ?", [*values, limit]


def running_by_node(transaction: Transaction) -> dict[str, int]:
    """The number of running tasks of each node."""
    return {row.node_id: row.count for row in transaction.typed(NodeCount, "running_by_node")}
