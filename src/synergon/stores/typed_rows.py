"""Typed rows: turns a row of a statement into a struct whose fields are the statement's columns, by name and in order.

Stored values become typed values only here, so an unreadable row harms only itself: if a row cannot be read as a whole,
`read_rows` reads it column by column, replaces unreadable values by harmless ones, and notes them in
`stores.unreadable`. A row is left out if an unreadable column has no replacement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar, get_args

import msgspec

from synergon.model.attempts import AttemptRecord
from synergon.model.events import EventName
from synergon.model.lifecycle import Reason, State
from synergon.model.node_status import NodeStatus
from synergon.model.nodes import ProcessIdentity
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.record import EPOCH, Record, from_datetime, to_datetime
from synergon.model.requirements import KIND_DEFAULT, Requirements
from synergon.model.schedules import PastOccurrence
from synergon.model.task_records import TaskRecord
from synergon.model.task_statistics import Numbers
from synergon.options.overrides import Overrides
from synergon.stores.rows import CountedTasks, Moment, Names, Position
from synergon.stores.unreadable import BadText, UnreadableRows

Row = TypeVar("Row", bound=msgspec.Struct)

_ERRORS: Final = msgspec.json.Decoder(tuple[ErrorRecord, ...])
_ATTEMPTS: Final = msgspec.json.Decoder(tuple[AttemptRecord, ...])
_PAIR: Final = msgspec.json.Decoder(tuple[int, int])
_PAIRS: Final = msgspec.json.Decoder(tuple[tuple[int, int], ...])
_COUNTED: Final = msgspec.json.Decoder(tuple[tuple[str, str, State, int], ...])
_PAST: Final = msgspec.json.Decoder(tuple[PastOccurrence, ...])
_TAGS: Final = msgspec.json.Decoder(tuple[str, ...])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_PROGRESS: Final = msgspec.json.Decoder(Progress)
_PROCESS: Final = msgspec.json.Decoder(ProcessIdentity)
_OVERRIDES: Final = msgspec.json.Decoder(Overrides)
_REQUIREMENTS: Final = msgspec.json.Decoder(Requirements)
_STATUS: Final = msgspec.json.Decoder(NodeStatus)
_NUMBERS: Final = msgspec.json.Decoder(Numbers)
_RAW: Final = msgspec.json.Decoder(msgspec.Raw)

_STATES: Final[dict[str | None, State | None]] = {None: None, **{str(state): state for state in State}}
_REASONS: Final[dict[str | None, Reason | None]] = {None: None, **{str(reason): reason for reason in Reason}}
_LAST_MOMENT: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""


def decode_errors(stored: str | bytes | tuple[ErrorRecord, ...] | None) -> tuple[ErrorRecord, ...]:
    """Decode the list of errors from its JSON column. A list of the memory store is not encoded."""
    if not stored:
        return ()
    return stored if isinstance(stored, tuple) else _ERRORS.decode(stored)


def _attempts(stored: str | bytes | tuple[AttemptRecord, ...] | None) -> tuple[AttemptRecord, ...]:
    if not stored:
        return ()
    return stored if isinstance(stored, tuple) else _ATTEMPTS.decode(stored)


def decode_tags(stored: str | bytes | Sequence[str] | None) -> tuple[str, ...]:
    """Decode a list of texts, such as tags, from its column, which is JSON or an array."""
    if not stored:
        return ()
    return _TAGS.decode(stored) if isinstance(stored, str | bytes) else tuple(stored)


def _optional_texts(stored: str | bytes | Sequence[str] | None) -> tuple[str, ...] | None:
    return None if stored is None or stored == b"null" else decode_tags(stored)


def split_names(column: str) -> tuple[str, ...]:
    """Decode names from a column, in which they are separated by newlines."""
    return tuple(column.split("\n")) if column else ()


def _moment(column: int | datetime | None) -> int | None:
    if isinstance(column, int) and not 0 <= column <= _LAST_MOMENT:
        raise ValueError(f"{column} is no moment")
    return from_datetime(column) if isinstance(column, datetime) else column


def _datetime(column: int | datetime | None) -> datetime | None:
    return to_datetime(column) if isinstance(column, int) else column


def _position(column: str | bytes | None) -> Position | None:
    return None if column is None else _from_pair(_PAIR.decode(column))


def _positions(column: str | bytes | None) -> tuple[Position, ...]:
    return tuple(sorted(map(_from_pair, _PAIRS.decode(column)))) if column else ()


def _from_pair(pair: tuple[int, int]) -> Position:
    priority, task_id = pair  # negated here, because the smallest number of a database has no negative
    return -priority, task_id


def _progress(column: str | bytes | Progress | None) -> Progress | None:
    return _PROGRESS.decode(column) if isinstance(column, str | bytes) else column


def _bytes(column: str | bytes | None) -> bytes | None:
    return column.encode() if isinstance(column, str) else column


def _raw(column: str | bytes | None) -> msgspec.Raw | None:
    """The stored bytes of a JSON value, undecoded. Raises if they are not valid JSON, because they are copied into
    other JSON documents."""
    if column is None:
        return None
    stored = column.encode() if isinstance(column, str) else bytes(column)
    stored.decode()  # the decoder skips strings, whatever their bytes are
    return _RAW.decode(stored)


def _raw_as(decoder: msgspec.json.Decoder[Any]) -> Callable[[str | bytes | None], msgspec.Raw | None]:
    """Returns a variant of `_raw` that also raises if the value does not have the type of `decoder`."""

    def decode(column: str | bytes | None) -> msgspec.Raw | None:
        if column is not None:
            decoder.decode(column)
        return _raw(column)

    return decode


def _requirements(column: str) -> str:
    if column:
        _REQUIREMENTS.decode(column)
    return column


def _process(column: str | bytes) -> ProcessIdentity:
    return _PROCESS.decode(column)


def _object(column: str | bytes | None) -> dict[str, Any]:
    return _OBJECT.decode(column) if column else {}


def _any(column: str | bytes | None) -> Any:
    return None if column is None else msgspec.json.decode(column)


_DECODERS: Final[dict[Any, Callable[[Any], Any]]] = {
    State: {str(state): state for state in State}.__getitem__,
    State | None: _STATES.__getitem__,
    Reason | None: _REASONS.__getitem__,
    EventName: str,
    bool: bool,
    bytes: _bytes,
    bytes | None: _bytes,
    msgspec.Raw: _raw,
    msgspec.Raw | None: _raw,
    Progress | None: _progress,
    dict[str, Any]: _object,
    tuple[ErrorRecord, ...]: decode_errors,
    tuple[AttemptRecord, ...]: _attempts,
    tuple[PastOccurrence, ...]: _PAST.decode,
    tuple[str, ...]: decode_tags,
    tuple[str, ...] | None: _optional_texts,
    ProcessIdentity: _process,
    ProcessIdentity | None: _process,
    Moment: _moment,
    Moment | None: _moment,
    datetime: _datetime,
    datetime | None: _datetime,
    Names: split_names,
    CountedTasks: _COUNTED.decode,
    Numbers: _NUMBERS.decode,
    Any: _any,
    Position | None: _position,
    tuple[Position, ...]: _positions,
}
"""The functions that convert a column to a field, by the type of the field. Columns of other types are used as they
are. `Any` is JSON."""


_RECORD_DECODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "overrides": _raw_as(_OVERRIDES),
    "published": _raw_as(_STATUS),
    "requirements": _requirements,
}
"""The functions that convert a column of a record, by the name of the field, where the type of the field does not
suffice to choose one."""

_REPLACEMENTS: Final[dict[Any, Any]] = {
    bytes: b"",
    msgspec.Raw: msgspec.Raw(b"null"),
    dict[str, Any]: {},
    tuple[ErrorRecord, ...]: (),
    tuple[AttemptRecord, ...]: (),
    tuple[PastOccurrence, ...]: (),
    tuple[str, ...]: (),
    tuple[Position, ...]: (),
    Names: (),
    Numbers: Numbers(),
    Moment: 0,
    datetime: EPOCH,
    Any: None,
}
"""The value of a field of this type if its column is unreadable. A field that may be None becomes None."""

_RECORD_REPLACEMENTS: Final = {"requirements": KIND_DEFAULT, "published": msgspec.Raw(b"{}")}

UNREADABLE: Final = "unreadable"
"""The field of a record that names its unreadable columns. It has no column."""


_FROM_OTHER_TABLES: Final[dict[type[msgspec.Struct], tuple[str, ...]]] = {TaskRecord: ("node_name", "host")}
"""Fields whose values are read from another table, after the row."""


def field_names(row_type: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of the columns that a row of this type is read from. A column has the JSON name of its field; fields
    without a column are left out."""
    return tuple(field.encode_name for field in _fields(row_type))


@cache
def _fields(row_type: type[msgspec.Struct]) -> list[msgspec.structs.FieldInfo]:
    without_column = (UNREADABLE, *_FROM_OTHER_TABLES.get(row_type, ()))
    return [field for field in msgspec.structs.fields(row_type) if field.name not in without_column]


def _decoder_of(row_type: type[msgspec.Struct], field: msgspec.structs.FieldInfo) -> Callable[[Any], Any] | None:
    by_name = _RECORD_DECODERS.get(field.name) if issubclass(row_type, Record) else None
    return by_name or _DECODERS.get(field.type)


@cache
def row_reader(row_type: type[Row], columns: tuple[str, ...]) -> Callable[[Sequence[Any]], Row]:
    """Make a function that converts a row with these columns to a `row_type`. That function raises if a value cannot be
    read. Raises at once if the columns are not the fields of the struct, in order. The columns of a `Record` may come
    in any order."""
    fields, names = _fields(row_type), field_names(row_type)
    is_record = issubclass(row_type, Record)
    is_right = sorted(columns) == sorted(names) if is_record else columns == names
    assert is_right, f"a statement returns {columns}, but {row_type.__name__} has the fields {names}"
    decoders = [
        (number, decode) for number, field in enumerate(fields) if (decode := _decoder_of(row_type, field)) is not None
    ]
    by_column = dict(zip(names, fields, strict=True))
    given_names = [by_column[column].name for column in columns]
    named_decoders = [(fields[number].name, decode) for number, decode in decoders]

    def read_record(row: Sequence[Any]) -> Row:
        values = dict(zip(given_names, row, strict=True))
        for name, decode in named_decoders:
            values[name] = decode(values[name])
        return row_type(**values)

    def read(row: Sequence[Any]) -> Row:
        values = list(row)
        for number, decode in decoders:
            values[number] = decode(values[number])
        return row_type(*values)

    return read_record if is_record else read  # the fields of a record have no positions


def read_rows(
    row_type: type[Row],
    columns: tuple[str, ...],
    rows: Sequence[Sequence[Any]],
    unreadable: UnreadableRows,
    *,
    has_bad_text: bool = False,
) -> list[Row]:
    """Convert rows to structs. Never raises because of what a row contains. `has_bad_text`: some values may be
    `BadText`."""
    read = row_reader(row_type, columns)
    if not has_bad_text:
        with suppress(Exception):  # a value can be wrong in any way; then each is looked at
            return list(map(read, rows))
    found = (_read_one(row_type, columns, row, unreadable) for row in rows)
    return [row for row in found if row is not None]


def read_row(row_type: type[Row], columns: tuple[str, ...], row: Sequence[Any]) -> Row:
    """Convert a row to a struct whose fields all have replacements. Unreadable values are not noted."""
    found = _read_one(row_type, columns, row, None)
    assert found is not None, f"a column of {row_type.__name__} has no replacement"
    return found


def _read_one(
    row_type: type[Row], columns: tuple[str, ...], row: Sequence[Any], unreadable: UnreadableRows | None
) -> Row | None:
    """Convert a row to a struct. If that fails, the row is read column by column, which takes many times as long. None
    if the row must be left out."""
    read: Row | None = None
    if BadText not in map(type, row):
        with suppress(Exception):
            read = row_reader(row_type, columns)(row)
    return read or _read_carefully(row_type, columns, row, unreadable)


def _read_carefully(
    row_type: type[Row], columns: tuple[str, ...], row: Sequence[Any], unreadable: UnreadableRows | None
) -> Row | None:
    """Convert a row to a struct, with replacements for unreadable values. None if an unreadable column has no
    replacement."""
    by_column = {field.encode_name: field for field in _fields(row_type)}
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    is_complete = True
    for column, stored in zip(columns, row, strict=True):
        field = by_column[column]
        try:
            values[field.name] = _decode(row_type, field, stored)
        except Exception as error:  # noqa: BLE001  a decoder, a recursion limit, an overflow
            problems[column] = str(error) or type(error).__name__
            is_replaceable, values[field.name] = _replacement(row_type, field, stored)
            is_complete &= is_replaceable
    if unreadable is not None:
        for column, problem in problems.items():
            unreadable.note(_name(row_type, values), column, problem)
    if not is_complete:
        return None
    if problems and hasattr(row_type, UNREADABLE):
        values[UNREADABLE] = tuple(problems)
    return row_type(**values)


def _decode(row_type: type[msgspec.Struct], field: msgspec.structs.FieldInfo, stored: Any) -> Any:
    if isinstance(stored, BadText):
        raise ValueError("it is not UTF-8")
    decode = _decoder_of(row_type, field)
    return stored if decode is None else decode(stored)


def _replacement(row_type: type[msgspec.Struct], field: msgspec.structs.FieldInfo, stored: Any) -> tuple[bool, Any]:
    """Whether there is a replacement for an unreadable value, and the replacement."""
    if issubclass(row_type, Record) and field.name in _RECORD_REPLACEMENTS:
        return True, _RECORD_REPLACEMENTS[field.name]
    if field.type in _REPLACEMENTS:
        return True, _REPLACEMENTS[field.type]
    if isinstance(stored, BadText) and field.type in (str, str | None):
        return True, str(stored)
    return type(None) in get_args(field.type), None


def _name(row_type: type[msgspec.Struct], values: dict[str, Any]) -> str:
    """The noun for a row, and its key, for people: `task 7`."""
    if "kind" in values and ("id" in values or "task_id" in values):
        return f"task {values.get('id', values.get('task_id'))}"
    noun = re.sub("(Record|Row)$", "", row_type.__name__).lstrip("_").lower()
    key = values.get("id", next(iter(values.values())))
    return f"{noun} {key}"
