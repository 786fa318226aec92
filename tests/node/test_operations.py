"""What operators do: pause and resume, reschedule, reprioritise, retry, delete, and all of it at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate, all_tasks, check_counts, ended, until_state

from synergon import (
    Context,
    Engine,
    IllegalMove,
    OptionError,
    Retention,
    Retry,
    State,
    SynergonError,
    TaskDeleted,
    TaskNotFound,
)

# ---------------------------------------------------------------- pause


async def test_nothing_of_a_paused_queue_starts_until_it_is_resumed(engine: Engine) -> None:
    ran: list[str] = []

    @engine.task(queue="mail")
    async def send(name: str) -> None:
        ran.append(name)

    @engine.task
    async def other() -> None: ...

    async with engine.worker():
        assert await engine.pause("mail") is True
        assert await engine.pause("mail") is False
        held = await send.enqueue("held")
        await (await other.enqueue()).result(PATIENCE_SECONDS)
        assert (await held.status()).state is State.READY
        assert ran == []
        assert await engine.resume("mail") is True
        assert await engine.resume("mail") is False
        await held.result(PATIENCE_SECONDS)
    assert ran == ["held"]


async def test_work_that_runs_when_its_queue_is_paused_goes_on(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def hold() -> str:
        await gate.hold()
        return "finished"

    async with engine.worker():
        handle = await hold.enqueue()
        await gate.until_reached()
        await engine.pause("default")
        gate.open()
        assert await handle.result(PATIENCE_SECONDS) == "finished"


async def test_a_pause_outlives_a_restart(new_engine: NewEngine, url: str) -> None:
    keeper = new_engine(url)  # a store in memory lives as long as somebody has it open
    async with keeper:
        first = new_engine(url)
        async with first.worker():
            await first.pause("mail")
        second = new_engine(url)

        @second.task(queue="mail")
        async def send() -> str:
            return "sent"

        async with second.worker():
            handle = await send.enqueue()
            (queue,) = [queue for queue in await second.queues() if queue.name == "mail"]
            assert queue.is_paused
            assert queue.paused_at is not None
        assert (await keeper.get(handle.id)).state is State.READY
        third = new_engine(url)
        third.task(queue="mail", name="send")(send.function)
        async with third.worker():
            await third.resume("mail")
            assert (await third.wait(handle.id, timeout=PATIENCE_SECONDS)).result == "sent"


async def test_a_queue_that_has_had_no_task_yet_can_be_paused(engine: Engine) -> None:
    @engine.task(queue="new")
    async def note() -> None: ...

    async with engine.worker():
        await engine.pause("new")
        handle = await note.enqueue()
        await asyncio.sleep(0.05)  # nothing may happen in it
        assert (await handle.status()).state is State.READY


# ---------------------------------------------------------------- reschedule, set_priority


async def test_a_task_can_be_brought_forward(engine: Engine) -> None:
    @engine.task
    async def note() -> str:
        return "ran"

    async with engine.worker():
        sooner = await note.with_options(delay=3600).enqueue()
        now = await note.with_options(delay=3600).enqueue()
        await engine.reschedule(sooner.id, delay="50ms")
        await engine.reschedule(now.id, run_at=datetime.now(UTC) - timedelta(days=1))
        assert await now.result(PATIENCE_SECONDS) == "ran"
        assert await sooner.result(PATIENCE_SECONDS) == "ran"


async def test_a_ready_task_can_be_put_off(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    moment = datetime(2101, 1, 1, tzinfo=UTC)
    async with engine:
        handle = await note.enqueue()
        await engine.reschedule(handle.id, run_at=moment)
        record = await handle.status()
        assert (record.state, record.run_at) == (State.SCHEDULED, moment)


async def test_a_task_can_be_moved_up_and_down(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task
    async def note(number: int) -> None:
        ran.append(number)

    async with engine:
        handles = await note.enqueue_many([(number,) for number in range(5)])
        await engine.set_priority(handles[3].id, 9)
        await engine.set_priority(handles[0].id, -9)
        async with engine.worker(concurrency=1, drain=True):
            pass
    assert ran == [3, 1, 2, 4, 0]


async def test_running_and_ended_tasks_are_not_moved(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def hold() -> None:
        await gate.hold()

    async with engine.worker():
        handle = await hold.enqueue()
        await gate.until_reached()
        for state in (State.RUNNING, State.SUCCEEDED):
            with pytest.raises(IllegalMove, match=f"task {handle.id} is {state} and cannot be rescheduled") as refused:
                await engine.reschedule(handle.id, delay=1)
            assert refused.value.task_id == handle.id
            with pytest.raises(IllegalMove, match=f"is {state} and cannot be given another priority"):
                await engine.set_priority(handle.id, 1)
            gate.open()
            await handle.result(PATIENCE_SECONDS)


async def test_moves_that_make_no_sense_are_refused(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine:
        handle = await note.enqueue()
        with pytest.raises(OptionError, match="delay or run_at, and exactly one of them"):
            await engine.reschedule(handle.id)
        with pytest.raises(OptionError, match="exactly one of them"):
            await engine.reschedule(handle.id, delay=1, run_at=datetime.now(UTC))
        with pytest.raises(OptionError, match="run_at must have a time zone"):
            await engine.reschedule(handle.id, run_at=datetime(2101, 1, 1))  # noqa: DTZ001
        for moment in (datetime.min, datetime.max):  # noqa: DTZ901
            with pytest.raises(OptionError, match="run_at must lie between the years 1900 and 3000"):
                await engine.reschedule(handle.id, run_at=moment.replace(tzinfo=UTC))
        with pytest.raises(OptionError, match="delay must be not negative, got -1"):
            await engine.reschedule(handle.id, delay=-1)
        with pytest.raises(OptionError, match="priority must be a whole number"):
            await engine.set_priority(handle.id, 2**63)
        for move in (engine.retry, engine.delete):
            with pytest.raises(TaskNotFound, match="there is no task 4711"):
                await move(4711)
        with pytest.raises(TaskNotFound, match="there is no task 4711"):
            await engine.set_priority(4711, 1)
        with pytest.raises(OptionError, match="queue must be printable text"):
            await engine.pause("")


# ---------------------------------------------------------------- retry, delete


async def test_an_ended_task_can_be_run_again_under_the_same_id(engine: Engine) -> None:
    is_mended = False

    @engine.task(retry=Retry(attempts=2, first=0))
    async def fail(ctx: Context) -> int:
        if not is_mended:
            raise ValueError("broken")
        return ctx.attempt

    async with engine.worker():
        handle = await fail.enqueue()
        assert (await ended(handle)).state is State.FAILED
        is_mended = True
        await engine.retry(handle.id)
        assert await handle.result(PATIENCE_SECONDS) == 1
        record = await handle.status()
        await engine.retry(handle.id)
        assert await handle.result(PATIENCE_SECONDS) == 1
        assert (await handle.status()).claim_no == record.claim_no + 1
    assert (record.attempts, record.claim_no, len(record.errors)) == (1, 3, 2)


async def test_a_cancelled_task_that_is_retried_is_not_cancelled_again(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def hold() -> str:
        await gate.hold()
        return "done"

    async with engine.worker():
        handle = await hold.enqueue()
        await gate.until_reached()
        await handle.cancel()
        assert (await ended(handle)).state is State.CANCELLED
        gate.open()
        await engine.retry(handle.id)
        assert await handle.result(PATIENCE_SECONDS) == "done"


async def test_a_live_task_cannot_be_retried(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine:
        handle = await note.enqueue()
        with pytest.raises(IllegalMove, match="is ready and cannot be retried; only an ended task can be"):
            await engine.retry(handle.id)


async def test_a_deleted_task_is_gone_and_whoever_waits_is_told(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine:
        handle = await note.enqueue()
        waiters = [asyncio.create_task(handle.result(PATIENCE_SECONDS)) for _ in range(3)]
        await asyncio.sleep(0)
        await engine.delete(handle.id)
        for waiter in waiters:
            with pytest.raises(TaskDeleted, match=f"task {handle.id} does not exist: it was deleted"):
                await waiter
        with pytest.raises(TaskNotFound):
            await handle.status()
        with pytest.raises(TaskDeleted):
            await handle.result(PATIENCE_SECONDS)
        assert await all_tasks(engine) == []


async def test_a_running_task_cannot_be_deleted_and_an_ended_one_can(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def hold() -> None:
        await gate.hold()

    async with engine.worker():
        handle = await hold.enqueue()
        await gate.until_reached()
        with pytest.raises(IllegalMove, match="is running and cannot be deleted; cancel it first"):
            await engine.delete(handle.id)
        gate.open()
        await handle.result(PATIENCE_SECONDS)
        await engine.delete(handle.id)
        assert await all_tasks(engine) == []


# ---------------------------------------------------------------- all at once


async def test_a_storm_of_operations_loses_nothing_and_runs_nothing_twice(new_engine: NewEngine, url: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    engine = new_engine(url, sweep=0.05)
    runs: Counter[int] = Counter()

    @engine.task
    async def note(number: int) -> None:
        runs[number] += 1

    queues = ("red", "green", "blue")
    async with engine:
        for queue in queues:
            await engine.pause(queue)
        handles = await engine.enqueue(
            [note.with_options(queue=queues[number % 3]).call(number) for number in range(1000)]
        )
        numbers = {handle.id: number for number, handle in enumerate(handles)}
        gone: set[int] = set()

        async def disturb() -> None:
            task_id = chance.choice(handles).id
            try:
                match chance.randrange(6):
                    case 0:
                        await engine.set_priority(task_id, chance.randint(-(2**63), 2**63 - 1))
                    case 1:
                        if await engine.cancel(task_id):
                            gone.add(task_id)
                    case 2:
                        await engine.reschedule(task_id, delay=chance.choice((0, 0.001, 0.2)))
                    case 3:
                        await engine.delete(task_id)
                        gone.add(task_id)
                    case 4:
                        await engine.pause(chance.choice(queues))
                    case 5:
                        await engine.resume(chance.choice(queues))
            except SynergonError:
                return  # ended, gone, or running by now

        async with engine.worker(concurrency=4, drain=True):
            for _ in range(100):
                await asyncio.gather(*(disturb() for _ in range(10)))
            for queue in queues:
                await engine.resume(queue)
        tasks = await all_tasks(engine)
        await check_counts(engine)
    ran = {task_id for task_id in numbers if runs[numbers[task_id]]}
    assert max(runs.values()) == 1, f"seed {seed}"
    assert {task.state for task in tasks} <= {State.SUCCEEDED, State.CANCELLED}, f"seed {seed}"
    assert set(numbers) - gone <= ran, f"seed {seed}: every survivor has run"
    succeeded = {task.id for task in tasks if task.state is State.SUCCEEDED}
    assert succeeded <= ran, f"seed {seed}"


async def test_a_task_that_is_moved_to_and_fro_while_it_is_due_runs_once(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=0.05)
    runs: Counter[int] = Counter()

    @engine.task
    async def note(number: int) -> None:
        runs[number] += 1

    async with engine.worker(drain=True):
        handles = [await note.with_options(delay=0.05).enqueue(number) for number in range(30)]
        for delay in (0.0, 0.02, 0.04, 0.001):
            for handle in handles:
                try:
                    await engine.reschedule(handle.id, delay=delay)
                except IllegalMove:
                    continue
        await until_state(handles[-1], State.SUCCEEDED)
    assert runs == Counter(range(30))


# ---------------------------------------------------------------- update_meta


async def test_metadata_is_changed_by_name(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)

    @engine.task
    async def look(ctx: Context) -> dict[str, object]:
        return ctx.meta

    async with engine:
        handle = await look.with_options(meta={"a": 1, "b": 2}, delay=3600).enqueue()
        changed = {"b": None, "when": datetime(2026, 1, 2, tzinfo=UTC)}
        assert await engine.update_meta(handle.id, changed) == {"a": 1, "when": "2026-01-02T00:00:00Z"}
        async with engine.worker():
            await engine.reschedule(handle.id, delay=0)
            assert await handle.result(PATIENCE_SECONDS) == {"a": 1, "when": "2026-01-02T00:00:00Z"}
        await engine.update_meta(handle.id, {"seen": True})
        assert (await handle.status()).meta["seen"] is True
        with pytest.raises(TaskNotFound):
            await engine.update_meta(4711, {})
        with pytest.raises(OptionError, match="meta must be a dict with text keys"):
            await engine.update_meta(handle.id, {1: 2})  # type: ignore[dict-item]


# ---------------------------------------------------------------- prune


async def test_old_tasks_are_pruned_by_state_and_age(
    new_engine: NewEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergon.client.operations.PRUNED_AT_ONCE", 3)
    engine = new_engine(url, retention=Retention(succeeded=None, failed=None, cancelled=0))

    @engine.task
    async def note(number: int) -> None:
        if number < 0:
            raise ValueError

    async with engine:
        async with engine.worker(drain=True):
            await note.enqueue_many([(number,) for number in range(-1, 7)])
        late = await note.with_options(delay=3600).enqueue(9)
        await late.cancel()
        assert await engine.prune(succeeded="1h") == 0
        assert await engine.prune(succeeded=0) == 7
        assert await engine.prune() == 1  # by the retention of the engine
        assert [record.state for record in await all_tasks(engine)] == [State.FAILED]
        with pytest.raises(OptionError, match="failed"):
            await engine.prune(failed="long")
