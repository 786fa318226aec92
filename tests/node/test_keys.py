"""Unique keys: one live task for each, whoever asks and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate, all_tasks, ended, until_state

from synergon import Discard, Engine, Handle, KeyConflict, Retry, State


async def test_fifty_enqueues_of_one_key_at_once_make_one_task(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task
    async def welcome(number: int) -> int:
        ran.append(number)
        return number

    async with engine:
        once = welcome.with_options(key="customer-42")
        handles = await asyncio.gather(*(once.enqueue(number) for number in range(50)))
        assert sorted(handle.created for handle in handles) == [False] * 49 + [True]
        assert len({handle.id for handle in handles}) == 1
        async with engine.worker():
            results = await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
    assert len(ran) == 1
    assert set(results) == set(ran)


async def test_a_key_counts_also_within_one_call(engine: Engine) -> None:
    @engine.task
    async def welcome(number: int) -> None: ...

    async with engine:
        once = welcome.with_options(key="customer-42")
        handles = await engine.enqueue([once.call(1), welcome.call(2), once.call(3)])
        assert [handle.created for handle in handles] == [True, True, False]
        assert handles[0].id == handles[2].id
        assert len(await all_tasks(engine)) == 2


async def test_the_same_key_of_another_kind_is_another_key(engine: Engine) -> None:
    @engine.task
    async def welcome() -> None: ...

    @engine.task
    async def farewell() -> None: ...

    async with engine:
        first = await welcome.with_options(key="customer-42").enqueue()
        second = await farewell.with_options(key="customer-42").enqueue()
    assert first.created
    assert second.created


async def _succeed(engine: Engine, handle: Handle[None]) -> None:
    async with engine.worker():
        await handle.result(PATIENCE_SECONDS)


async def _cancel(engine: Engine, handle: Handle[None]) -> None:
    await handle.cancel()


async def _delete(engine: Engine, handle: Handle[None]) -> None:
    await engine.delete(handle.id)


async def _expire(engine: Engine, handle: Handle[None]) -> None:
    await engine.pause("default")
    async with engine.worker():
        assert (await ended(handle)).state is State.FAILED


ENDS: dict[str, Callable[[Engine, Handle[None]], Awaitable[None]]] = {
    "success": _succeed,
    "failure": lambda engine, handle: _fail(engine, handle),
    "cancel": _cancel,
    "expiry": _expire,
    "deletion": _delete,
}


async def _fail(engine: Engine, handle: Handle[None]) -> None:
    async with engine.worker():
        assert (await ended(handle)).state is State.FAILED


@pytest.mark.parametrize("end", ENDS)
async def test_a_key_is_free_again_after_each_final_state(engine: Engine, end: str) -> None:
    @engine.task
    async def welcome(fails: bool) -> None:
        if fails:
            raise Discard("as asked")

    options = {"expires_in": 0.05} if end == "expiry" else {}
    async with engine:
        # mypy takes each value for every option.
        first = await welcome.with_options(key="42", **options).enqueue(end == "failure")  # type: ignore[arg-type]
        await ENDS[end](engine, first)
        second = await welcome.with_options(key="42").enqueue(False)
        assert second.created
        assert second.id != first.id


async def test_a_key_is_held_while_its_task_waits_for_a_retry_and_while_it_runs(engine: Engine) -> None:
    gate = Gate()

    @engine.task(retry=Retry(attempts=2, first=60))
    async def fail() -> None:
        await gate.hold()
        raise ValueError("once")

    async with engine.worker():
        once = fail.with_options(key="42")
        first = await once.enqueue()
        await gate.until_reached()
        assert (await once.enqueue()).id == first.id
        gate.open()
        await until_state(first, State.SCHEDULED)
        assert (await once.enqueue()).id == first.id


async def test_a_conflict_may_raise_and_then_nothing_of_the_call_is_stored(engine: Engine) -> None:
    @engine.task
    async def welcome(number: int) -> None: ...

    async with engine:
        first = await welcome.with_options(key="42").enqueue(1)
        strict = welcome.with_options(key="42", on_conflict="raise")
        with pytest.raises(KeyConflict, match="'42'") as conflict:
            await engine.enqueue([welcome.call(2), strict.call(3)])
        assert conflict.value.task_id == first.id
        assert len(await all_tasks(engine)) == 1


async def test_a_conflict_may_replace_a_task_that_has_not_started(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task
    async def welcome(number: int) -> None:
        ran.append(number)

    async with engine:
        first = await welcome.with_options(key="42", delay=60, tags=["old"]).enqueue(1)
        newer = welcome.with_options(key="42", on_conflict="replace", priority=7, tags=["new"])
        second = await newer.enqueue(2)
        assert (second.id, second.created) == (first.id, False)
        record = await second.status()
        assert (record.state, record.priority, record.tags) == (State.READY, 7, ("new",))
        async with engine.worker(drain=True):
            pass
    assert ran == [2]


async def test_a_running_task_cannot_be_replaced(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def welcome(number: int) -> int:
        await gate.hold()
        return number

    async with engine.worker():
        first = await welcome.with_options(key="42").enqueue(1)
        await gate.until_reached()
        with pytest.raises(KeyConflict, match="running"):
            await welcome.with_options(key="42", on_conflict="replace").enqueue(2)
        gate.open()
        assert await first.result(PATIENCE_SECONDS) == 1


async def test_an_ended_task_whose_key_was_taken_since_cannot_be_retried(engine: Engine) -> None:
    @engine.task
    async def welcome() -> None: ...

    async with engine:
        first = await welcome.with_options(key="42").enqueue()
        await first.cancel()
        second = await welcome.with_options(key="42").enqueue()
        with pytest.raises(KeyConflict, match=f"task {second.id} is live and holds its key") as conflict:
            await engine.retry(first.id)
        assert conflict.value.task_id == second.id
