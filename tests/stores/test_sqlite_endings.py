"""The history as a stream on SQLite: by their moments, ends are in the order of commits, whoever makes these."""

from __future__ import annotations

import sqlite3
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from tests.stores.actions import add_many
from tests.stores.conftest import make_folder
from tests.stores.test_endings import rest_ids

from synergon.model.lifecycle import FINAL
from synergon.stores.sqlite import SqliteStore, schema
from synergon.stores.sqlite.transaction import IssuedIds, Transaction
from synergon.stores.statements import statements

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path() -> Iterator[Path]:
    with make_folder() as folder:
        yield Path(folder) / "tasks.db"


def test_no_two_commits_have_the_same_moment(path: Path) -> None:
    """Even though the host's clock is read in milliseconds, and there is room for many commits in one."""
    schema.prepare(path)
    moments = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for _ in range(500):
            # Somebody whose steady clock is another one; otherwise that makes all the difference.
            connection.execute("UPDATE synergon_sequence SET boot_id = 'other'")
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection, IssuedIds(path))
            moments.append(transaction.now)
            connection.execute("UPDATE synergon_sequence SET last_id = last_id + 1")
            transaction.flush()
            connection.execute("COMMIT")
    assert len({moment // 1000 for moment in moments}) < 500, "they were too slow to show anything"
    assert all(earlier < later for earlier, later in pairwise(moments))


def test_a_look_at_the_stream_is_a_look_at_an_index(path: Path) -> None:
    schema.prepare(path)
    with closing(sqlite3.connect(path)) as connection:
        steps = {
            name: [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statements('sqlite')[name]}", given)]
            for name, given in {"endings": ("failed", 1, 10), "endings_at": ("failed", 1, 1, 10)}.items()
        }
    found = "SEARCH synergon_history USING INDEX synergon_history_age"
    assert steps == {
        "endings": [f"{found} (state=? AND finished_at>?)"],
        "endings_at": [f"{found} (state=? AND finished_at=? AND rowid>?)"],
    }


async def test_several_processes_on_one_file_are_read_without_a_gap_and_across_a_vacuum(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    await store.open()
    ids = await add_many(store, 300)
    command = (sys.executable, "-m", "tests.stores.drainer", store.url)
    drainers = [
        await create_subprocess_exec(*command, name, stdin=PIPE, stdout=PIPE, cwd=ROOT) for name in ("one", "two")
    ]
    for drainer in drainers:
        assert drainer.stdout is not None
        assert drainer.stdin is not None
        assert await drainer.stdout.readline() == b"ready\n"
        drainer.stdin.write(b"\n")
        await drainer.stdin.drain()
    told: list[int] = []
    cursor: str | None = None
    while len(told) < len(ids):
        page = await (await store.endings(cursor, FINAL)).read(7)
        told += [event.task_id for event in page]
        cursor = page[-1].cursor if page else cursor
    for drainer in drainers:
        await drainer.communicate()
    assert sorted(told) == ids
    (last,) = await add_many(store, 1)
    await store.cancel([last])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")
    assert await rest_ids(await store.endings(cursor, FINAL)) == [last]
    await store.close()
