"""Queries of the PostgreSQL store. They read rows as records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.nodes import NodeRecord
from synergon.model.positions import Position, start_of
from synergon.model.record import from_datetime, to_datetime
from synergon.model.task_records import SEARCHED_TASKS, TaskPage, TaskQuery, TaskRecord
from synergon.stores.listing import Dialect, Found, bound_of, page_of, position_of, search_condition
from synergon.stores.listing import conditions as listing_conditions
from synergon.stores.postgres.session import Session
from synergon.stores.rows import NodeCount
from synergon.stores.typed_rows import read_rows
from synergon.stores.unreadable import UnreadableRows

LAST_ID: Final = 2**63 - 1
"""The greatest id that a task can have."""

DIALECT: Final = Dialect(among="{column} = ANY ({})", values=list, text="{column}", moment=to_datetime)


class Part(NamedTuple):
    """A part of a listing: rows of one table that one index has in order."""

    records: str
    positions: str
    key: str
    """The column by which its rows are sorted."""
    condition: str | None = None
    """A condition with constants, which the index has."""
    states: frozenset[State] | None = None
    """The states of its rows; None if the table or the condition has no others."""
    value: str = "{}"
    """A value of the key, as SQL. `{}` stands for it."""
    is_moment: bool = False
    """Whether the key is a moment."""


async def list_tasks(connection: Any, sql: Mapping[str, str], query: TaskQuery, unreadable: UnreadableRows) -> TaskPage:
    """One page of the matching tasks, in the order of the query, from both tables of tasks."""
    parts = list(parts_of(sql, query))
    bound = None
    if query.search is not None:
        found = [await _last_to_search(connection, query, part) for part in parts]
        bound = bound_of(query, [position for position in found if position is not None])
    matching: list[Found] = []
    for part in parts:
        rows = await _first(connection, sql, query, part, bound)
        matching += _read(query, rows, unreadable) if rows else []
    return page_of(query, matching, bound)


def parts_of(sql: Mapping[str, str], query: TaskQuery) -> Iterator[Part]:
    """The parts of a listing."""
    states = query.selected_states
    live, final = states & LIVE, states & FINAL
    if query.sort == "due":
        if live:
            yield Part(
                sql["live_records"], sql["live_positions"], "run_at", condition="state = 'scheduled'", is_moment=True
            )
    elif query.sort == "end":
        yield from _parts_by_end(sql, final)
    else:
        if live:
            wanted = live if live != LIVE else None
            yield Part(sql["live_records"], sql["live_positions"], "id", states=wanted)
        if final:
            wanted = final if final != FINAL else None
            yield Part(sql["final_records"], sql["final_positions"], "id", states=wanted)


def _parts_by_end(sql: Mapping[str, str], states: frozenset[State]) -> Iterator[Part]:
    records, positions = sql["ended_records"], sql["final_positions"]
    if "ended_in" not in records:  # the distributed profile has an index by state and end
        for state in sorted(states):
            yield Part(records, positions, "finished_at", condition=f"state = '{state}'", is_moment=True)
        return
    value = "{}::bigint::text::xid8"
    if State.SUCCEEDED in states:
        yield Part(records, positions, "ended_in", condition="reason IS NULL", value=value)
    if others := states - {State.SUCCEEDED}:
        yield Part(records, positions, "ended_in", condition="reason IS NOT NULL", states=others, value=value)


async def _first(
    connection: Any, sql: Mapping[str, str], query: TaskQuery, part: Part, bound: Position | None
) -> list[Any]:
    """The first matching rows of a part: one more than the page has, so that the last page is known to be the last."""
    if part.records is sql["live_records"] and part.states is not None and not query.ascending:
        # The newest rows first, which the primary key finds: a full page of them is the answer.
        recent = await connection.fetch(*statement_of(sql["recent_records"], query, part, bound))
        if len(recent) > query.limit:
            return list(recent)
    rows: list[Any] = await connection.fetch(*statement_of(part.records, query, part, bound))
    return rows


def _read(query: TaskQuery, rows: Sequence[Any], unreadable: UnreadableRows) -> list[Found]:
    names = tuple(rows[0].keys())
    if names[-1] != "number":
        return [Found(position_of(query, task), task) for task in read_rows(TaskRecord, names, rows, unreadable)]
    numbers = {row["id"]: row["number"] for row in rows}
    tasks = read_rows(TaskRecord, names[:-1], [tuple(row)[:-1] for row in rows], unreadable)
    return [Found(Position(numbers[task.id], task.id), task) for task in tasks]


async def _last_to_search(connection: Any, query: TaskQuery, part: Part) -> Position | None:
    """The position of the last task of a part that a page searches. None if the part has no more tasks than that."""
    key = f"{part.key}::text::bigint" if part.key == "ended_in" else part.key
    select = part.positions.replace("{key}", key)
    narrowed = msgspec.structs.replace(query, search=None, limit=1)
    sql, *values = statement_of(select, narrowed, part, None)
    rows = await connection.fetch(f"{sql} OFFSET {SEARCHED_TASKS - 1}", *values)
    if len(rows) < 2:
        return None
    found = rows[0]["key"]
    return Position(from_datetime(found) if part.is_moment else found, rows[0]["id"])


def statement_of(select: str, query: TaskQuery, part: Part, bound: Position | None = None) -> list[Any]:
    """The statement that reads the first rows of a part, and its values."""
    conditions: list[str] = []
    values: list[Any] = []

    def where(condition: str, *given: Any) -> None:
        numbers = [f"${len(values) + number}" for number in range(1, len(given) + 1)]
        values.extend(given)
        conditions.append(condition.format(*numbers))

    def beyond(position: Position, sign: str) -> None:
        if part.key == "id":
            where(f"id {sign} {{}}", position.id)
        else:
            key = to_datetime(position.key) if part.is_moment else position.key
            where(f"({part.key}, id) {sign} ({part.value}, {{}})", key, position.id)

    start = start_of(query)
    if start is not None:
        beyond(start, ">" if query.ascending else "<")
    elif part.key == "id":  # a range of the primary key, which the planner then reads in order
        beyond(Position(0, 0) if query.ascending else Position(LAST_ID, LAST_ID), ">=" if query.ascending else "<=")
    if part.condition is not None:
        where(part.condition)
    if part.states is not None:
        where("state = ANY ({})", sorted(part.states))
        if State.SUCCEEDED not in part.states and part.states <= FINAL:
            where("state <> 'succeeded'")
    for condition, value in listing_conditions(query, DIALECT):
        where(condition, value)
    if query.tag is not None:
        where("tags @> ARRAY[{}]", query.tag)
    if query.search is not None:
        text, patterns = search_condition(query.search, DIALECT)
        where(f"({text})", *patterns)
    if bound is not None:
        beyond(bound, "<=" if query.ascending else ">=")
    direction = "ASC" if query.ascending else "DESC"
    key = "" if part.key == "id" else f"{part.key} {direction}, "
    values.append(query.limit + 1)
    where_text = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return [f"{select}{where_text} ORDER BY {key}id {direction} LIMIT ${len(values)}", *values]


async def nodes(session: Session) -> list[NodeRecord]:
    """All registered nodes that can be read."""
    return await session.typed(NodeRecord, "nodes")


async def running_by_node(session: Session) -> dict[str, int]:
    """The number of running tasks of each node."""
    return {row.node_id: row.count for row in await session.typed(NodeCount, "running_by_node")}
