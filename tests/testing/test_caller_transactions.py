"""`conn=` on the memory store of a test: with SQLAlchemy a task appears when the caller's transaction commits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool, StaticPool
from tests.postgres_server import server_url
from tests.testing.app import engine, greet

from synergon import KeyConflict, OptionError, TaskNotFound, testing
from synergon.testing import Tester


@pytest.fixture
def database() -> Iterator[sqlalchemy.Engine]:
    """The database of the application, which has no tables of synergon."""
    made = sqlalchemy.create_engine("sqlite://", poolclass=StaticPool)
    # The driver begins transactions too late for savepoints, so SQLAlchemy does it.
    sqlalchemy.event.listen(made, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    sqlalchemy.event.listen(made, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    yield made
    made.dispose()


@pytest.fixture
def tester_sync() -> Iterator[Tester]:
    with testing.memory(engine) as tester:
        yield tester


def names(tester: Tester) -> list[str]:
    return [record.arguments["name"] for record in tester.enqueued()]


def test_a_task_appears_with_the_commit_of_its_session(database: sqlalchemy.Engine, tester_sync: Tester) -> None:
    with Session(database) as session:
        handle = greet.with_options(conn=session).enqueue_sync("Ada")
        assert names(tester_sync) == []
        with pytest.raises(TaskNotFound):
            handle.status_sync()
        other = greet.enqueue_sync("Bob")
        session.commit()
        assert names(tester_sync) == ["Ada", "Bob"], "in the order of ids"
        session.commit()
        assert len(names(tester_sync)) == 2, "it is stored once"
    tester_sync.drain_sync()
    assert (handle.result_sync(), other.result_sync()) == ("hello Ada", "hello Bob")
    assert handle.id != other.id


def test_a_task_goes_with_the_transaction_of_its_session(database: sqlalchemy.Engine, tester_sync: Tester) -> None:
    session = Session(database)
    greet.with_options(conn=session).enqueue_sync("rolled back")
    session.rollback()
    session.commit()
    session.execute(sqlalchemy.text("SELECT 1"))
    greet.with_options(conn=session).enqueue_sync("closed")
    session.close()
    session.commit()
    with suppress(ZeroDivisionError), session.begin():
        greet.with_options(conn=session).enqueue_sync("raised")
        raise ZeroDivisionError
    session.commit()
    assert names(tester_sync) == []
    session.close()


def test_a_task_goes_with_its_savepoint(database: sqlalchemy.Engine, tester_sync: Tester) -> None:
    with Session(database) as session, session.begin():
        greet.with_options(conn=session).enqueue_sync("outside")
        with session.begin_nested():
            greet.with_options(conn=session).enqueue_sync("released")
            inner = session.begin_nested()
            greet.with_options(conn=session).enqueue_sync("rolled back")
            inner.rollback()
        assert names(tester_sync) == []
        outer = session.begin_nested()
        with session.begin_nested():
            greet.with_options(conn=session).enqueue_sync("released, then rolled back")
        outer.rollback()
    assert names(tester_sync) == ["outside", "released"]


def test_the_session_of_a_thread(database: sqlalchemy.Engine, tester_sync: Tester) -> None:
    sessions = scoped_session(sessionmaker(database))
    greet.with_options(conn=sessions).enqueue_sync("Ada")
    assert names(tester_sync) == []
    sessions.commit()
    assert names(tester_sync) == ["Ada"]
    sessions.remove()


def test_a_session_that_the_test_itself_rolls_back(database: sqlalchemy.Engine, tester_sync: Tester) -> None:
    """The usual way to test with a database: the commits of the code are savepoints of a transaction of the test."""
    with database.connect() as connection:
        whole = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            greet.with_options(conn=session).enqueue_sync("Ada")
            assert names(tester_sync) == []
            session.commit()
            assert names(tester_sync) == ["Ada"]
        whole.rollback()
    assert names(tester_sync) == ["Ada"]


def test_connections_of_sqlalchemy(database: sqlalchemy.Engine, tester_sync: Tester) -> None:
    with database.connect() as connection:
        with connection.begin():
            greet.with_options(conn=connection).enqueue_sync("committed")
            with connection.begin_nested():
                greet.with_options(conn=connection).enqueue_sync("released")
                inner = connection.begin_nested()
                greet.with_options(conn=connection).enqueue_sync("savepoint rolled back")
                inner.rollback()
            assert names(tester_sync) == []
        assert names(tester_sync) == ["committed", "released"]
        whole = connection.begin()
        greet.with_options(conn=connection).enqueue_sync("rolled back")
        whole.rollback()
        with connection.begin():
            pass
    assert names(tester_sync) == ["committed", "released"]


async def test_asyncio_sessions_and_connections(tester: Tester) -> None:
    url = server_url().replace("postgresql://", "postgresql+asyncpg://", 1)
    database = create_async_engine(url, poolclass=NullPool)
    async with AsyncSession(database) as session:
        await greet.with_options(conn=session).enqueue("session")
        assert names(tester) == []
        await session.commit()
        assert names(tester) == ["session"]
        await greet.with_options(conn=session).enqueue("rolled back")
        await session.rollback()
    async with database.begin() as connection:
        await greet.with_options(conn=connection).enqueue("connection")
        assert names(tester) == ["session"]
    assert names(tester) == ["session", "connection"]
    await database.dispose()


def test_connections_that_announce_nothing_store_at_once(tester_sync: Tester) -> None:
    connection = sqlite3.connect(":memory:")
    greet.with_options(conn=connection).enqueue_sync("Ada")
    connection.rollback()
    assert names(tester_sync) == ["Ada"], "as the guide says"
    connection.close()


def test_a_key_that_is_taken_is_noticed_before_the_commit(database: sqlalchemy.Engine, tester_sync: Tester) -> None:
    first = greet.with_options(key="one").enqueue_sync("Ada")
    with Session(database) as session:
        again = greet.with_options(key="one", conn=session).enqueue_sync("Bob")
        assert (again.id, again.created) == (first.id, False)
        with pytest.raises(KeyConflict):
            greet.with_options(key="one", on_conflict="raise", conn=session).enqueue_sync("Eve")
    assert names(tester_sync) == ["Ada"]


async def test_what_is_no_connection(tester: Tester) -> None:
    with pytest.raises(OptionError, match=r"conn must be a connection of .* got builtins\.object"):
        await greet.with_options(conn=object()).enqueue("Ada")
