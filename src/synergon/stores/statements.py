"""Reads SQL from files: `-- name: claim` starts the statement `claim`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from synergon.stores.columns import fill
from synergon.stores.rows import ChangedTask, FinalTask, FinishedClaim, KeyHolder, LiveTask, ScheduleRow
from synergon.stores.typed_rows import field_names

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_PART: Final = re.compile(r"\{(\w+)\.(\w+)\}")
_COLUMNS: Final = {
    f"{{{row_type.__name__}}}": ", ".join(field_names(row_type))
    for row_type in (LiveTask, FinalTask, FinishedClaim, ChangedTask, KeyHolder, ScheduleRow)
}
"""What a statement writes as `{LiveTask}`: the columns that such a row is read from."""


@cache
def statements(dialect: str, schema: str = "", overlay: str | None = None) -> Mapping[str, str]:
    """All statements of one dialect, by name. In their texts `{schema}` is replaced by the checked name of the schema,
    `{succeed.moved}` by the part `moved` of the statement `succeed`, and `{LiveTask}` by the columns of that struct.
    The columns of a task stand in `stores.columns`: `{carried}` are those that go to the history, `{kept}` those that
    come back from it; `{claim}`, `{event}`, `{live_record}` and `{final_record}` are what these are read from;
    `{bare}`, `{plain}` and `{bound}` are what the inserts are given. `{bare.values from $3}` are parameters for these,
    `{plain.arrays from $5}` arrays of them, and `{replaced.assigned from $7}` sets the columns of a replaced task.

    Statements in the folder `overlay` are added, or replace those with their name; one without text removes it.
    """
    found = _read(dialect, schema)
    if overlay is not None:
        found |= _read(overlay, schema)
    return MappingProxyType({name: _filled(text, found) for name, text in found.items() if text})


def _filled(text: str, others: Mapping[str, str]) -> str:
    """Replace the references to parts of other statements, so that shared SQL is written once."""
    return _PART.sub(lambda match: _part(others[match[1]], match[2]), text)


def _part(statement: str, name: str) -> str:
    found = re.search(rf"^(?:WITH )?({name} AS (?:MATERIALIZED )?\(\n.*?^\))", statement, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no part {name} in {statement}"
    return found[1]


def _read(folder: str, schema: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted(files("synergon.stores").joinpath(folder, "sql").iterdir(), key=lambda entry: entry.name):
        for name, text in _split(file.read_text(encoding="utf-8")):
            assert name not in found, f"statement {name} stands twice"
            found[name] = fill(_with_columns(text.replace("{schema}", schema)))
    return found


def _with_columns(text: str) -> str:
    for name, columns in _COLUMNS.items():
        text = text.replace(name, columns)
    return text


def _split(text: str) -> Iterator[tuple[str, str]]:
    parts = _NAME.split(text)
    for name, content in zip(parts[1::2], parts[2::2], strict=True):
        yield name, _COMMENT.sub("", content).strip()
