"""What only the memory store promises: sharing by name, a clock that is given, threads, and bounded bookkeeping."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.stores.actions import (
    ERROR,
    HOUR,
    KIND,
    OUTCOMES,
    Worker,
    add,
    add_many,
    amounts,
    check_counts,
    demands,
    read,
    state_of,
)

from synergon.errors import ConfigurationError
from synergon.model.claims import KindRequest
from synergon.model.clock import SystemClock
from synergon.model.lifecycle import State
from synergon.model.outcomes import Retrying
from synergon.model.tasks import Cutoffs, NewTask, Reprioritizing, Rescheduling
from synergon.stores.memory import MemoryStore


class SetClock(SystemClock):
    """A wall clock that shows what it is told."""

    def __init__(self, moment: int) -> None:
        self.moment = moment

    def wall(self) -> int:
        return self.moment


@asynccontextmanager
async def opened(url: str = "memory://", clock: SystemClock | None = None) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(url, clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


# ---------------------------------------------------------------- sharing


async def test_stores_of_one_name_share_their_tasks() -> None:
    async with opened("memory://shared") as one, opened("memory://shared") as other:
        task_id = await add(one)
        assert await state_of(other, task_id) is State.READY
        assert await add(other) > task_id


async def test_stores_of_different_names_do_not() -> None:
    async with opened("memory://one") as one, opened("memory://other") as other:
        await add(one)
        assert await other.counts() == {}


async def test_a_store_without_a_name_is_private() -> None:
    async with opened() as one, opened() as other:
        await add(one)
        assert await other.counts() == {}


async def test_tasks_are_there_until_the_last_store_of_the_name_is_closed() -> None:
    async with opened("memory://name") as last:
        async with opened("memory://name") as first:
            task_id = await add(first)
        assert await state_of(last, task_id) is State.READY
    async with opened("memory://name") as anew:
        assert await anew.counts() == {}


async def test_closing_twice_counts_once() -> None:
    async with opened("memory://name") as one, opened("memory://name") as other:
        task_id = await add(one)
        await one.close()
        await one.close()
        async with opened("memory://name") as third:
            assert await state_of(third, task_id) is State.READY
        assert await state_of(other, task_id) is State.READY


async def test_opening_twice_keeps_the_tasks() -> None:
    async with opened() as store:
        task_id = await add(store)
        await store.open()
        assert await state_of(store, task_id) is State.READY


async def test_a_store_that_was_dropped_without_a_close_keeps_nothing_alive() -> None:
    store = MemoryStore("memory://dropped")
    await store.open()
    await add_many(store, 10)
    tables = weakref.ref(store._tables)
    del store
    gc.collect()
    assert tables() is None


async def test_closed_tables_are_freed_with_all_their_tasks() -> None:
    async with opened() as store:
        worker = await Worker.start(store)
        await add_many(store, 5, expires_in=HOUR)
        await add_many(store, 5, delay=HOUR)
        await worker.claim(limit=2)
        tables = weakref.ref(store._tables)
    gc.collect()
    assert tables() is None


@pytest.mark.parametrize("url", ["sqlite:///app.db", "memory", "memory:/x", ""])
def test_a_url_of_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="memory://"):
        MemoryStore(url)


# ---------------------------------------------------------------- the clock


async def test_the_clock_that_was_given_is_the_stores_clock() -> None:
    clock = SetClock(1_000_000)
    async with opened(clock=clock) as store:
        task_id = await add(store, delay=500)
        assert (await store.wake(10)).next_in == 500
        clock.moment += 499
        assert (await store.wake(10)).next_in == 1
        clock.moment += 1
        assert (await store.wake(10)).kinds == {KIND: 1}
        assert await state_of(store, task_id) is State.READY


async def test_a_clock_that_steps_back_fires_nothing_twice() -> None:
    clock = SetClock(HOUR)
    async with opened(clock=clock) as store:
        await add(store, delay=500)
        clock.moment += 500
        assert (await store.wake(10)).kinds == {KIND: 1}
        clock.moment = 0
        assert await store.now() == HOUR + 500
        assert (await store.wake(10)).kinds == {}
        record = await read(store, await add(store))
        assert record.state is State.READY


async def test_the_clock_does_not_run_back_between_stores_that_share() -> None:
    ahead, behind = SetClock(2 * HOUR), SetClock(HOUR)
    async with opened("memory://clocks", ahead) as one, opened("memory://clocks", behind) as other:
        assert await one.now() == 2 * HOUR
        assert await other.now() == 2 * HOUR


async def test_a_lease_is_over_one_microsecond_after_its_end() -> None:
    clock = SetClock(HOUR)
    async with opened(clock=clock) as store:
        worker = await Worker.start(store, lease=1000)
        await add(store)
        clock.moment += 1000
        await worker.claim()
        assert await store.reap([], 10) == []
        clock.moment += 1
        assert len(await store.reap([], 10)) == 1


async def test_expiry_and_age_are_exact_to_the_microsecond() -> None:
    clock = SetClock(HOUR)
    async with opened(clock=clock) as store:
        task_id = await add(store, expires_in=10)
        clock.moment += 9
        assert (await store.wake(10)).expired == ()
        clock.moment += 1
        assert (await store.wake(10)).expired == (task_id,)
        assert await store.prune(Cutoffs(failed=0), 10) == 0
        clock.moment += 1
        assert await store.prune(Cutoffs(failed=0), 10) == 1


# ---------------------------------------------------------------- threads


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads that interrupt each other as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless_threads")
async def test_stores_are_safe_to_use_from_many_threads_at_once() -> None:
    tasks, threads = 300, 4

    async def work(number: int) -> list[int]:
        done: list[int] = []
        async with opened("memory://threads") as store:
            worker = await Worker.start(store, f"node-{number}")
            for _ in range(tasks):
                await store.insert([NewTask(kind=KIND)])
                for claim in await worker.claim(limit=2):
                    await worker.finish(claim, OUTCOMES["succeeded"])
                    done.append(claim.id)
        return done

    async with opened("memory://threads") as store:
        results: list[list[int]] = []
        workers = [
            threading.Thread(target=lambda number=number: results.append(asyncio.run(work(number))))
            for number in range(threads)
        ]
        for thread in workers:
            thread.start()
        for thread in workers:
            await asyncio.to_thread(thread.join)
        await check_counts(store)
        last = await (await Worker.start(store, "last")).claim_ids()
        ran = sorted([task_id for done in results for task_id in done] + last)
        assert ran == list(range(1, tasks * threads + 1))


# ---------------------------------------------------------------- bounded bookkeeping


def _entries(store: MemoryStore) -> int:
    """Everything that the indexes hold, outdated or not."""
    tables = store._tables
    assert tables is not None
    in_lanes = sum(len(ready_group._fifo) + len(ready_group._heap) for ready_group in tables.ready.all_ready_groups())
    return in_lanes + len(tables.due._entries) + len(tables.expiry._entries)


async def test_changing_tasks_for_ever_does_not_grow_the_indexes() -> None:
    async with opened() as store:
        ids = await add_many(store, 20, expires_in=HOUR)
        for turn in range(200):
            await store.set_priority([Reprioritizing(id=task_id, priority=turn % 3) for task_id in ids])
            await store.reschedule([Rescheduling(id=task_id, delay=HOUR + turn) for task_id in ids])
            await store.reschedule([Rescheduling(id=task_id) for task_id in ids])
        assert _entries(store) < 500


async def test_retrying_for_ever_does_not_grow_the_indexes() -> None:
    async with opened() as store:
        worker = await Worker.start(store)
        await add_many(store, 20, expires_in=HOUR)
        for _ in range(200):
            for claim in await worker.claim():
                await worker.finish(claim, Retrying(delay=0, error=ERROR))
        assert _entries(store) < 500


@pytest.mark.parametrize("leave", ["cancel", "delete"])
async def test_tasks_that_are_gone_leave_the_indexes(leave: str) -> None:
    async with opened() as store:
        ids = await add_many(store, 2000, expires_in=HOUR) + await add_many(store, 2000, delay=HOUR)
        await (store.cancel(ids) if leave == "cancel" else store.delete(ids))
        assert _entries(store) < 500


@pytest.mark.parametrize("leave", ["claim", "cancel", "put off", "replace"])
async def test_demands_that_nobody_has_any_more_leave_no_lane(leave: str) -> None:
    async with opened() as store:
        worker = await Worker.start(store)
        tasks = [NewTask(kind=KIND, key=str(number), requirements=demands(cpu=1 + number)) for number in range(500)]
        ids = [insertion.id for insertion in await store.insert(tasks)]
        assert store._tables is not None
        assert len(store._tables.ready.all_ready_groups()) == 500
        match leave:
            case "claim":
                numbers = amounts(cpu=10**6)
                assert (
                    len(await worker.claim_kinds(KindRequest(kind=KIND, count=500), totals=numbers, free=numbers))
                    == 500
                )
            case "cancel":
                await store.cancel(ids)
            case "put off":
                await store.reschedule([Rescheduling(id=task_id, delay=HOUR) for task_id in ids])
            case _:
                await store.insert([NewTask(kind=KIND, key=task.key, on_conflict="replace") for task in tasks])
        assert len(store._tables.ready.all_ready_groups()) == (leave == "replace")
        assert not store._tables.ready.has_requirements(KIND)


async def test_a_rebuilt_index_keeps_the_order() -> None:
    async with opened() as store:
        worker = await Worker.start(store)
        ids = await add_many(store, 1000)
        await store.set_priority([Reprioritizing(id=task_id, priority=task_id % 5) for task_id in ids])
        kept = [task_id for task_id in ids if task_id % 10 in (3, 4, 5)]
        await store.cancel([task_id for task_id in ids if task_id not in kept])
        assert await worker.claim_ids() == sorted(kept, key=lambda task_id: (-(task_id % 5), task_id))


async def test_a_claim_costs_the_same_whatever_else_waits() -> None:
    async def seconds_per_claim(store: MemoryStore, worker: Worker) -> float:
        best = 1.0
        for _ in range(20):
            await add(store)
            started = time.perf_counter()
            (claim,) = await worker.claim_kinds(
                KindRequest(kind=KIND, count=9), totals=amounts(cpu=4), free=amounts(cpu=1)
            )
            best = min(best, time.perf_counter() - started)
            await worker.finish(claim, OUTCOMES["succeeded"])
        return best

    async with opened() as store:
        worker = await Worker.start(store)
        alone = await seconds_per_claim(store, worker)
        await store.pause(["paused"])
        await add_many(store, 20_000, kind="other", priority=9)
        await add_many(store, 20_000, queue="paused", priority=9)
        await add_many(store, 20_000, delay=HOUR)
        await add_many(store, 20_000, requirements=demands("elsewhere"), priority=9)
        await add_many(store, 20_000, requirements=demands(cpu=2), priority=9)
        assert await seconds_per_claim(store, worker) < 10 * alone + 0.001
