"""The rights of database roles: what a producer, a worker, a viewer and an operator need, and no more."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

from synergon.errors import OptionError
from synergon.stores.columns import GIVEN, Form

ROLES: Final = ("producer", "worker", "viewer", "operator")

COMPUTED_BY_INSERTS: Final = ("state", "run_at", "enqueued_at", "expires_at", "tags")
"""Columns that inserts write in addition to those with values from a `NewTask`."""

LONGEST_NAME: Final = 63
_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")


def grants(schema: str, role: str, name: str) -> str:
    """The GRANT statements for one of `ROLES`, whose name in the database is `name`. They can be repeated, and those of
    several roles add up."""
    if role not in ROLES:
        raise OptionError(f"there are grants for {', '.join(ROLES)}, got {role!r}")
    text = files("synergon.stores").joinpath(f"postgres/roles/{role}.sql").read_text(encoding="utf-8")
    inserted = ", ".join([*GIVEN[Form.BOUND].names, *COMPUTED_BY_INSERTS])
    return text.format(schema=schema, role=_identifier(name), inserted=inserted)


def _identifier(name: str) -> str:
    """The name of a role as an SQL identifier, quoted if necessary."""
    if not name or len(name.encode()) > LONGEST_NAME or not name.isprintable():
        raise OptionError(f"the name of a role has 1 to {LONGEST_NAME} printable characters, got {name!r}")
    return name if _PLAIN_NAME.fullmatch(name) else '"{}"'.format(name.replace('"', '""'))
