"""Unique keys: one live task for each, whoever asks and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate, all_tasks, ended, until, until_state

from synergon import Context, Discard, Engine, Handle, KeyConflict, OptionError, PayloadError, Retry, State


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


# ---------------------------------------------------------------- keys that a kind makes of the arguments


@pytest.mark.parametrize("key", ["{customer}-{month}", lambda month, customer: f"{customer}-{month}"])
async def test_a_kind_makes_the_keys_of_its_tasks(engine: Engine, key: Any) -> None:
    @engine.task(key=key)
    async def invoice(customer: str, month: int = 1, note: str = "") -> None: ...

    async with engine:
        first, second = await engine.enqueue([invoice.call("acme", 11), invoice.call("acme", 11, note="again")])
        assert (second.id, second.created) == (first.id, False)
        other, by_default = await invoice.enqueue_many([("acme", 12), ("acme",)])
        assert [(await handle.status()).key for handle in (first, other, by_default)] == [
            "acme-11",
            "acme-12",
            "acme-1",
        ]
        own = await invoice.with_options(key="mine", tags=["x"]).enqueue("acme", 11)
        assert (await own.status()).key == "mine"
        tagged = await invoice.with_options(tags=["x"]).enqueue("acme", 11)
        assert tagged.id == first.id


async def test_on_conflict_of_a_kind_holds_unless_a_call_says_otherwise(engine: Engine) -> None:
    @engine.task(key="{customer}", on_conflict="raise")
    async def welcome(customer: str, text: str = "") -> None: ...

    async with engine:
        first = await welcome.enqueue("acme")
        with pytest.raises(KeyConflict):
            await welcome.enqueue("acme")
        again = await welcome.with_options(on_conflict="return").enqueue("acme")
        assert again.id == first.id
        await welcome.with_options(on_conflict="replace").enqueue("acme", text="new")
        assert (await first.status()).arguments["text"] == "new"


async def test_children_cannot_inherit_another_answer_to_a_conflict_than_return(engine: Engine) -> None:
    @engine.task(key="{customer}", on_conflict="replace")
    async def welcome(customer: str) -> None: ...

    @engine.task
    async def parent(ctx: Context) -> None:
        ctx.enqueue(welcome.call("acme"))

    async with engine, engine.worker():
        record = await ended(await parent.enqueue())
    assert 'children of a task can only use on_conflict="return"' in record.errors[-1].message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "{customers}"}, "key of task 'welcome' asks for 'customers', which is no argument"),
        ({"key": "always"}, "key of task 'welcome' names no argument"),
        ({"key": 5}, "key of task 'welcome' must be a function or a template"),
        ({"on_conflict": "raise"}, "@task of 'welcome': on_conflict says what to do when the key is taken"),
        ({"key": "{customer}", "on_conflict": "drop"}, "on_conflict must be one of"),
        ({"unique_for": "1h"}, "@task of 'welcome': unique_for says for how long the key stays taken; give a key too"),
        ({"key": "{customer}", "unique_for": -1}, "unique_for must be longer than zero"),
    ],
)
def test_keys_that_cannot_be_made_are_an_error_of_the_decorator(
    engine: Engine, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=said):

        @engine.task(**options)  # type: ignore[untyped-decorator]  # its options are a dict
        async def welcome(customer: str) -> None: ...


async def test_unique_for_of_a_kind_holds_unless_a_call_says_otherwise(engine: Engine) -> None:
    @engine.task(key="{customer}", unique_for="1h")
    async def welcome(customer: str) -> str:
        return customer

    async with engine, engine.worker():
        calls = (welcome, "held"), (welcome.with_options(title="{customer}"), "titled")
        for call, customer in calls:
            handle = await call.enqueue(customer)
            assert await handle.result(PATIENCE_SECONDS) == customer
            again = await call.enqueue(customer)
            assert (again.id, again.created) == (handle.id, False)
            assert await again.result(PATIENCE_SECONDS) == customer
        brief = await welcome.with_options(unique_for=0.001).enqueue("brief")
        await brief.result(PATIENCE_SECONDS)
        await until(lambda: is_accepted(welcome.enqueue("brief")))


async def is_accepted(enqueue: Awaitable[Handle[Any]]) -> bool:
    return (await enqueue).created


async def test_fifty_enqueues_of_a_held_key_run_once(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task
    async def welcome(number: int) -> int:
        ran.append(number)
        return number

    async with engine, engine.worker():
        once = welcome.with_options(key="customer-42", unique_for="1h")

        async def enqueue(number: int) -> int:
            handle = await once.enqueue(number)
            await handle.result(PATIENCE_SECONDS)
            return (await once.enqueue(number)).id

        assert len(set(await asyncio.gather(*map(enqueue, range(50))))) == 1
    assert len(ran) == 1


async def test_an_occurrence_whose_key_is_held_is_skipped(engine: Engine) -> None:
    @engine.task(key="{customer}", unique_for="1h")
    async def welcome(customer: str) -> None: ...

    async with engine, engine.worker():
        first = await welcome.enqueue("ada")
        await first.result(PATIENCE_SECONDS)
        await engine.schedules.create("daily", welcome.call("ada"), every="1d")
        run = await engine.schedules.run_once("daily")
        assert run.task is None
        assert run.reason == f"task {first.id} holds its key"


async def test_a_key_that_cannot_be_made_is_an_error_of_the_call(engine: Engine) -> None:
    @engine.task(key=lambda customer: customer[1:])
    async def welcome(customer: str) -> None: ...

    async with engine:
        with pytest.raises(PayloadError, match="key of task 'welcome' must return text without NUL"):
            await welcome.enqueue("a\0b")
        with pytest.raises(PayloadError, match="key of task 'welcome' must return text of 1 to 200 characters"):
            await welcome.enqueue("a")
        assert await all_tasks(engine) == []
