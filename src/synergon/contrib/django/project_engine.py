"""The engine of a Django project: made of the setting SYNERGON, by default on the default database of Django."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from synergon.client.call_lists import listed_calls
from synergon.client.caller_connections import one_connection
from synergon.contrib.django.connections import close_after_coroutine
from synergon.contrib.django.database_urls import database_url
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.options.settings import load
from synergon.stores import open_store

if TYPE_CHECKING:
    from synergon.call import Call
    from synergon.handle import Handle
    from synergon.node.processes.executors import Executor
    from synergon.options.settings import Settings
    from synergon.stores.base import Store


def engine_arguments() -> dict[str, Any]:
    """The setting SYNERGON: arguments of the engine. Raises ImproperlyConfigured if it has others."""
    given = getattr(settings, "SYNERGON", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"SYNERGON must be a dict of arguments of the engine, got {given!r}")
    known = list(inspect.signature(Engine).parameters)
    for name in given:
        if name not in known:
            raise ImproperlyConfigured(f"SYNERGON has no {name!r}; it takes {', '.join(known)}")
    return dict(given)


def _make_executor(settings: Settings) -> Executor:
    from synergon.contrib.django.executor import DjangoExecutor  # with the node, which producers do not load

    return DjangoExecutor(settings)


def _open_store(url: str) -> Store:
    """Open the store. Raises ImproperlyConfigured if Django has changed to another database, as test runners do: tasks
    of tests would be stored in the real one."""
    used, real = connections[DEFAULT_DB_ALIAS].settings_dict["NAME"], _DATABASE.get("NAME", "")
    if url == _URL and used != real:
        raise ImproperlyConfigured(
            f"Django uses the database {used!r}, as a test runner makes it do, but the engine uses {real!r}; in tests, "
            "use `with synergon.testing.memory(engine):`"
        )
    return open_store(url)


class ProjectEngine(Engine):
    """An engine that may share an SQLite file with Django."""

    def enqueue_sync(self, calls: Iterable[Call[Any]], *, conn: Any = None) -> list[Handle[Any]]:
        """`Engine.enqueue_sync`. Raises OptionError if the call would deadlock with the caller's own transaction on an
        SQLite file."""
        listed = listed_calls(calls)
        joined = None if one_connection(listed, conn) is not None else connection_to_join()
        if joined is not None and joined.vendor == "sqlite":
            raise OptionError(
                "Django has a transaction open on the SQLite file of the engine, and this call would wait for its end; "
                "join it with with_options(conn=connection), or enqueue after it with on_commit(...)"
            )
        return super().enqueue_sync(listed, conn=conn)


_SETTINGS: Final = engine_arguments()
_DATABASE: Final[dict[str, Any]] = dict(settings.DATABASES.get(DEFAULT_DB_ALIAS, {}))
_IS_SHARED: Final = "url" not in _SETTINGS and load({}).sources["url"] == "default"
_URL: Final = database_url(_DATABASE) if _IS_SHARED else None
"""The default database of Django, if the engine uses it."""

engine: Final = ProjectEngine(**_SETTINGS) if _URL is None else ProjectEngine(_URL, **_SETTINGS)
"""The engine of this project. It connects when it is first used."""

engine._ports.make_executor = _make_executor
engine.middleware(close_after_coroutine)
if _IS_SHARED:
    engine._ports.make_store = _open_store


def on_commit(*calls: Call[Any], using: str | None = None) -> None:
    """Enqueue these calls together when the transaction of the database `using` commits; at once if none is open. If it
    is rolled back, they are not enqueued. If the process dies between the commit and the enqueue, they are lost: with
    `conn=connection` they are a part of the transaction."""
    listed = listed_calls(calls)
    transaction.on_commit(lambda: engine.enqueue_sync(listed), using=using)


def is_on_django_database(alias: str = DEFAULT_DB_ALIAS) -> bool:
    """Whether the engine uses this database of Django. False while a test has replaced the database or the store."""
    is_used = connections[alias].settings_dict["NAME"] == _DATABASE.get("NAME", "")
    return engine._ports.make_store is _open_store and alias == DEFAULT_DB_ALIAS and is_used


def connection_to_join() -> Any:
    """The default connection of Django, if a transaction is open on it in which the engine can store tasks. None
    otherwise."""
    connection = connections[DEFAULT_DB_ALIAS]
    can_join = connection.in_atomic_block and connection.Database.__name__ != "psycopg2"
    return connection if can_join and is_on_django_database() else None
