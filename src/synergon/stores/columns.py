"""The columns of a task, once for all stores.

Statements are made from this list: inserts, the move to the history and back, and what claims, records and events are
read from. A new column is added here and in the migrations; `stores.statements` says what SQL files write for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, IntEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from synergon.model.claims import Claim
from synergon.model.events import Event
from synergon.model.task_records import TaskQuery, TaskRecord
from synergon.model.tasks import NewTask
from synergon.stores.typed_rows import field_names


class Table(Enum):
    """In which tables a column is, and how it gets from one to the other."""

    LIVE = "only in the table of live tasks"
    CARRIED = "moved to the history"
    KEPT = "moved to the history, and back when the task is retried"
    COMPUTED = "in both tables; each move computes its value"
    HISTORY = "only in the history"


class Form(IntEnum):
    """The inserts, from the shortest one: each column that a task does not need costs time."""

    BARE = 0
    """Due now, without any of the rarer options."""
    PLAIN = 1
    """With all that does not bind it to others."""
    BOUND = 2
    """With a limit key, a group, a group that it waits for, or a server."""


class Filter(Enum):
    """What a listing asks of a column, as SQL."""

    EQUALS = "{column} = {{}}"
    CONTAINS = "lower({column}) LIKE lower({{}}) ESCAPE '!'"
    """In upper or lower case; SQLite knows the two of the letters A to Z only."""


class Column(NamedTuple):
    """One column. `given` is its type on PostgreSQL if a `NewTask` has its value under its name."""

    name: str
    table: Table
    given: str | None = None
    form: Form = Form.BARE
    """The shortest insert that has it."""
    is_own: bool = False
    """Whether tasks of one kind often differ in it; SQLite hands the other values over once for many rows."""
    filter: Filter | None = None
    """How users can list tasks by it (`TaskQuery`)."""


COLUMNS: Final = (
    Column("id", Table.KEPT),
    Column("kind", Table.KEPT, "text", filter=Filter.EQUALS),
    Column("queue", Table.KEPT, "text", filter=Filter.EQUALS),
    Column("state", Table.COMPUTED),
    Column("reason", Table.HISTORY),
    Column("priority", Table.KEPT, "bigint", is_own=True),
    Column("run_at", Table.CARRIED),
    Column("payload", Table.KEPT, "text", is_own=True),
    Column("result", Table.HISTORY),
    Column("attempts", Table.CARRIED),
    Column("max_attempts", Table.KEPT, "integer"),
    Column("crashes", Table.CARRIED),
    Column("owner_deaths", Table.CARRIED),
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
    Column("progress", Table.CARRIED),
    Column("errors", Table.KEPT),
    Column("origin", Table.LIVE, "text"),
    Column("requirements", Table.KEPT, "text"),
    Column("limit_key", Table.KEPT, "text", Form.BOUND),
    Column("group_id", Table.KEPT, "bigint", Form.BOUND),
    Column("after_group", Table.LIVE, "bigint", Form.BOUND),
    Column("is_command", Table.KEPT, "boolean", Form.BOUND),
    Column("target", Table.KEPT, "text", Form.BOUND),
    Column("provider", Table.KEPT, "text", Form.BOUND),
    Column("server", Table.CARRIED),
    Column("slot", Table.LIVE),
    Column("holds", Table.LIVE),
    Column("reserved_by", Table.LIVE),
    Column("reserved_until", Table.LIVE),
    Column("protected_until", Table.LIVE),
)

_UNREPLACED: Final = ("kind", "key", "group_id")
"""What a task that replaces another has from that one: its name, and the group that waits for its end."""
CLAIM_COLUMNS: Final = tuple(name for name in field_names(Claim) if name not in ("server", "slot", "protected_for"))
"""The first fields of a claim; the last three are expressions that differ between statements."""
_RECORD_COMPUTED: Final = ("reserved_by",)
_EVENT_NAMES: Final = {"task_id": "id", "name": "state", "attempt": "attempts", "at": "finished_at"}
"""Fields of events that have other names than their columns."""
EVENT_COLUMNS: Final = tuple(_EVENT_NAMES.get(name, name) for name in field_names(Event) if name != "cursor")
"""The columns of the history that the fields of an event are read from; the last field, the cursor, is in no row."""


# ---------------------------------------------------------------- values of a new task


_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(NewTask)}


class GivenColumns:
    """Columns of an insert whose values stand in the new task."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.columns = tuple(columns)
        self.names = tuple(column.name for column in self.columns)
        self.values: Callable[[NewTask], tuple[Any, ...]] = attrgetter(*self.names)
        """As they stand there."""
        self._getters = [(attrgetter(name), _FIELDS[name].type in (bytes, bytes | None)) for name in self.names]

    def texts(self, task: NewTask) -> list[Any]:
        """The values for PostgreSQL, which keeps JSON as text."""
        return [value.decode() if isinstance(value, bytes) else value for value in self.values(task)]

    def arrays(self, tasks: Sequence[NewTask]) -> list[list[Any]]:
        """The same of many tasks: an array for each column."""
        return [
            [None if value is None else value.decode() for value in map(get, tasks)]
            if is_json
            else list(map(get, tasks))
            for get, is_json in self._getters
        ]

    @property
    def own(self) -> GivenColumns:
        """Those in which tasks of one kind often differ."""
        return GivenColumns(column for column in self.columns if column.is_own)

    @property
    def shared(self) -> GivenColumns:
        """The others."""
        return GivenColumns(column for column in self.columns if not column.is_own)


GIVEN: Final = {
    form: GivenColumns(column for column in COLUMNS if column.given is not None and column.form <= form)
    for form in Form
}
REPLACED: Final = GivenColumns(column for column in GIVEN[Form.BOUND].columns if column.name not in _UNREPLACED)

_BOUND_FIELDS: Final = tuple(column.name for column in COLUMNS if column.form is Form.BOUND)
_RARE_FIELDS: Final = (
    *("run_at", "delay", "expires_in", "tags"),  # columns are computed from these
    *(column.name for column in COLUMNS if column.form is not Form.BARE),
)
_bound_values: Final = attrgetter(*_BOUND_FIELDS)
_rare_values: Final = attrgetter(*_RARE_FIELDS)
_NOT_BOUND: Final = tuple(_FIELDS[name].default for name in _BOUND_FIELDS)
_NOT_RARE: Final = tuple(_FIELDS[name].default for name in _RARE_FIELDS)


def is_bound(task: NewTask) -> bool:
    """Whether the task joins a key queue or a group, waits for one, is a command or is for a certain server."""
    return bool(_bound_values(task) != _NOT_BOUND)


def form_of(task: NewTask) -> Form:
    """The shortest insert that has all columns of the task."""
    if _rare_values(task) == _NOT_RARE:
        return Form.BARE
    return Form.BOUND if is_bound(task) else Form.PLAIN


# ---------------------------------------------------------------- filters


_FILTERS: Final = [(column.name, column.filter) for column in COLUMNS if column.filter is not None]


def conditions(query: TaskQuery) -> Iterator[tuple[str, Any]]:
    """What a listing asks of columns: SQL with `{}` for the value, and the value."""
    for name, kind in _FILTERS:
        value = getattr(query, name)
        if value is not None:
            yield kind.value.format(column=name), value if kind is Filter.EQUALS else _pattern(value)


def _pattern(text: str) -> str:
    return "%" + re.sub("([%_!])", r"!\1", text) + "%"


def matches(task: NewTask, query: TaskQuery) -> bool:
    """Whether a task meets these conditions."""
    return all(_is_met(kind, getattr(task, name), getattr(query, name)) for name, kind in _FILTERS)


def _is_met(kind: Filter, value: str | None, wanted: str | None) -> bool:
    if wanted is None or kind is Filter.EQUALS:
        return wanted in (None, value)
    return value is not None and wanted.lower() in value.lower()


# ---------------------------------------------------------------- lists for statements


def _select(row_type: type[msgspec.Struct], tables: Sequence[Table], without: Sequence[str] = ()) -> str:
    """What reads a row of this type; NULL for what the table does not have."""
    present = {column.name for column in COLUMNS if column.table in tables}
    return ", ".join(
        name if name in present else f"{_EVENT_NAMES.get(name, 'NULL')} AS {name}"
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
_NUMBERED: Final = re.compile(r"\{(\w+)\.(values|arrays|assigned) from \$(\d+)\}")
_WRITTEN: Final = {
    "values": "${number}",
    "arrays": "${number}::{column.given}[]",
    "assigned": "{column.name} = ${number}",
}


def fill(text: str) -> str:
    """A statement with its lists of columns."""
    for name, columns in _LISTS.items():
        text = text.replace(name, columns)
    return _NUMBERED.sub(_numbered, text)


def _numbered(found: re.Match[str]) -> str:
    group, written, first = found.groups()
    return ", ".join(
        _WRITTEN[written].format(number=number, column=column)
        for number, column in enumerate(_GROUPS[group].columns, int(first))
    )
