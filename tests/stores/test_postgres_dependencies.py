"""Dependencies on PostgreSQL, where transactions run beside each other: what the locks are for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace
from tests.postgres_server import distributed_url, server_url, store_url
from tests.stores.actions import Worker, add, read, settlement_of, state_of
from tests.stores.test_dependencies import AFTER, add_after
from tests.support import PATIENCE_SECONDS

from synergon.model.dependencies import Need
from synergon.model.lifecycle import State
from synergon.model.outcomes import Succeeded
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.dependency_rows import DependencyRows
from synergon.stores.rows import ChangedTask

MEETING_SECONDS = 0.5


@pytest.fixture(params=["standard", "distributed"])
async def postgres(request: pytest.FixtureRequest) -> AsyncIterator[PostgresStore]:
    """A store of each profile."""
    store = PostgresStore(store_url() if request.param == "standard" else distributed_url())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def connection() -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection of its own."""
    found: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    yield found
    await found.close()


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two transactions that end tasks meet twice: after each has closed its dependency and before it looks for open
    ones, and again before either commits. One that waits for the lock of the other does not come."""
    before, after = Meeting(), Meeting()
    release = DependencyRows.release

    async def release_together(self: DependencyRows, ids: Sequence[int]) -> list[ChangedTask]:
        await before.join()
        released = await release(self, ids)
        await after.join()
        return released

    monkeypatch.setattr(DependencyRows, "release", release_together)


class Meeting:
    """Holds the first one until the second one comes, or MEETING_SECONDS have passed."""

    def __init__(self) -> None:
        self._arrived, self._both = 0, asyncio.Event()

    async def join(self) -> None:
        self._arrived += 1
        if self._arrived == 2:
            self._both.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._both.wait(), MEETING_SECONDS)


async def finish_both(store: PostgresStore) -> int:
    """End both dependencies of a task at one moment."""
    after = await add_after(store, await add(store), await add(store))
    worker = await Worker.start(store)
    claims = await worker.claim(limit=2)
    await asyncio.gather(*(store.finish([settlement_of(claim, Succeeded())]) for claim in claims))
    return after


@pytest.mark.usefixtures("meeting")
async def test_two_dependencies_that_end_at_one_moment_release_the_task(postgres: PostgresStore) -> None:
    assert await state_of(postgres, await finish_both(postgres)) is State.READY


@pytest.mark.parametrize("postgres", ["standard"], indirect=True)
@pytest.mark.usefixtures("meeting")
async def test_without_the_lock_each_would_see_the_other_one_open(
    postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "MEETING_SECONDS", PATIENCE_SECONDS)  # both come, however late
    unlocked = postgres._sql["lock_dependents"].replace("FOR UPDATE", "")
    postgres._sql = {**postgres._sql, "lock_dependents": unlocked}
    after = await finish_both(postgres)
    assert (await read(postgres, after)).is_dependent
    assert all(not need.is_open for need in (await postgres.dependencies([after]))[0])


async def test_a_dependency_that_ends_while_its_dependent_is_stored_counts(
    postgres: PostgresStore, connection: asyncpg.Connection[Any]
) -> None:
    needed = await add(postgres)
    claim = await (await Worker.start(postgres)).claim_one()
    async with connection.transaction():
        # Another transaction holds the row; the insert waits for it, and finds the task in the history.
        await connection.execute(f"SELECT 1 FROM {postgres.address.schema}.task WHERE id = $1 FOR UPDATE", needed)
        inserting = asyncio.ensure_future(postgres.insert([replace(AFTER, after=(Need(task_id=needed),))]))
        finishing = asyncio.ensure_future(postgres.finish([settlement_of(claim, Succeeded())]))
        await asyncio.sleep(0.05)
    await finishing
    (inserted,) = await inserting
    assert await state_of(postgres, inserted.id) is State.READY


async def test_finishers_inserters_and_cancels_beside_each_other_lose_nothing(postgres: PostgresStore) -> None:
    """Whatever the order, each dependent ends up ready or cancelled."""
    worker = await Worker.start(postgres)
    dependents: list[int] = []

    async def insert(needs: Sequence[int]) -> None:
        dependents.append(await add_after(postgres, *needs, if_fails="run"))

    for _ in range(20):
        needs = [await add(postgres) for _ in range(4)]
        claims = await worker.claim(limit=3)
        await asyncio.gather(
            *(postgres.finish([settlement_of(claim, Succeeded())]) for claim in claims),
            *(insert(needs) for _ in range(3)),
            postgres.cancel([needs[3]]),
        )
    assert {await state_of(postgres, task_id) for task_id in dependents} == {State.READY}
