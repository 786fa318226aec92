"""`testing.use`: the module's engine on another database for a block, and as it was afterwards."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.postgres_server import administer, server_url
from tests.testing.app import engine, enqueues_from_a_process, greet

from synergon import Engine, NotAvailable, NotConnected, OptionError, State, SynergonError, testing
from synergon.testing.databases import SCHEMA_PREFIX

DATABASES = ("memory://", "sqlite://", "postgresql://")


def url_of(database: str) -> str:
    return server_url() if database == "postgresql://" else database


def schemas_of_tests() -> list[Any]:
    return administer("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", SCHEMA_PREFIX)


@pytest.mark.parametrize("database", DATABASES)
async def test_a_block_has_a_database_of_its_own(database: str) -> None:
    before = vars(engine).copy()
    for _ in range(2):
        async with testing.use(engine, url_of(database)) as used:
            assert used is engine
            handle = await greet.enqueue("Ada")
            assert [record.id for record in await engine.tasks()] == [handle.id], "nothing of the first block is here"
            async with engine.worker(drain=True):
                pass
            assert await handle.result() == "hello Ada"
    assert vars(engine) == before
    with pytest.raises(NotConnected):
        await handle.status()


@pytest.mark.parametrize("database", DATABASES)
def test_a_block_without_an_event_loop(database: str) -> None:
    before = vars(engine).copy()
    with testing.use(engine, url_of(database)):
        handle = greet.enqueue_sync("Ada")
        assert engine.run_sync(drain=True) == 0
        assert handle.result_sync() == "hello Ada"
    assert vars(engine) == before


async def test_nothing_of_a_temporary_database_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    earlier = schemas_of_tests()

    async def fail_inside(url: str) -> None:
        async with testing.use(engine, url):
            await greet.enqueue("Ada")
            raise ZeroDivisionError

    for url in ("sqlite://", server_url()):
        with pytest.raises(ZeroDivisionError):
            await fail_inside(url)
    assert not os.listdir(tmp_path)  # noqa: PTH208  iterdir is blocked in coroutines, by another rule
    assert schemas_of_tests() == earlier


async def test_a_database_that_the_caller_names_stays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/test.db"
    async with testing.use(engine, url):
        handle = await greet.enqueue("Ada")
    async with testing.use(engine, url):
        assert (await engine.get(handle.id)).state is State.READY


async def test_a_block_inside_a_block_and_inside_a_connection(tmp_path: Path) -> None:
    own = Engine(f"sqlite:///{tmp_path}/app.db")

    @own.task
    async def count() -> int:
        return 1

    async def enqueued() -> int:
        return len(await own.tasks())

    async def fail_inside() -> None:
        async with testing.use(own, "sqlite://"):
            await count.enqueue_many([()] * 3)
            assert await enqueued() == 3
            raise ZeroDivisionError

    async with own:
        await count.enqueue()
        async with testing.use(own):
            await count.enqueue_many([()] * 2)
            with pytest.raises(ZeroDivisionError):
                await fail_inside()
            async with testing.memory(own) as tester:
                assert tester.enqueued() == []
            assert await enqueued() == 2
        assert await enqueued() == 1
        async with own.worker(drain=True):
            pass
        assert (await own.counts())[State.SUCCEEDED] == 1


async def test_what_the_engine_declares_is_declared_in_each_database(tmp_path: Path) -> None:
    own = Engine(f"sqlite:///{tmp_path}/app.db")
    steps: list[str] = []
    own.limit("license", 1)

    @own.task(limits=["license"])
    async def work() -> None:
        steps.append("task")

    own.schedule("nightly", work.call(), cron="@daily")

    @own.lifespan
    async def share() -> AsyncIterator[None]:
        steps.append("begin")
        yield
        steps.append("end")

    async with own:
        for url, limit in ((None, "in-memory"), ("sqlite://", "in-a-file")):
            async with testing.use(own, url):
                own.limit(limit, 1)
                await work.enqueue()
                assert {"license", limit} <= {record.name for record in await own.limits()}
                async with own.worker():
                    assert [schedule.name for schedule in await own.schedules.list()] == ["nightly"]
                    await own.schedules.pause("nightly")  # so that the next lines need not wait for midnight
                    if url is not None:
                        await own.wait((await work.enqueue()).id, timeout=10)
        await work.enqueue()
        assert len(await own.limits()) == 3, "what was declared in a block is declared to the database of the program"
    assert steps.count("begin") == steps.count("end") == 2


async def test_child_processes_use_the_database_of_the_block() -> None:
    async with testing.use(engine, "sqlite://"), engine.worker():
        parent = await enqueues_from_a_process.enqueue("Ada")
        child = await engine.wait(await parent.result(timeout=60), timeout=60)
        assert child.result == "hello Ada"


async def test_the_clock_and_the_tester_exist_in_memory_only() -> None:
    block = testing.use(engine, "sqlite://")
    with pytest.raises(
        NotAvailable, match="a clock that a test can move exists in memory only, and this test uses sqlite://"
    ):
        _ = block.clock
    with pytest.raises(NotAvailable, match="a tester exists in memory only"):
        _ = block.tester
    assert testing.use(engine).clock is not None


def test_urls_that_make_no_sense_are_refused_at_once() -> None:
    with pytest.raises(OptionError, match="needs an Engine, got 'app'"):
        testing.use("app")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(OptionError, match="a store's URL looks like"):
        testing.use(engine, "app.db")
    with pytest.raises(OptionError, match="without a name, got 'memory://shared'"):
        testing.use(engine, "memory://shared")
    with pytest.raises(SynergonError, match="no store is called 'mysql'"):
        testing.use(engine, "mysql://host/db")


async def test_a_worker_that_runs_already() -> None:
    own = Engine("memory://")
    async with own.worker():
        with pytest.raises(SynergonError, match="runs already; begin the test before the worker starts"):
            async with testing.use(own):
                pass


async def test_a_block_whose_database_is_not_there_leaves_the_engine_as_it_was() -> None:
    before = vars(engine).copy()
    with pytest.raises(SynergonError):
        async with testing.use(engine, "sqlite:////nonexistent/folder/other.db"):
            pass
    assert vars(engine) == before
