"""Reads SQL from files: `-- name: claim` starts the statement `claim`, and `-- part: pruned` a text that replaces
`{pruned}` in statements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from synergon.stores.columns import fill
from synergon.stores.rows import (
    ChangedTask,
    DependencyRow,
    FinalTask,
    FinishedClaim,
    GroupRow,
    KeyHolder,
    LiveTask,
    ScheduleRow,
    StatisticsRow,
    SucceededTask,
)
from synergon.stores.typed_rows import field_names

_NAME: Final = re.compile(r"^-- (?:name|(part)): (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_PART: Final = re.compile(r"\{(\w+)\.(\w+)\}")
_PART_OF: Final = r"^(?:WITH (?:RECURSIVE )?)?({name}(?: \([\w, ]+\))? AS (?:MATERIALIZED )?\(\n.*?^\))"
"""The pattern of a named part of a statement: a common table expression."""
_COLUMNS: Final = {
    f"{{{row_type.__name__}}}": ", ".join(field_names(row_type))
    for row_type in (
        LiveTask,
        FinalTask,
        FinishedClaim,
        ChangedTask,
        SucceededTask,
        KeyHolder,
        ScheduleRow,
        StatisticsRow,
        DependencyRow,
        GroupRow,
    )
}
"""Placeholders such as `{LiveTask}`, and the column lists that replace them."""


@cache
def statements(
    dialect: str, schema: str = "", overlay: str | None = None, *, skips_locked: bool = True
) -> Mapping[str, str]:
    """All statements of one dialect, by name, with their placeholders replaced:

    - `{schema}`: the checked name of the schema;
    - `{succeed.moved}`: the part `moved` of the statement `succeed`;
    - `{LiveTask}`: the columns of that struct;
    - `{carried}`, `{kept}`: the columns that move to the history, and those that move back (`stores.columns`);
    - `{claim}`, `{event}`, `{live_record}`, `{final_record}`: the columns from which these are read;
    - `{bare}`, `{plain}`, `{bound}`: the columns of the inserts. `{bare.values from $3}` are parameters for them,
      numbered from $3;
    - `{replaced.assigned from $7}`: assignments to the columns of a replaced task;
    - `{pruned}`, `{health}` and so on: the parts of these names;
    - `{skip locked}`: SKIP LOCKED. Without `skips_locked`, the statement waits for a locked row;
    - `{skip locked or raise}`: SKIP LOCKED. Without `skips_locked`, a locked row raises an error at once.

    `{new}`, the source of new tasks, and `{key}`, the key of a listing, remain: they are written for each call.

    Statements and parts in the folder `overlay` are added, or replace those with their names. A statement without text
    removes the statement with its name.
    """
    found = _read(dialect, schema)
    if overlay is not None:
        found |= _read(overlay, schema)
    for part in [name for name in found if name.startswith("{")]:
        replacement = found.pop(part)
        found = {name: text.replace(part, replacement) for name, text in found.items()}
    for placeholder, otherwise in (("{skip locked}", ""), ("{skip locked or raise}", "NOWAIT")):
        option = "SKIP LOCKED" if skips_locked else otherwise
        found = {name: text.replace(placeholder, option) for name, text in found.items()}
    return MappingProxyType({name: _filled(text, found) for name, text in found.items() if text})


def _filled(text: str, others: Mapping[str, str]) -> str:
    """Replace references to parts of other statements, so that shared SQL is written once."""
    return _PART.sub(lambda match: _part(others[match[1]], match[2]), text)


def _part(statement: str, name: str) -> str:
    found = re.search(_PART_OF.format(name=name), statement, re.MULTILINE | re.DOTALL)
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
    for is_part, name, content in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        yield f"{{{name}}}" if is_part else name, _COMMENT.sub("", content).strip()
