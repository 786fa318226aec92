"""The connection in whose transaction a caller stores tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from synergon.call import Call
from synergon.errors import OptionError

_OF_DJANGO: Final = (
    ("django.db.backends.base.base", "BaseDatabaseWrapper"),
    ("django.utils.connection", "ConnectionProxy"),
)
"""The types of Django's connections, by module. Only a program that uses Django has imported them."""


def one_connection(calls: Sequence[Call[Any]], conn: Any) -> Any:
    """The connection on which all calls are to be stored; None means a transaction of the store. Raises OptionError if
    they name different connections."""
    named = {id(call.placement.conn): call.placement.conn for call in calls}
    if conn is not None:
        named.pop(id(None), None)
        named[id(conn)] = conn
    found = {id(connection): connection for connection in map(driver_connection, named.values())}
    if len(found) > 1:
        raise OptionError("these calls name different connections; one enqueue is one transaction")
    return next(iter(found.values()), None)


def driver_connection(conn: Any) -> Any:
    """The driver's connection behind a connection of Django; any other connection as it is. Raises OptionError if
    Django has no transaction open."""
    if not any(isinstance(conn, getattr(sys.modules.get(module), name, ())) for module, name in _OF_DJANGO):
        return conn
    if not conn.in_atomic_block:
        raise OptionError(
            f"the connection {conn.alias!r} of Django has no transaction open, so nothing would be joined; open one "
            "first, with transaction.atomic(). In async code, do both in one function under sync_to_async"
        )
    return conn.connection
