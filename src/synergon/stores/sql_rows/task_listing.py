"""Listings of tasks in both databases: composes the statements of a page, and makes the page from their rows.

A listing has parts. Each part reads rows of one table in the order of one index, so that no statement sorts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.positions import Position, start_of
from synergon.model.record import from_datetime
from synergon.model.task_records import SEARCHED_TASKS, TaskPage, TaskQuery
from synergon.stores.listing import Dialect, Found, bound_of, page_of, search_condition
from synergon.stores.listing import conditions as listing_conditions

LAST_ID: Final = 2**63 - 1
"""The greatest id that a task can have."""


class Part(NamedTuple):
    """A part of a listing: rows of one table, read in the order of one index."""

    records: str
    positions: str
    key: str
    """The column by which its rows are sorted."""
    condition: str | None = None
    """The condition of the partial index that is read. None if the index is not partial."""
    states: frozenset[State] | None = None
    """The states that its rows must have. None if all rows of the table that meet the condition are wanted."""
    value: str = "{}"
    """The SQL expression for a value of the key. `{}` stands for the parameter."""
    is_moment: bool = False
    """Whether the key is a moment."""


class Reader(Protocol):
    """Runs the statements of a listing on one snapshot of a store."""

    dialect: Dialect
    sql: Mapping[str, str]

    async def tasks(self, query: TaskQuery, statement: str, values: Sequence[Any]) -> list[Found]:
        """The tasks that a statement finds, with their positions."""

    async def positions(self, statement: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """The rows of a statement: a key and an id each."""


async def list_tasks(reader: Reader, query: TaskQuery) -> TaskPage:
    """One page of the matching tasks, in the order of the query, from both tables of tasks."""
    parts = list(parts_of(reader.sql, query))
    bound = None
    if query.search is not None:
        found = [await _last_to_search(reader, query, part) for part in parts]
        bound = bound_of(query, [position for position in found if position is not None])
    matching: list[Found] = []
    for part in parts:
        matching += await _first(reader, query, part, bound)
    return page_of(query, matching, bound)


def parts_of(sql: Mapping[str, str], query: TaskQuery) -> Iterator[Part]:
    """The parts that together answer this query."""
    states = query.selected_states
    live, final = states & LIVE, states & FINAL
    if query.sort == "due":
        if live:
            scheduled = "state = 'scheduled'"
            yield Part(sql["live_records"], sql["live_positions"], "run_at", condition=scheduled, is_moment=True)
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
    records, positions = sql.get("ended_records", sql["final_records"]), sql["final_positions"]
    if "ended_in" not in records:  # only PostgreSQL without the distributed profile sorts by transaction
        for state in sorted(states):
            yield Part(records, positions, "finished_at", condition=f"state = '{state}'", is_moment=True)
        return
    value = "{}::bigint::text::xid8"
    if State.SUCCEEDED in states:
        yield Part(records, positions, "ended_in", condition="reason IS NULL", value=value)
    if others := states - {State.SUCCEEDED}:
        yield Part(records, positions, "ended_in", condition="reason IS NOT NULL", states=others, value=value)


async def _first(reader: Reader, query: TaskQuery, part: Part, bound: Position | None) -> list[Found]:
    """The first matching tasks of a part: one more than the page has, so that the last page is known to be the last."""
    recent = reader.sql.get("recent_records")
    is_live = part.records is reader.sql["live_records"]
    if recent is not None and is_live and part.states is not None and not query.ascending:
        # The newest rows first, which the primary key finds: a full page of them is the answer.
        statement, *values = statement_of(reader.dialect, recent, query, part, bound)
        newest = await reader.tasks(query, statement, values)
        if len(newest) > query.limit:
            return newest
    statement, *values = statement_of(reader.dialect, part.records, query, part, bound)
    return await reader.tasks(query, statement, values)


async def _last_to_search(reader: Reader, query: TaskQuery, part: Part) -> Position | None:
    """The position of the last task of a part that a page searches. None if the part has no more tasks than that."""
    key = f"{part.key}::text::bigint" if part.key == "ended_in" else part.key
    select = part.positions.replace("{key}", key)
    statement, *values = statement_of(reader.dialect, select, replace(query, search=None, limit=1), part)
    rows = await reader.positions(f"{statement} OFFSET {SEARCHED_TASKS - 1}", values)
    if len(rows) < 2:
        return None
    found, task_id = rows[0]
    return Position(found if isinstance(found, int) else from_datetime(found), task_id)


def statement_of(
    dialect: Dialect, select: str, query: TaskQuery, part: Part, bound: Position | None = None
) -> list[Any]:
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
            key = dialect.moment(position.key) if part.is_moment else position.key
            where(f"({part.key}, id) {sign} ({part.value}, {{}})", key, position.id)

    start = start_of(query)
    if start is not None:
        beyond(start, ">" if query.ascending else "<")
    elif part.key == "id":  # a range of the primary key, which the planner then reads in order
        beyond(Position(0, 0) if query.ascending else Position(LAST_ID, LAST_ID), ">=" if query.ascending else "<=")
    if part.condition is not None:
        where(part.condition)
    if part.states is not None:
        where(dialect.among.format("{}", column="state"), dialect.values(sorted(part.states)))
        if State.SUCCEEDED not in part.states and part.states <= FINAL:
            where("state <> 'succeeded'")
    for condition, value in listing_conditions(query, dialect):
        where(condition, value)
    if query.tag is not None:
        where(dialect.tagged, query.tag)
    if query.search is not None:
        text, patterns = search_condition(query.search, dialect)
        where(f"({text})", *patterns)
    if bound is not None:
        beyond(bound, "<=" if query.ascending else ">=")
    direction = "ASC" if query.ascending else "DESC"
    key = "" if part.key == "id" else f"{part.key} {direction}, "
    values.append(query.limit + 1)
    where_text = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return [f"{select}{where_text} ORDER BY {key}id {direction} LIMIT ${len(values)}", *values]
