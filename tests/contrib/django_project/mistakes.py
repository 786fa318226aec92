"""Makes mistakes, and prints the error of each as JSON."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import django

django.setup()

from django.conf import settings  # noqa: E402  after the set-up
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.db import connection, connections, transaction  # noqa: E402
from shop.tasks import ship  # noqa: E402

from synergon import testing  # noqa: E402
from synergon.contrib.django import engine, on_commit  # noqa: E402
from synergon.contrib.django.database_urls import database_url  # noqa: E402
from synergon.contrib.django.project_engine import connection_to_join, engine_arguments  # noqa: E402


def error_of(function: Callable[[], Any]) -> str:
    """The type and text of what a function raises."""
    try:
        function()
    except Exception as error:  # noqa: BLE001  the test says which
        return f"{type(error).__name__}: {error}"
    return "none"


def without_transaction() -> None:
    """Join a transaction where there is none."""
    ship.with_options(conn=connection).enqueue_sync(1)


def beside_transaction() -> None:
    """Enqueue beside a transaction on the same file."""
    with transaction.atomic():
        ship.enqueue_sync(1)


def in_coroutine() -> None:
    """Join a transaction in asynchronous code."""

    async def enqueue() -> None:
        async with engine:
            await ship.with_options(conn=connection).enqueue(1)

    asyncio.run(enqueue())


def wrong_arguments_on_commit() -> None:
    """The error comes where the call is made, not after the commit."""
    with transaction.atomic():
        on_commit(ship.call("not a number"))


def in_test_database() -> None:
    """Use the engine while a test runner has replaced the database."""
    real = connection.settings_dict["NAME"]
    connection.settings_dict["NAME"] = "test_of_it"
    try:
        engine.queues_sync()
    finally:
        connection.settings_dict["NAME"] = real


def joined_in_tests() -> None:
    """In tests on a store in memory nothing is joined."""
    with testing.memory(engine) as tester, transaction.atomic():
        assert connection_to_join() is None
        ship.enqueue_sync(1)
        tester.assert_enqueued(ship, 1)


def flow_and_list_join() -> None:
    """A flow and a list of calls join a transaction, whichever way the connection is named."""
    with engine:
        with transaction.atomic():
            run = engine.chain([ship.call(1), ship.call(2)]).enqueue_sync(conn=connection)
            named = ship.with_options(conn=connection).call(3)
            (kept,) = engine.enqueue_sync([named], conn=connections["default"])
        with transaction.atomic():
            lost = engine.chain([ship.call(1)]).enqueue_sync(conn=connection)
            transaction.set_rollback(True)
        assert engine.flows.get_sync(run.id).name == "chain"
        assert kept.status_sync().arguments == {"order_id": 3}
        assert "there is no flow" in error_of(lambda: engine.flows.get_sync(lost.id))


def wrong_setting(value: Any) -> Callable[[], Any]:
    """Read this value of the setting."""

    def read() -> None:
        settings.SYNERGON = value
        engine_arguments()

    return read


def url_of(**database: Any) -> str:
    """The URL of a database of Django, or the error."""
    try:
        return database_url(database)
    except ImproperlyConfigured as error:
        return str(error)


mistakes = [
    without_transaction,
    beside_transaction,
    wrong_arguments_on_commit,
    in_test_database,
    joined_in_tests,
    in_coroutine,
    flow_and_list_join,
]
postgresql = "django.db.backends.postgresql"
print(
    json.dumps(
        {function.__name__: error_of(function) for function in mistakes}
        | {
            "misspelt setting": error_of(wrong_setting({"concurency": 3})),
            "no dict": error_of(wrong_setting("sqlite:///app.db")),
            "good setting": error_of(wrong_setting({"url": "memory://", "concurrency": 3})),
            "sqlite": url_of(ENGINE="django.db.backends.sqlite3", NAME="/srv/my shop#1.db"),
            "sqlite in memory": url_of(ENGINE="django.db.backends.sqlite3", NAME=":memory:"),
            "mysql": url_of(ENGINE="django.db.backends.mysql", NAME="shop"),
            "postgresql": url_of(ENGINE=postgresql, NAME="shop", USER="a@b", PASSWORD="p/w?", HOST="db", PORT=5433),
            "local": url_of(ENGINE=postgresql, NAME="shop"),
            "socket": url_of(ENGINE=postgresql, NAME="shop", USER="ada", HOST="/run/pg", PORT="5433"),
            "hosts": url_of(ENGINE=postgresql, NAME="shop", HOST="db1,::1", PORT="5432,5433"),
            "options": url_of(
                ENGINE="django.contrib.gis.db.backends.postgis",
                NAME="shop",
                HOST="db",
                OPTIONS={"sslmode": "require", "pool": True, "options": "-c search_path=app"},
            ),
        }
    )
)
