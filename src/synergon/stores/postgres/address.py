"""What a `postgresql://` URL says to the driver, and what it says to us."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from synergon.errors import ConfigurationError

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OURS: Final = ("schema", "pool", "pgbouncer")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the database is, and how to use it."""

    dsn: str
    schema: str = "synergon"
    pool: int = 8
    """How many connections this process may hold, besides the one for its lease."""
    is_pooled_elsewhere: bool = False
    """A transaction-mode pooler stands in between: nothing may outlive a transaction on a connection."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Split our own parameters off."""
        parts = urlsplit(url)
        parameters = parse_qsl(parts.query, keep_blank_values=True)
        ours = {name: value for name, value in parameters if name in _OURS}
        theirs = urlencode([(name, value) for name, value in parameters if name not in _OURS])
        return cls(
            dsn=urlunsplit(parts._replace(query=theirs)),
            schema=_check_schema(ours.get("schema", "synergon")),
            pool=_check_pool(ours.get("pool", "8")),
            is_pooled_elsewhere=_check_switch(ours.get("pgbouncer", "false")),
        )


def _check_schema(name: str) -> str:
    if not _SCHEMA.fullmatch(name):
        raise ConfigurationError(f"a schema's name is made of small letters, digits and _, got schema={name!r}")
    return name


def _check_pool(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise ConfigurationError(f"pool must be a whole number from 1 to 1000, got pool={text!r}")
    return int(text)


def _check_switch(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise ConfigurationError(f"pgbouncer is true or false, got pgbouncer={text!r}")
    return text.lower() in ("true", "1", "yes")
