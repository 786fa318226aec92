"""Listings of tasks, for all stores: conditions and pages.

A page begins after a position: the sort key of a task (its id, due time or end) and its id. So pages neither shift nor
repeat when tasks come and go, and no statement skips rows that it has read before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from synergon.model.positions import RANGES, Position, cursor_of
from synergon.model.record import from_datetime
from synergon.model.task_records import TaskPage, TaskQuery, TaskRecord
from synergon.stores.columns import conditions as column_conditions


class Found(NamedTuple):
    """A task that matches, and its position."""

    position: Position
    task: TaskRecord


class Dialect(NamedTuple):
    """The SQL of one store for the parts of a condition. `{}` stands for a value."""

    among: str
    """The condition that a column equals one of several values."""
    values: Callable[[Iterable[str]], Any]
    """Converts these values to the parameter of `among`."""
    text: str
    """The expression for the text of a JSON column."""
    moment: Callable[[int], Any]
    """Converts a moment to a parameter."""
    tagged: str
    """The condition that a task has a tag."""


def position_of(query: TaskQuery, task: TaskRecord) -> Position:
    """The position of a task in the order of the listing."""
    moment = {"id": None, "due": task.run_at, "end": task.finished_at}[query.sort]
    return Position(task.id if moment is None else from_datetime(moment), task.id)


def in_order(query: TaskQuery, found: Iterable[Found]) -> list[Found]:
    """The found tasks, in the order of the listing."""
    return sorted(found, key=lambda one: one.position, reverse=not query.ascending)


def bound_of(query: TaskQuery, positions: Sequence[Position]) -> Position | None:
    """The first of these positions in the order of the listing, at which the search must end. None if there are
    none."""
    return min(positions, default=None) if query.ascending else max(positions, default=None)


def page_of(query: TaskQuery, found: Iterable[Found], bound: Position | None = None) -> TaskPage:
    """The page made from the first matching tasks. `found` has one task more than the page if there is a next page.
    `bound` is the position at which a search ended."""
    ordered = in_order(query, found)
    page = ordered[: query.limit]
    last = page[-1].position if len(ordered) > query.limit else bound
    return TaskPage(
        tasks=tuple(one.task for one in page if has_meta(query, one.task)),
        next=None if last is None else cursor_of(query, last),
        is_cut=last is not None and last is bound,
    )


def has_meta(query: TaskQuery, task: TaskRecord) -> bool:
    """Whether the metadata of the task has the values that the query names. The condition in SQL compares texts, which
    other metadata may contain, too."""
    missing = object()
    return query.meta is None or all(
        type(task.meta.get(name, missing)) in _types(value) and task.meta[name] == value
        for name, value in query.meta.items()
    )


def _types(value: Any) -> tuple[type, ...]:
    """The types of JSON values that can equal this one. Numbers equal only numbers: true is not 1."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (int, float) if is_number else (type(value),)


# ---------------------------------------------------------------- conditions


def conditions(query: TaskQuery, dialect: Dialect) -> Iterator[tuple[str, Any]]:
    """The conditions of a listing, except those on states, tags, positions and the searched text: for each, SQL with
    `{}` for the value, and the value."""
    if query.kinds is not None:
        (first, *more) = query.kinds
        yield (
            (dialect.among.format("{}", column="kind"), dialect.values(query.kinds)) if more else ("kind = {}", first)
        )
    if query.nodes is not None:
        yield dialect.among.format("{}", column="node_id"), dialect.values(query.nodes)
    yield from column_conditions(query)
    for name, value in (query.meta or {}).items():
        pattern = like(msgspec.json.encode({name: value})[1:-1].decode())
        yield f"{dialect.text.format(column='meta')} LIKE {{}} ESCAPE '!'", pattern
    for column in RANGES:
        for border, sign in (("since", ">="), ("until", "<")):
            moment = getattr(query, f"{column}_{border}")
            if moment is not None:
                yield f"{column}_at {sign} {{}}", dialect.moment(moment)


def search_condition(text: str, dialect: Dialect) -> tuple[str, list[Any]]:
    """The condition that arguments or errors contain the text."""
    columns = [dialect.text.format(column=column) for column in ("payload", "errors")]
    patterns = [like(form) for form in json_forms(text)]
    conditions = [f"lower({column}) LIKE lower({{}}) ESCAPE '!'" for column in columns for _ in patterns]
    return " OR ".join(conditions), patterns * len(columns)


def json_forms(text: str) -> list[str]:
    """The forms in which a stored JSON text may contain this text: as it is, and escaped as inside a JSON string."""
    return list(dict.fromkeys([text, msgspec.json.encode(text)[1:-1].decode()]))


def like(text: str) -> str:
    """The pattern with which LIKE finds values that contain this text."""
    return "%" + re.sub("([%_!])", r"!\1", text) + "%"
