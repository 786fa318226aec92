"""The columns of a task, for all stores.

The column lists of statements are made from `COLUMNS`: those of inserts, of the move to the history and back, and of
the queries that read claims, records and events. A new column is added here and in the migrations. `stores.statements`
lists the placeholders that SQL files use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from synergon.model.claims import Claim
from synergon.model.events import Event
from synergon.model.task_records import TaskQuery, TaskRecord
from synergon.model.tasks import NewTask
from synergon.stores.typed_rows import field_names


class Table(Enum):
    """In which tables a column is, and what happens to its value when a task moves between them."""

    LIVE = "only in the table of live tasks"
    CARRIED = "moved to the history"
    KEPT = "moved to the history, and back when the task is retried"
    COMPUTED = "in both tables; each move computes its value"
    HISTORY = "only in the history"


class Form(IntEnum):
    """The three forms of an insert, from the fewest columns to all of them: each unneeded column costs time."""

    BARE = 0
    """For a task that is due now and has none of the rarer options."""
    PLAIN = 1
    """Has all columns except those of `BOUND`."""
    BOUND = 2
    """For a task with a limit key, a tenant, a group, dependencies, a provider or a server, and for a command."""


class Filter(Enum):
    """How a listing of tasks compares a column with a value, as SQL."""

    EQUALS = "{column} = {{}}"
    CONTAINS = "lower({column}) LIKE lower({{}}) ESCAPE '!'"
    """Ignores case. SQLite ignores the case of the letters A to Z only."""


class Column(NamedTuple):
    """One column. `given` is its type in PostgreSQL if a `NewTask` has a field of its name; otherwise None."""

    name: str
    table: Table
    given: str | None = None
    form: Form = Form.BARE
    """The shortest insert that includes the column."""
    is_own: bool = False
    """Whether tasks of one kind often have different values of this column. SQLite passes the values of other columns
    once for many rows."""
    filter: Filter | None = None
    """How users can filter tasks by the column (`TaskQuery`). None if they cannot."""


COLUMNS: Final = (
    Column("id", Table.KEPT),
    Column("kind", Table.KEPT, "text"),
    Column("queue", Table.KEPT, "text", filter=Filter.EQUALS),
    Column("state", Table.COMPUTED),
    Column("reason", Table.HISTORY),
    Column("priority", Table.KEPT, "bigint", is_own=True),
    Column("run_at", Table.CARRIED),
    Column("payload", Table.KEPT, "text", is_own=True),
    Column("result", Table.HISTORY),
    Column("attempts", Table.CARRIED),
    Column("max_attempts", Table.KEPT, "integer"),
    Column("units", Table.KEPT, "integer", Form.PLAIN, is_own=True),
    Column("crashes", Table.CARRIED),
    Column("owner_deaths", Table.CARRIED),
    Column("server_failures", Table.CARRIED),
    Column("claim_no", Table.KEPT),
    Column("finished_no", Table.COMPUTED),
    Column("node_id", Table.CARRIED),
    Column("key", Table.KEPT, "text", Form.PLAIN, filter=Filter.EQUALS),
    Column("cancel_requested", Table.CARRIED),
    Column("overdue", Table.CARRIED),
    Column("enqueued_at", Table.KEPT),
    Column("started_at", Table.CARRIED),
    Column("finished_at", Table.HISTORY),
    Column("expires_at", Table.CARRIED),
    Column("overrides", Table.KEPT, "text", Form.PLAIN),
    Column("tags", Table.KEPT),
    Column("meta", Table.KEPT, "text", Form.PLAIN, is_own=True),
    Column("title", Table.KEPT, "text", Form.PLAIN, is_own=True, filter=Filter.CONTAINS),
    Column("keep_for", Table.KEPT, "bigint", Form.PLAIN),
    Column("progress", Table.CARRIED),
    Column("errors", Table.KEPT),
    Column("ended_attempts", Table.KEPT),
    Column("origin", Table.LIVE, "text"),
    Column("requirements", Table.KEPT, "text"),
    Column("limit_key", Table.KEPT, "text", Form.BOUND),
    Column("group_id", Table.KEPT, "bigint", Form.BOUND, filter=Filter.EQUALS),
    Column("parent_id", Table.KEPT, "bigint", Form.PLAIN, filter=Filter.EQUALS),
    Column("is_dependent", Table.LIVE, "boolean", Form.BOUND),
    Column("has_dependencies", Table.KEPT, "boolean", Form.BOUND),
    Column("has_dependents", Table.KEPT, "boolean", Form.BOUND),
    Column("batch_id", Table.CARRIED),
    Column("is_command", Table.KEPT, "boolean", Form.BOUND),
    Column("target", Table.KEPT, "text", Form.BOUND),
    Column("provider", Table.KEPT, "text", Form.BOUND),
    Column("fair_key", Table.KEPT, "text", Form.BOUND, is_own=True),
    Column("fair_step", Table.KEPT, "bigint", Form.BOUND),
    Column("fair_tag", Table.LIVE, "bigint", Form.BOUND, is_own=True),
    Column("server", Table.CARRIED),
    Column("slot", Table.LIVE),
    Column("holds", Table.LIVE),
    Column("reserved_by", Table.LIVE),
    Column("reserved_until", Table.LIVE),
    Column("protected_until", Table.LIVE),
    Column("extended_by", Table.LIVE),
)

_UNREPLACED: Final = ("kind", "key", "group_id", "has_dependents")
"""The columns that a replaced task retains: its kind, key and group, and whether other tasks depend on it."""
CLAIM_COLUMNS: Final = tuple(
    name for name in field_names(Claim) if name not in ("server", "slot", "protected_for", "waited")
)
"""The columns of a claim. The other four fields of `Claim` are expressions that differ between statements."""
_RECORD_COMPUTED: Final = ("reserved_by",)
_ABSENT: Final = {"fair_tag": "0"}
"""The SQL values of record fields that have no column in the history. Fields that are not listed here are NULL."""
_EVENT_NAMES: Final = {"task_id": "id", "name": "state", "attempt": "attempts", "at": "finished_at"}
"""The column that an event's field is read from, where the names differ."""
EVENT_COLUMNS: Final = tuple(_EVENT_NAMES.get(name, name) for name in field_names(Event) if name != "cursor")
"""The columns of the history from which the fields of an event are read. The last field, the cursor, is not a
column."""


# ---------------------------------------------------------------- values of a new task


_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(NewTask)}


class GivenColumns:
    """Columns of an insert whose values are fields of the new task."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.columns: Final = tuple(columns)
        self.names: Final = tuple(column.name for column in self.columns)
        self.values: Callable[[NewTask], tuple[Any, ...]] = attrgetter(*self.names)
        """Returns the values of these columns for a task, unconverted."""
        self._getters = [(attrgetter(name), _FIELDS[name].type in (bytes, bytes | None)) for name in self.names]

    def texts(self, task: NewTask) -> list[Any]:
        """The values of a task for PostgreSQL, which stores JSON as text."""
        return [value.decode() if isinstance(value, bytes) else value for value in self.values(task)]

    def arrays(self, tasks: Sequence[NewTask]) -> list[list[Any]]:
        """The values of many tasks for PostgreSQL, as one array per column."""
        return [
            [None if value is None else value.decode() for value in map(get, tasks)]
            if is_json
            else list(map(get, tasks))
            for get, is_json in self._getters
        ]

    @property
    def own(self) -> GivenColumns:
        """The columns in which tasks of one kind often differ."""
        return GivenColumns(column for column in self.columns if column.is_own)

    @property
    def shared(self) -> GivenColumns:
        """The columns in which tasks of one kind are often equal."""
        return GivenColumns(column for column in self.columns if not column.is_own)


GIVEN: Final = {
    form: GivenColumns(column for column in COLUMNS if column.given is not None and column.form <= form)
    for form in Form
}
REPLACED: Final = GivenColumns(column for column in GIVEN[Form.BOUND].columns if column.name not in _UNREPLACED)

COMPUTED_FROM: Final = {"run_at": "timestamptz", "delay": "bigint", "expires_in": "bigint", "tags": "text"}
"""The fields of a new task that columns are computed from, with their types on PostgreSQL."""
_BOUND_FIELDS: Final = ("after", *(column.name for column in COLUMNS if column.form is Form.BOUND))
_RARE_FIELDS: Final = (
    "after",
    *COMPUTED_FROM,
    *(column.name for column in COLUMNS if column.form is not Form.BARE),
)
_bound_values: Final = attrgetter(*_BOUND_FIELDS)
_rare_values: Final = attrgetter(*_RARE_FIELDS)
_NOT_BOUND: Final = tuple(_FIELDS[name].default for name in _BOUND_FIELDS)
_NOT_RARE: Final = tuple(_FIELDS[name].default for name in _RARE_FIELDS)


def is_bound(task: NewTask) -> bool:
    """Whether the task has a limit key, a tenant, a group, dependencies, a provider or a server, or is a command."""
    return bool(_bound_values(task) != _NOT_BOUND)


def form_of(task: NewTask) -> Form:
    """The shortest insert that includes all columns that the task needs."""
    if _rare_values(task) == _NOT_RARE:
        return Form.BARE
    return Form.BOUND if is_bound(task) else Form.PLAIN


# ---------------------------------------------------------------- filters


_FILTERS: Final = [(column.name, column.filter) for column in COLUMNS if column.filter is not None]


def conditions(query: TaskQuery) -> Iterator[tuple[str, Any]]:
    """The conditions of a listing: for each, SQL with `{}` for the value, and the value."""
    for name, kind in _FILTERS:
        value = getattr(query, name)
        if value is not None:
            yield kind.value.format(column=name), value if kind is Filter.EQUALS else _pattern(value)


def _pattern(text: str) -> str:
    return "%" + re.sub("([%_!])", r"!\1", text) + "%"


def matches(task: NewTask, query: TaskQuery) -> bool:
    """Whether a task meets the conditions of the query. Used by the memory store instead of `conditions`."""
    return all(_is_met(kind, getattr(task, name), getattr(query, name)) for name, kind in _FILTERS)


def _is_met(kind: Filter, value: Any, wanted: Any) -> bool:
    if wanted is None or kind is Filter.EQUALS:
        return wanted in (None, value)
    return value is not None and wanted.lower() in value.lower()


# ---------------------------------------------------------------- lists for statements


def _select(row_type: type[msgspec.Struct], tables: Sequence[Table], without: Sequence[str] = ()) -> str:
    """The column list that reads rows of this type. A field that none of the tables has is NULL, or as in `_ABSENT`."""
    present = {column.name for column in COLUMNS if column.table in tables}
    return ", ".join(
        name if name in present else f"{_EVENT_NAMES.get(name, _ABSENT.get(name, 'NULL'))} AS {name}"
        for name in field_names(row_type)
        if name not in without
    )


def _of(*tables: Table) -> str:
    return ", ".join(column.name for column in COLUMNS if column.table in tables)


_BOTH: Final = (Table.CARRIED, Table.KEPT, Table.COMPUTED)


def _lists() -> Iterator[tuple[str, str]]:
    yield "carried", _of(Table.KEPT, Table.CARRIED)
    yield "kept", _of(Table.KEPT)
    yield "claim", ", ".join(CLAIM_COLUMNS)
    yield "live_record", _select(TaskRecord, (*_BOTH, Table.LIVE), _RECORD_COMPUTED)
    yield "final_record", _select(TaskRecord, (*_BOTH, Table.HISTORY))
    yield "event", _select(Event, (*_BOTH, Table.HISTORY))
    for form, columns in GIVEN.items():
        yield form.name.lower(), ", ".join(columns.names)
        yield f"{form.name.lower()}.shared", ", ".join(columns.shared.names)
        yield f"{form.name.lower()}.own", ", ".join(columns.own.names)
    yield "replaced.assigned", ", ".join(f"{name} = :{name}" for name in REPLACED.names)


_LISTS: Final = {f"{{{name}}}": text for name, text in _lists()}
_GROUPS: Final = {**{form.name.lower(): columns for form, columns in GIVEN.items()}, "replaced": REPLACED}
_NUMBERED: Final = re.compile(r"\{(\w+)\.(values|assigned) from \$(\d+)\}")
_WRITTEN: Final = {
    "values": "${number}",
    "assigned": "{column.name} = ${number}",
}


@lru_cache(maxsize=256)
def source(form: Form, first: int, differs: tuple[bool, ...]) -> str:
    """The SQL that replaces `{new}` in a statement of PostgreSQL: a source of new tasks, each with its `position`.

    Each field that columns are computed from, and then each column of the form, is a parameter from `$first` on: an
    array if the tasks differ in it (`differs`), else one value for all of them. Arrays cost the driver and the server
    time for each element, and the tasks of a list have most values in common.
    """
    types = COMPUTED_FROM | {column.name: column.given for column in GIVEN[form].columns}
    inputs = [(*entry, number) for number, entry in enumerate(types.items(), first)]
    rows = [entry for entry, is_array in zip(inputs, differs, strict=True) if is_array]
    common = [entry for entry, is_array in zip(inputs, differs, strict=True) if not is_array]
    arrays = ", ".join(f"${number}::{kind}[]" for _, kind, number in rows)
    names = ", ".join(name for name, *_ in rows)
    values = ", ".join(f"${number}::{kind} AS {name}" for name, kind, number in common)
    return f"unnest({arrays}) WITH ORDINALITY AS new ({names}, position) CROSS JOIN (SELECT {values}) AS common"


def fill(text: str) -> str:
    """The statement with its placeholders replaced by lists of columns."""
    for name, columns in _LISTS.items():
        text = text.replace(name, columns)
    return _NUMBERED.sub(_numbered, text)


def _numbered(found: re.Match[str]) -> str:
    group, written, first = found.groups()
    return ", ".join(
        _WRITTEN[written].format(number=number, column=column)
        for number, column in enumerate(_GROUPS[group].columns, int(first))
    )
