"""SQL in files, one named statement each: `-- name: claim` starts the statement `claim`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)


@cache
def statements(dialect: str, schema: str = "") -> Mapping[str, str]:
    """All statements of one dialect by name; `{schema}` in them is replaced by a name that was checked."""
    found: dict[str, str] = {}
    for file in sorted(files(__name__).joinpath(dialect).iterdir(), key=lambda entry: entry.name):
        for name, text in _split(file.read_text(encoding="utf-8")):
            assert name not in found, f"statement {name} stands twice"
            found[name] = text.replace("{schema}", schema)
    return MappingProxyType(found)


def _split(text: str) -> Iterator[tuple[str, str]]:
    parts = _NAME.split(text)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        yield name, _COMMENT.sub("", body).strip()
