"""The history as a stream on PostgreSQL, where transactions commit in any order and may be held open for long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.postgres_server import DISTRIBUTED_SCHEMA, SCHEMA, administer, distributed_url, server_url, store_url
from tests.stores.actions import HOUR, Worker, add_many
from tests.stores.test_endings import EVERYTHING, rest, rest_ids

from synergon.errors import EventsLost, OptionError
from synergon.model.lifecycle import FINAL
from synergon.model.outcomes import Succeeded
from synergon.model.tasks import Cutoffs
from synergon.stores.final_events import NOW
from synergon.stores.postgres import PostgresStore
from synergon.stores.postgres.profile import DISTRIBUTED, STANDARD

HALF_AN_HOUR = HOUR // 2
END = STANDARD.statements(SCHEMA)["end"]


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(store_url())
    await store.open()
    yield store
    await store.close()


class Writer:
    """Somebody who ends tasks in a transaction that is held open."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection
        self.transaction = connection.transaction()

    async def end(self, *ids: int) -> None:
        """Begin, and end these."""
        self.transaction = self.connection.transaction()
        await self.transaction.start()
        await self.connection.fetch(END, ids, [None] * len(ids), "succeeded", None, True)

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()


@asynccontextmanager
async def writers(number: int) -> AsyncIterator[list[Writer]]:
    connections = [await asyncpg.connect(server_url()) for _ in range(number)]
    try:
        yield [Writer(connection) for connection in connections]
    finally:
        for connection in connections:
            await connection.close()


async def test_transactions_that_commit_in_the_opposite_order_are_all_told_and_at_once(store: PostgresStore) -> None:
    ids = await add_many(store, 4)
    reading = await store.endings(None, FINAL)
    async with writers(4) as held:
        for writer, task_id in zip(held, ids, strict=True):
            await writer.end(task_id)
        assert await rest_ids(reading) == []
        for writer, task_id in zip(reversed(held), reversed(ids), strict=True):
            await writer.commit()
            assert await rest_ids(reading) == [task_id], "those that are still open hold nobody up"


async def test_a_cursor_knows_what_was_open_when_it_was_given(store: PostgresStore) -> None:
    slow, quick, undone = await add_many(store, 3)
    async with writers(3) as held:
        await held[0].end(slow)
        await held[1].end(undone)
        await held[2].end(quick)
        await held[2].commit()
        (event,) = await (await store.endings(None, FINAL)).read(10)
        assert event.task_id == quick
        await held[0].commit()
        await held[1].rollback()
    assert await rest_ids(await store.endings(event.cursor, FINAL)) == [slow]


@pytest.mark.parametrize("after", [None, NOW])
async def test_what_was_committed_late_and_pruned_before_it_was_read_does_not_go_unnoticed(
    store: PostgresStore, after: str | None
) -> None:
    slow, quick, undone = await add_many(store, 3)
    async with writers(2) as held:
        await held[0].end(slow)
        await held[1].end(undone)
        reading = await store.endings(after, FINAL)
        await store.cancel([quick])
        (event,) = await rest(reading)
        assert event.task_id == quick
        await held[0].commit()
        await store.prune(EVERYTHING, 10)
        for interrupted in (reading, await store.endings(event.cursor, FINAL)):
            with pytest.raises(EventsLost):
                await interrupted.read(10)
        await held[1].rollback()


async def test_what_is_pruned_while_a_transaction_is_under_way_is_no_loss(store: PostgresStore) -> None:
    gone, given, late = await add_many(store, 3)
    async with writers(1) as held:
        await held[0].end(late)
        await store.cancel([gone])
        await store.prune(EVERYTHING, 10)
        reading = await store.endings(None, FINAL)
        await store.cancel([given])
        (event,) = await rest(reading)
        assert event.task_id == given
        await held[0].commit()
    for goes_on in (reading, await store.endings(event.cursor, FINAL)):
        assert await rest_ids(goes_on) == [late]


async def test_writers_that_overlap_and_a_reader_that_resumes_at_random_lose_and_repeat_nothing(
    store: PostgresStore,
) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    ids = await add_many(store, 400)
    left = list(ids)
    told: list[int] = []
    cursor: str | None = None

    async def work(writer: Writer) -> None:
        while left:
            mine = [left.pop() for _ in range(min(chance.randint(1, 4), len(left)))]
            await writer.end(*mine)
            await asyncio.sleep(chance.random() * 0.02)  # held open on purpose
            if chance.random() < 0.2:
                await writer.rollback()
                left.extend(mine)
            else:
                await writer.commit()

    async with writers(6) as held:
        working = asyncio.gather(*(work(writer) for writer in held))
        reading = await store.endings(cursor, FINAL)
        is_over = False
        while True:
            is_over = working.done()
            page = await reading.read(chance.randint(1, 12))
            told += [event.task_id for event in page]
            cursor = page[-1].cursor if page else cursor
            if is_over and not page:
                break
            if chance.random() < 0.4:
                reading = await store.endings(cursor, FINAL)
        await working
    assert sorted(told) == ids
    assert len(set(told)) == len(told)


async def test_a_cursor_from_before_a_restore_elsewhere_is_refused(store: PostgresStore) -> None:
    """A dump that was restored on another server brings its history, but not the server's count of transactions."""
    far = 2**62
    reading = await store.endings(f"{far}:/{far}:/{far - 1}-1", FINAL)
    with pytest.raises(OptionError, match="moved or restored"):
        await reading.read(10)


async def test_the_stream_reads_its_index_and_not_the_history(store: PostgresStore) -> None:
    await store.cancel(await add_many(store, 300))
    administer(f"ANALYZE {SCHEMA}.history")
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url(), server_settings=dict(STANDARD.settings))
    sql = STANDARD.statements(SCHEMA)["endings"]
    arguments = (["5", "7"], "9", -1, str(2**60), ["11"], "0", -1, 10)
    plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {sql}", *arguments))
    await connection.close()
    assert plan.count("history_ending") == plan.count("history_success") == 2, plan
    assert "Seq Scan" not in plan


# ---------------------------------------------------------------- what is pruned in that order


async def _succeed(store: PostgresStore, count: int, node_id: str = "node-1") -> list[int]:
    """Each in a transaction of its own."""
    worker = await Worker.start(store, node_id)
    ids = await add_many(store, count)
    for claim in await worker.claim():
        await worker.finish(claim, Succeeded())
    return ids


def _set(ids: Sequence[int], what: str) -> None:
    administer(f"UPDATE {SCHEMA}.history SET {what} WHERE id IN ({', '.join(map(str, ids))})")


async def _left(store: PostgresStore, ids: Sequence[int]) -> list[int]:
    return [record.id for record in await store.get(ids) if record is not None]


async def test_successes_that_ended_by_a_clock_that_was_put_back_keep_no_others_from_going(
    store: PostgresStore,
) -> None:
    ids = await _succeed(store, 4)
    _set(ids[:3], "finished_at = now() + interval '1 year'")
    _set(ids[3:], "finished_at = now() - interval '1 hour'")
    assert await store.prune(Cutoffs(succeeded=HALF_AN_HOUR), 2) == 1
    assert await _left(store, ids) == ids[:3]


async def test_successes_of_a_history_that_was_restored_elsewhere_go_when_they_are_old(store: PostgresStore) -> None:
    """Their transactions are ahead of the server's count, and behind them, by that count, is all that ends here."""
    ids = await _succeed(store, 5)
    _set(ids[:2], "ended_in = '4611686018427387904', finished_at = now() - interval '1 hour'")
    assert await store.prune(Cutoffs(succeeded=HALF_AN_HOUR), 2) == 2
    assert await _left(store, ids) == ids[2:]


async def test_a_few_that_took_long_to_commit_do_not_hold_up_the_rest(store: PostgresStore) -> None:
    ids = await _succeed(store, 9)
    _set(
        ids[1:], "finished_at = now() - interval '1 hour'"
    )  # the first is young, although its transaction is the first
    assert [await store.prune(Cutoffs(succeeded=HALF_AN_HOUR), 4) for _ in range(3)] == [4, 4, 0]
    assert await _left(store, ids) == ids[:1]


async def test_what_was_restored_and_pruned_does_not_hide_what_is_lost_later(store: PostgresStore) -> None:
    _set(await _succeed(store, 1), "ended_in = '4611686018427387904'")
    await store.prune(EVERYTHING, 10)
    reading = await store.endings(NOW, FINAL)
    await _succeed(store, 1, "node-2")
    await store.prune(EVERYTHING, 10)
    with pytest.raises(EventsLost):
        await reading.read(10)


async def test_no_more_successes_are_looked_at_than_may_be_pruned(store: PostgresStore) -> None:
    await _succeed(store, 1)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url(), server_settings=dict(STANDARD.settings))
    plan = "\n".join(
        row[0]
        for row in await connection.fetch(f"EXPLAIN {STANDARD.statements(SCHEMA)['prune_succeeded']}", HALF_AN_HOUR, 10)
    )
    await connection.close()
    assert plan.count("history_success") == 2, plan
    assert "Seq Scan" not in plan
    assert "Sort" not in plan


# ---------------------------------------------------------------- the profile without snapshots


async def test_by_the_clock_a_commit_that_comes_late_is_told_too() -> None:
    store = PostgresStore(distributed_url())
    await store.open()
    ids = await add_many(store, 3)
    reading = await store.endings(None, FINAL)
    sql = DISTRIBUTED.statements(DISTRIBUTED_SCHEMA)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(server_url())
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetch(sql["end"], ids[:1], [None], "cancelled", "cancelled", False)
    await connection.execute(sql["remove_ended"], ids[:1])
    # Its clock is behind that of others, too.
    await connection.execute(
        f"UPDATE {DISTRIBUTED_SCHEMA}.history SET finished_at = finished_at - $1::interval", timedelta(seconds=1)
    )
    await store.cancel(ids[1:2])
    assert await rest_ids(reading) == ids[1:2]
    await transaction.commit()
    assert await rest_ids(reading) == ids[:1]
    await store.cancel(ids[2:])
    assert await rest_ids(reading) == ids[2:]
    await connection.close()
    await store.close()
