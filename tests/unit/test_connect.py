"""Callers that connect one engine at the same time share one connection."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import NewEngine
from tests.support import Gate

from synergon import Engine, NotConnected
from synergon.stores.base import Store
from synergon.stores.sqlite import SqliteStore

CALLERS = 5


@pytest.fixture(params=("memory", "sqlite", "postgres"))
def url(request: pytest.FixtureRequest) -> str:
    """The URL of each store in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


class SlowStore(SqliteStore):
    """Opens when its gate does."""

    def __init__(self, url: str, *, gate: Gate) -> None:
        super().__init__(url)
        self._gate = gate

    async def open(self) -> None:
        await self._gate.hold()
        await super().open()


def count_stores(engine: Engine) -> list[Store]:
    """The stores that the engine makes from now on."""
    made: list[Store] = []
    make = engine._ports.make_store

    def make_and_note(url: str) -> Store:
        made.append(make(url))
        return made[-1]

    engine._ports.make_store = make_and_note
    return made


async def test_callers_that_connect_at_once_share_one_store(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    made = count_stores(engine)

    @engine.task
    async def note() -> None: ...

    await asyncio.gather(*(engine.connect() for _ in range(CALLERS)))
    assert len(made) == 1
    for _ in range(CALLERS - 1):
        await engine.close()
    assert (await note.enqueue()).id > 0, "the last caller has not closed yet"
    await engine.close()
    assert not engine._connection.is_open


async def test_callers_that_connect_in_vain_leave_nothing_open(new_engine: NewEngine, tmp_path: Path) -> None:
    """Each of them gets the error of an attempt; the next attempt may succeed."""
    folder = tmp_path / "later"
    engine = new_engine(f"sqlite:///{folder}/tasks.db")
    errors = await asyncio.gather(*(engine.connect() for _ in range(CALLERS)), return_exceptions=True)
    assert all("does not exist; create it" in str(error) for error in errors)
    folder.mkdir()
    await engine.connect()
    await engine.close()
    assert not engine._connection.is_open, "callers that failed are not counted"


async def test_a_caller_that_is_cancelled_while_it_connects_leaves_that_to_the_next(
    new_engine: NewEngine, sqlite_url: str
) -> None:
    gate = Gate()
    engine = new_engine(sqlite_url)
    engine._ports.make_store = partial(SlowStore, gate=gate)
    made = count_stores(engine)
    first, second = (asyncio.create_task(engine.connect()) for _ in range(2))
    await gate.until_reached()
    first.cancel()
    gate.open()
    assert await second is engine
    assert first.cancelled()
    assert len(made) == 2, "one for each attempt, and the first was given up"
    await engine.close()
    assert not engine._connection.is_open


async def test_while_one_event_loop_connects_another_one_is_refused(new_engine: NewEngine, sqlite_url: str) -> None:
    gate = Gate()
    engine = new_engine(sqlite_url)
    engine._ports.make_store = partial(SlowStore, gate=gate)
    made = count_stores(engine)
    connecting = asyncio.create_task(engine.connect())
    await gate.until_reached()
    with ThreadPoolExecutor() as threads:
        elsewhere = threads.submit(lambda: asyncio.run(engine.connect()))
        with pytest.raises(NotConnected, match="another event loop"):
            await asyncio.wrap_future(elsewhere)
    gate.open()
    await connecting
    assert len(made) == 1
    await engine.close()
    assert not engine._connection.is_open, "the caller that was refused is not counted"


def test_an_event_loop_that_ends_while_it_connects_keeps_no_other_from_it(sqlite_url: str) -> None:
    async def give_up() -> None:
        connecting = asyncio.ensure_future(engine.connect())
        await asyncio.sleep(0)
        assert not connecting.done()

    async def connect_and_close() -> None:
        async with engine:
            assert engine._connection.is_open

    engine = Engine(sqlite_url)
    make, engine._ports.make_store = engine._ports.make_store, partial(SlowStore, gate=Gate())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(give_up())  # stops, and is not closed
    engine._ports.make_store = make
    asyncio.run(connect_and_close())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
