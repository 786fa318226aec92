"""Typed rows: converts a row of a statement to a struct whose fields are the columns of the statement, by name and in
order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from synergon.model.events import EventName
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.record import Record, from_datetime, to_datetime
from synergon.stores.rows import Moment, Names, Position

Row = TypeVar("Row", bound=msgspec.Struct)

_ERRORS: Final = msgspec.json.Decoder(tuple[ErrorRecord, ...])
_PAIR: Final = msgspec.json.Decoder(tuple[int, int])
_PAIRS: Final = msgspec.json.Decoder(tuple[tuple[int, int], ...])
_TAGS: Final = msgspec.json.Decoder(tuple[str, ...])


def decode_errors(stored: str | bytes | tuple[ErrorRecord, ...] | None) -> tuple[ErrorRecord, ...]:
    """Decode the list of errors from its column, which is JSON. The memory store has it decoded."""
    if not stored:
        return ()
    return stored if isinstance(stored, tuple) else _ERRORS.decode(stored)


def decode_tags(stored: str | Sequence[str] | None) -> tuple[str, ...]:
    """Decode tags from their column, which is JSON or an array."""
    if not stored:
        return ()
    return _TAGS.decode(stored) if isinstance(stored, str) else tuple(stored)


def split_names(column: str) -> tuple[str, ...]:
    """Decode names from a column, in which they are separated by newlines."""
    return tuple(column.split("\n")) if column else ()


def _moment(column: int | datetime | None) -> int | None:
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
    return msgspec.json.decode(column, type=Progress) if isinstance(column, str | bytes) else column


def _bytes(column: str | bytes | None) -> bytes | None:
    return column.encode() if isinstance(column, str) else column


def _raw(column: str | bytes | None) -> msgspec.Raw | None:
    return None if column is None else msgspec.Raw(column.encode() if isinstance(column, str) else column)


def _object(column: str | bytes | None) -> dict[str, Any]:
    return msgspec.json.decode(column) if column else {}


_DECODERS: Final[dict[Any, Callable[[Any], Any]]] = {
    State: {str(state): state for state in State}.__getitem__,
    Reason | None: {str(reason): reason for reason in Reason}.get,
    EventName: str,
    bool: bool,
    bytes: _bytes,
    bytes | None: _bytes,
    msgspec.Raw: _raw,
    msgspec.Raw | None: _raw,
    Progress | None: _progress,
    dict[str, Any]: _object,
    tuple[ErrorRecord, ...]: decode_errors,
    tuple[str, ...]: decode_tags,
    Moment: _moment,
    Moment | None: _moment,
    datetime: _datetime,
    datetime | None: _datetime,
    Names: split_names,
    Any: msgspec.json.decode,
    Position | None: _position,
    tuple[Position, ...]: _positions,
}
"""The functions that convert a column to a field, by the type of the field. Columns of other types are used as they
are. `Any` is JSON."""


def field_names(row_type: type[msgspec.Struct]) -> tuple[str, ...]:
    """The columns from which a row of this type is read: its fields, by their JSON names."""
    return tuple(field.encode_name for field in msgspec.structs.fields(row_type))


@cache
def row_reader(row_type: type[Row], columns: tuple[str, ...]) -> Callable[[Sequence[Any]], Row]:
    """A function that converts a row with these columns to a `row_type`. Raises AssertionError if the columns are not
    the fields of the struct, in order. For a `Record` the order does not matter."""
    fields, names = msgspec.structs.fields(row_type), field_names(row_type)
    is_record = issubclass(row_type, Record)
    is_right = sorted(columns) == sorted(names) if is_record else columns == names
    assert is_right, f"a statement returns {columns}, but {row_type.__name__} has the fields {names}"
    decoders = [(number, _DECODERS[field.type]) for number, field in enumerate(fields) if field.type in _DECODERS]
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


def read_rows(row_type: type[Row], rows: Sequence[Any]) -> list[Row]:
    """Convert rows, which know the names of their columns, to structs."""
    return list(map(row_reader(row_type, tuple(rows[0].keys())), rows)) if rows else []
