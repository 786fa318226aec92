"""Statistics: rows that engines write and replace, merged into hours and days, and pruned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.stores.actions import HOUR, KIND, MILLISECOND, Worker, add, pass_time

from synergon.model.clock import SystemClock
from synergon.model.task_statistics import (
    DAY,
    EMPTY,
    ErrorCount,
    Histogram,
    KindNumbers,
    Numbers,
    Statistics,
    StatisticsQuery,
)
from synergon.model.tasks import Cutoffs
from synergon.node.duties.depth_recorder import DepthRecorder
from synergon.stores.base import Store
from synergon.stores.postgres import PostgresStore
from synergon.stores.rules.statistics import SECOND, start_of

MINUTE = 60 * SECOND
A_DAY = DAY * SECOND


def numbers(accepted: int, *, started: int = 0, failed: int = 0) -> Numbers:
    """What an engine may have counted."""
    times = Histogram(counts=(started, *EMPTY[1:]), seconds=float(started))
    error = {"digest": ErrorCount(type="ValueError", message="no #", count=failed)} if failed else {}
    ended = {"succeeded": started - failed, "error": failed} if failed else {"succeeded": started}
    return Numbers(accepted=accepted, started=started, ended=ended, wait=times, run=times, errors=error)


async def write(store: Store, source: str, at: int, *counted: tuple[str, Numbers]) -> None:
    """Write what this engine has counted in a minute."""
    rows = [KindNumbers(kind=kind, queue="default", numbers=one) for kind, one in counted]
    await store.append_statistics(source, at, rows)


async def read(store: Store, age: int = HOUR, kind: str | None = None, queue: str | None = None) -> list[Statistics]:
    return await store.statistics(StatisticsQuery(age=age, kind=kind, queue=queue))


async def merge_all(store: Store) -> int:
    """Merge until nothing is left to merge. Returns how many spans were."""
    merged = 0
    while found := await store.compact_statistics(3):
        merged += found
    return merged


def accepted(found: Sequence[Statistics]) -> dict[str, int]:
    return {one.kind: one.accepted for one in found}


async def test_a_store_in_which_nothing_was_counted_has_none(store: Store) -> None:
    assert await read(store) == []
    assert await store.compact_statistics(10) == 0


async def test_the_numbers_of_all_engines_are_added_up(store: Store) -> None:
    minute = start_of(60, await store.now())
    await write(store, "left", minute, ("work", numbers(3, started=2, failed=1)), ("other", numbers(1)))
    await write(store, "right", minute, ("work", numbers(4, started=2)))
    await write(store, "left", minute - MINUTE, ("work", numbers(10)))
    other, work = await read(store)
    assert (other.kind, other.accepted, other.started, other.errors) == ("other", 1, 0, ())
    assert (work.accepted, work.started, work.succeeded, work.failed) == (17, 4, 3, {"error": 1})
    assert (work.wait.count, work.run.count, work.run.seconds) == (4, 4, 4.0)
    assert work.errors == (ErrorCount(type="ValueError", message="no #", count=1),)
    assert [(point.accepted, point.started, point.succeeded, point.failed) for point in work.points] == [
        (10, 0, 0, 0),
        (7, 4, 3, 1),
    ]


async def test_a_row_that_is_written_again_replaces_itself(store: Store) -> None:
    minute = start_of(60, await store.now())
    for number in (1, 5, 5, 7):
        await write(store, "left", minute, ("work", numbers(number)))
    assert accepted(await read(store)) == {"work": 7}


async def test_only_the_kind_the_queue_and_the_time_that_were_asked_for_count(store: Store) -> None:
    now = await store.now()
    minute = start_of(60, now)
    await write(store, "left", minute, ("work", numbers(1)), ("other", numbers(2)))
    await write(store, "left", minute - 50 * MINUTE, ("work", numbers(4)))
    await store.append_statistics("left", minute, [KindNumbers(kind="work", queue="mail", numbers=numbers(8))])
    assert accepted(await read(store, kind="other")) == {"other": 2}
    assert accepted(await read(store, queue="mail")) == {"work": 8}
    assert [(one.queue, one.accepted) for one in await read(store, kind="work")] == [("default", 5), ("mail", 8)]
    assert accepted(await read(store, 10 * MINUTE, kind="work", queue="default")) == {"work": 1}
    assert await read(store, kind="none") == []


async def test_old_minutes_become_hours_and_old_hours_days_and_no_number_is_lost(store: Store) -> None:
    now = await store.now()
    total = 0
    for age in (0, 30 * MINUTE, 5 * HOUR, 5 * HOUR + MINUTE, 30 * HOUR, 10 * A_DAY, 10 * A_DAY + HOUR, 40 * A_DAY):
        for source in ("left", "right"):
            total += 1
            await write(store, source, start_of(60, now - age), ("work", numbers(1, started=1)))
    before = await read(store, 60 * A_DAY)
    assert await merge_all(store) > 0
    assert await merge_all(store) == 0
    (after,) = await read(store, 60 * A_DAY)
    assert (after.accepted, after.wait, after.run, after.ended) == (
        total,
        before[0].wait,
        before[0].run,
        before[0].ended,
    )
    assert after.span_seconds == DAY
    assert sum(point.accepted for point in after.points) == total
    (recent,) = await read(store, HOUR)
    assert (recent.span_seconds, recent.accepted) == (60, 4)
    (of_two_days,) = await read(store, 2 * A_DAY)
    assert (of_two_days.span_seconds, of_two_days.accepted) == (3600, 10)


async def test_the_depth_of_a_span_is_the_largest_in_it(store: Store) -> None:
    now = await store.now()
    for number, depth in enumerate((3, 40, 7)):
        at = start_of(3600, now - 5 * HOUR) + number * MINUTE
        await write(store, "depth", at, ("work", Numbers(depth=depth)))
        await write(store, "left", at, ("work", numbers(1, started=1)))
    await write(store, "depth", start_of(60, now), ("work", Numbers(depth=5)))
    await merge_all(store)
    (found,) = await read(store, A_DAY)
    assert (found.accepted, found.depth) == (3, 40)
    assert [(point.depth, point.wait.count) for point in found.points] == [(40, 3), (5, 0)]
    (recent,) = await read(store, HOUR)
    assert [point.depth for point in recent.points] == [5]


async def test_nodes_record_how_many_tasks_are_ready(store: Store, worker: Worker) -> None:
    recorder = DepthRecorder(store, SystemClock())
    minute = start_of(60, await store.now())
    await recorder.record(minute)
    assert await read(store) == []
    await asyncio.gather(*(add(store) for _ in range(3)))
    await add(store, kind="other", queue="mail")
    await add(store, kind="later", delay=HOUR)
    await asyncio.gather(*(recorder.record(minute) for _ in range(4)))
    assert {(one.kind, one.queue): one.depth for one in await read(store)} == {
        (KIND, "default"): 3,
        ("other", "mail"): 1,
    }
    await worker.claim(limit=2)
    await recorder.record(minute)
    assert [one.depth for one in await read(store, kind=KIND)] == [1], "the count of a minute is replaced"


async def test_two_that_merge_at_once_lose_nothing(store: Store) -> None:
    now = await store.now()
    for number in range(6):
        await write(store, "left", start_of(60, now - 5 * HOUR) + number * MINUTE, ("work", numbers(1)))
    await asyncio.gather(*(store.compact_statistics(2) for _ in range(4)))
    await merge_all(store)
    assert accepted(await read(store, A_DAY)) == {"work": 6}


async def test_a_merged_row_has_the_commonest_errors_only(store: Store) -> None:
    at = start_of(3600, await store.now() - 5 * HOUR)
    for minute in range(3):
        errors = {
            f"{minute}-{number}": ErrorCount(type="E", message=f"{minute}", count=10 * minute + number + 1)
            for number in range(20)
        }
        await write(store, "left", at + minute * MINUTE, ("work", Numbers(accepted=1, errors=errors)))
    await merge_all(store)
    (found,) = await read(store, A_DAY)
    assert [error.count for error in found.errors] == sorted(
        (10 * minute + number + 1 for minute in range(3) for number in range(20)), reverse=True
    )[:20]


async def test_old_rows_of_every_span_are_pruned(store: Store) -> None:
    now = await store.now()
    for age in (0, 5 * HOUR, 20 * A_DAY, 50 * A_DAY):
        await write(store, "left", start_of(60, now - age), ("work", numbers(1)))
    await merge_all(store)
    await write(store, "left", start_of(60, now - 60 * A_DAY), ("work", numbers(1)))
    await store.prune(Cutoffs(), 100)
    assert accepted(await read(store, 90 * A_DAY)) == {"work": 5}
    await store.prune(Cutoffs(statistics=30 * A_DAY), 100)
    assert accepted(await read(store, 90 * A_DAY)) == {"work": 3}


@pytest.mark.parametrize("delay", [0, 30 * MILLISECOND])
async def test_a_claim_says_how_long_its_task_has_been_due(store: Store, worker: Worker, delay: int) -> None:
    task_id = await add(store, delay=delay)
    await pass_time(store, delay + 20 * MILLISECOND)
    await store.wake(10)
    claim = await worker.claim_one()
    (record,) = await store.get([task_id])
    assert record is not None
    assert record.started_at is not None
    waited = (record.started_at - record.run_at).total_seconds()
    assert waited >= 0.02
    assert claim.waited / 1_000_000 == pytest.approx(waited, abs=2e-6)


async def test_the_vitals_of_a_store_are_those_that_it_can_know(store: Store) -> None:
    vitals = await store.vitals()
    if not isinstance(store, PostgresStore):
        assert vitals.pool_size is None
        assert vitals.dead_rows == {}
        return
    assert vitals.pool_size is not None
    assert vitals.pool_in_use is not None
    assert 0 <= vitals.pool_in_use <= vitals.pool_size
    is_standard = store.address.profile.has_storage_parameters
    assert set(vitals.dead_rows) == ({"task", "history"} if is_standard else set())
    assert (vitals.oldest_transaction_seconds is not None) == is_standard
