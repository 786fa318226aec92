"""Databases that cannot be used: the error says why, and what was accepted is kept."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, Gate, all_tasks, until

from synergon import Engine, SchemaError, State, StoreError, StoreUnavailable

NOBODY = 65534


async def test_a_database_of_a_newer_version_is_left_alone(new_engine: NewEngine, sqlite_url: str) -> None:
    async with new_engine(sqlite_url):
        pass
    path = sqlite_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE synergon_meta SET value = 99 WHERE name = 'schema_version'")
    connection.close()
    with pytest.raises(
        SchemaError, match=r"was made by a newer synergon: its schema has version 99, .*; upgrade synergon"
    ):
        await new_engine(sqlite_url).connect()


async def test_a_file_that_is_no_database_is_left_alone(new_engine: NewEngine, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 100)
    with pytest.raises(StoreError, match=r"notes\.txt is not a SQLite database; name another file") as refused:
        await new_engine(f"sqlite:///{path}").connect()
    assert path.read_text().startswith("Dear diary")
    # Even a caller who keeps the error, and with it all that its traceback holds, keeps no file open.
    assert refused.value.__traceback__ is not None
    assert str(path) not in [file.path for file in psutil.Process().open_files()]


async def test_a_folder_that_does_not_exist_is_named(new_engine: NewEngine, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/missing/app.db"
    engine = new_engine(url)
    with pytest.raises(StoreError, match=rf"the folder {tmp_path}/missing does not exist; create it, or name another"):
        await engine.connect()
    (tmp_path / "missing").mkdir()
    async with engine:
        assert await all_tasks(engine) == []


async def test_a_folder_is_no_database(new_engine: NewEngine, tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=rf"{tmp_path} is a folder; name a file in it, as in sqlite:///{tmp_path}/app.db"
    ):
        await new_engine(f"sqlite:///{tmp_path}").connect()


async def test_a_database_of_somebody_elses_gets_our_tables_beside_theirs(
    new_engine: NewEngine, sqlite_url: str
) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (name)")
        connection.execute("INSERT INTO orders VALUES ('book')")
    connection.close()
    async with new_engine(sqlite_url):
        pass
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM orders").fetchall() == [("book",)]
    connection.close()


@pytest.mark.parametrize("table", ["synergon_task (name)", "synergon_meta (version)", "synergon_meta (name, value)"])
async def test_tables_of_somebody_elses_that_are_called_like_ours_are_left_alone(
    new_engine: NewEngine, sqlite_url: str, table: str
) -> None:
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.execute(f"CREATE TABLE {table}")
        before = connection.execute("SELECT sql FROM sqlite_master").fetchall()
        with pytest.raises(
            SchemaError, match=r"belongs to another program: .*synergon_\w+.*; rename it, or use another file"
        ):
            await new_engine(sqlite_url).connect()
        assert connection.execute("SELECT sql FROM sqlite_master").fetchall() == before


READ_ONLY = """
import asyncio, os, sys
from synergon import Engine, StoreError
from synergon.doctor.diagnosis import disk_problems
from synergon.stores import open_store
Engine("sqlite:///unused.db")  # everything is imported while it may be read
if os.getuid() == 0:
    os.setgid({nobody})
    os.setuid({nobody})

async def main():
    engine = Engine(sys.argv[1])

    @engine.task
    async def note() -> None: ...

    try:
        async with engine:
            await note.enqueue()
    except StoreError as error:
        print(type(error).__name__, error)
    else:
        print("stored")

asyncio.run(main())
for finding in disk_problems(open_store(sys.argv[1]), {{}}):
    print(finding.problem)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="rights of files are different there")
async def test_a_file_that_may_not_be_written_says_so_and_the_doctor_finds_it(
    new_engine: NewEngine, tmp_path: Path
) -> None:
    folder = tmp_path / "readable"
    folder.mkdir()
    url = f"sqlite:///{folder}/app.db"
    async with new_engine(url):
        pass
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    for parent in [folder, *folder.parents][:-1]:
        if os.getuid() == 0 and parent.stat().st_uid == 0 and parent != folder:
            parent.chmod(parent.stat().st_mode | 0o055)
    script = READ_ONLY.format(nobody=NOBODY)
    found = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script, url], capture_output=True, text=True, check=False
    )
    folder.chmod(0o755)
    assert found.returncode == 0, found.stderr
    said, *problems = found.stdout.splitlines()
    assert said.startswith("StoreUnavailable the database "), said
    assert "read-only; give this process the right to write it and its folder" in said
    for place in (folder, folder / "app.db"):
        assert f"{place} cannot be written, so no task can be stored or finished" in problems


async def fill_the_disk(engine: Engine) -> None:
    """Let the file grow no further, as a full disk would."""
    await _limit_pages(engine, 1)  # SQLite makes that the present size


async def free_some_space(engine: Engine) -> None:
    await _limit_pages(engine, 2**30)


async def _limit_pages(engine: Engine, pages: int) -> None:
    writer = engine._store._writer  # type: ignore[attr-defined]  # of this one only
    await writer.do(lambda transaction: transaction.select(f"PRAGMA max_page_count = {pages}", ()))


async def test_a_full_disk_refuses_new_work_and_loses_none_that_was_accepted(
    new_engine: NewEngine, sqlite_url: str
) -> None:
    engine = new_engine(sqlite_url, sweep=0.05)
    gate = Gate()
    runs: list[int] = []

    @engine.task
    async def work(number: int, ballast: str = "") -> int:
        runs.append(number)
        if number == 0:
            await gate.hold()
        return number

    async def enqueue_until_it_fails() -> None:
        for _ in range(100):
            accepted.append(await work.enqueue(len(accepted), "x" * 20_000))

    async with engine.worker(concurrency=1):
        accepted = [await work.enqueue(number) for number in range(5)]
        await gate.until_reached()
        await fill_the_disk(engine)
        with pytest.raises(StoreUnavailable, match="cannot grow because the disk is full; free some space"):
            await enqueue_until_it_fails()
        gate.open()
        await free_some_space(engine)
        results = await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in accepted))
        assert await (await work.enqueue(1000)).result(PATIENCE_SECONDS) == 1000
        tasks = await all_tasks(engine)
    assert results == list(range(len(accepted)))
    assert sorted(runs) == [*range(len(accepted)), 1000], "each once"
    assert {task.state for task in tasks} == {State.SUCCEEDED}
    assert len(tasks) == len(accepted) + 1


async def test_outcomes_wait_until_a_full_disk_has_space_again(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url)
    gate = Gate()

    @engine.task
    async def work() -> str:
        await gate.hold()
        return "x" * 200_000

    async with engine.worker() as node:
        handle = await work.enqueue()
        await gate.until_reached()
        await fill_the_disk(engine)
        gate.open()
        await until(lambda: node.completer.is_store_failing)
        assert (await handle.status()).state is State.RUNNING
        await free_some_space(engine)
        assert len(await handle.result(PATIENCE_SECONDS)) == 200_000
        assert (await handle.status()).attempts == 1


async def test_a_database_that_somebody_else_has_locked_is_waited_for(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url)

    @engine.task
    async def note() -> str:
        return "ran"

    async with engine.worker():
        holder = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        enqueuing = asyncio.create_task(note.enqueue())
        await asyncio.sleep(0.1)  # while it is locked
        assert not enqueuing.done()
        holder.execute("COMMIT")
        holder.close()
        handle = await enqueuing
        assert await handle.result(PATIENCE_SECONDS) == "ran"
