"""Parameters of SQLite's statements. Numbered ones in a sequence are a warning in Python 3.12, an error in 3.14."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import synergon.stores.sqlite
from synergon.stores.sqlite.transaction import SQL

METHODS = frozenset({"ids", "row", "rows", "run", "typed"})
NUMBERED = frozenset(name for name, text in SQL.items() if re.search(r"\$\d", text))


def calls_of_transactions() -> Iterator[tuple[str, str, ast.Call]]:
    """The calls of a `Transaction` in the SQLite store that name a statement, with file and statement."""
    for path in Path(synergon.stores.sqlite.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in METHODS and "transaction" in ast.unparse(node.func.value):
                for argument in node.args[:2]:
                    if isinstance(argument, ast.Constant) and argument.value in SQL:
                        yield f"{path.name}:{node.lineno}", str(argument.value), node


def test_numbered_parameters_are_given_by_name() -> None:
    found = list(calls_of_transactions())
    assert len(found) > 30
    wrong = [
        f"{where} {name}"
        for where, name, call in found
        if name in NUMBERED and not isinstance(call.args[-1], ast.Constant)
    ]
    assert wrong == []
