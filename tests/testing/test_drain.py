"""A drain: what is due runs, in order, with the errors of bodies where the test wants them."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
from tests.testing.app import (
    Address,
    broken,
    engine,
    flaky,
    greet,
    in_a_process,
    in_a_thread,
    listed,
    parent,
    ran,
    send,
)

from synergon import (
    Candidate,
    Context,
    Discard,
    Engine,
    Reason,
    RetryAfter,
    Snooze,
    State,
    TaskDeleted,
    TaskFailed,
    testing,
)
from synergon.testing import Tester


async def test_order_is_by_priority_then_first_in_first_out(tester: Tester) -> None:
    await greet.enqueue_many([("Ada",), ("Bob",)])
    await greet.with_options(priority=5).enqueue("Eve")
    await tester.drain()
    assert ran == ["Eve", "Ada", "Bob"]


async def test_children_run_too(tester: Tester) -> None:
    await parent.enqueue(2)
    records = await tester.drain()
    assert ran == ["parent", "child 0", "child 1"]
    assert [record.kind for record in records] == ["parent", "greet", "greet"]


async def test_flows_run_step_by_step(tester: Tester) -> None:
    flow = engine.flow("greetings")
    names = flow.add(listed.call(["Ada", "Bob"]))
    greetings = flow.map(greet, over=names)
    flow.add(listed.call(greetings.results))
    run = await flow.enqueue()
    records = await tester.drain()
    assert [record.kind for record in records] == ["listed", "greet", "greet", "greet", "listed"]
    assert ran == ["Ada", "Bob"]
    assert await run.result() == ["hello Ada", "hello Bob"]
    assert (await run.status()).state is State.SUCCEEDED


async def test_a_step_that_fails_cancels_what_follows_it(tester: Tester) -> None:
    flow = engine.flow("broken")
    flow.add(greet.call("Ada"), after=[flow.add(broken.call())])
    run = await flow.enqueue()
    await tester.drain()
    record = await run.status()
    assert (ran, record.state) == ([], State.FAILED)
    assert record.counts == {State.FAILED: 1, State.CANCELLED: 1}


async def test_threads_and_processes_run_in_this_process(tester: Tester) -> None:
    first = await in_a_thread.enqueue("Ada")
    second = await in_a_process.enqueue("Bob")
    await tester.drain()
    assert (await first.result()).startswith("Ada in synergon-task")
    assert await second.result() == "BOB"
    assert ran == ["Bob"]


async def test_arguments_and_results_go_through_json(tester: Tester) -> None:
    before = Address("Ada", "ada@example.com")
    handle = await send.enqueue(before)
    before.mail = "changed since"
    await tester.drain()
    assert ran == ["ada@example.com"]
    assert (await handle.status()).arguments == {"to": {"name": "Ada", "mail": "ada@example.com"}}


async def test_errors_are_in_the_records(tester: Tester) -> None:
    await broken.enqueue()
    (record,) = await tester.drain()
    assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
    assert record.error is not None
    assert record.error.type == "ZeroDivisionError"


async def test_raise_errors_raises_what_the_body_raised(tester: Tester) -> None:
    await broken.enqueue()
    handle = await flaky.enqueue(3)
    with pytest.raises(ZeroDivisionError) as caught:
        await tester.drain(raise_errors=True)
    assert caught.value.__notes__ == [
        "raised by task 1 (broken) in attempt 1 of 1, with {}",
        f"and these failed too:\n  task {handle.id} (flaky): ConnectionError: no answer to attempt 1",
    ]
    assert caught.traceback[-1].name == "broken"
    assert ran == ["attempt 1"], "everything has run before it is raised"


async def test_raise_errors_is_silent_when_nothing_failed(tester: Tester) -> None:
    await greet.enqueue("Ada")
    assert len(await tester.drain(raise_errors=True)) == 1


async def test_what_a_body_asked_for_is_no_error() -> None:
    own = Engine("memory://")

    @own.task(retry=2)
    async def wish(what: str) -> None:
        raise {"discard": Discard("no"), "snooze": Snooze(5), "retry": RetryAfter(5)}[what]

    async with testing.memory(own) as tester:
        await wish.enqueue_many([("discard",), ("snooze",), ("retry",)])
        states = [record.state for record in await tester.drain(raise_errors=True)]
    assert states == [State.FAILED, State.SCHEDULED, State.SCHEDULED]


async def test_a_timeout_is_raised_as_a_failed_task() -> None:
    own = Engine("memory://")

    @own.task(timeout=0.01)
    async def slow() -> None:
        await asyncio.sleep(60)

    async with testing.memory(own) as tester:
        await slow.enqueue()
        with pytest.raises(TaskFailed, match=r"task 1 \(slow\): Timeout: .* in attempt 1 of 1"):
            await tester.drain(raise_errors=True)


async def test_a_paused_queue_is_left_alone(tester: Tester) -> None:
    await engine.pause("mail")
    await send.enqueue(Address("Ada", "a@b.c"))
    assert await tester.drain() == []
    await engine.resume("mail")
    assert len(await tester.drain()) == 1


async def test_cancelled_and_deleted_tasks_do_not_run(tester: Tester) -> None:
    first, second = await greet.enqueue_many([("Ada",), ("Bob",)])
    await first.cancel()
    await engine.delete(second.id)
    assert await tester.drain() == []
    with pytest.raises(TaskDeleted):
        await second.result()


async def test_a_running_body_can_be_cancelled() -> None:
    own = Engine("memory://")

    @own.task
    async def endless() -> None:
        await asyncio.Event().wait()

    @own.task
    async def cancels(task_id: int) -> None:
        await own.cancel(task_id)

    async with testing.memory(own) as tester:
        await cancels.enqueue((await endless.enqueue()).id)
        records = await tester.drain()
    assert [record.state for record in records] == [State.CANCELLED, State.SUCCEEDED]


async def test_progress_can_be_seen() -> None:
    own = Engine("memory://")

    @own.task
    async def half(ctx: Context) -> None:
        ctx.progress(0.5, "half way")
        await asyncio.sleep(0)

    async with testing.memory(own) as tester:
        await half.enqueue()
        (record,) = await tester.drain()
    assert record.progress is not None
    assert record.progress.message == "half way"


async def test_max_running_holds() -> None:
    own = Engine("memory://")
    running: list[int] = []
    most = 0

    @own.task(max_running=2)
    async def careful(number: int) -> None:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(number)

    async with testing.memory(own) as tester:
        await careful.enqueue_many([(number,) for number in range(7)])
        assert len(await tester.drain()) == 7
    assert most == 2


async def test_limits_hold_and_what_ends_lets_the_next_start() -> None:
    own = Engine("memory://", concurrency=8)
    own.limit("license", 2)
    running, most = set[int](), 0

    @own.task(limits=["license"])
    async def licensed(number: int) -> None:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        await asyncio.sleep(0.001 * (number % 3))
        running.discard(number)

    @own.task
    async def free(number: int) -> None:
        await licensed.enqueue(number)

    async with testing.memory(own) as tester:
        await licensed.enqueue_many([(number,) for number in range(10)])
        await free.enqueue_many([(number,) for number in range(10, 20)])
        records = await tester.drain()
    assert len(records) == 30
    assert {record.state for record in records} == {State.SUCCEEDED}
    assert most == 2


async def test_urgent_work_preempts_as_on_a_node() -> None:
    own = Engine("memory://", concurrency=1)
    order: list[str] = []

    @own.task(urgent=True)
    async def alarm() -> None:
        order.append("alarm")

    @own.task(preemptible=True)
    async def chore() -> None:
        order.append("chore")
        if "alarm" not in order:
            await alarm.enqueue()
            await asyncio.sleep(60)

    async with testing.memory(own) as tester:
        await chore.enqueue()
        records = await tester.drain()
    assert order == ["chore", "alarm", "chore"]
    assert [(record.kind, record.state, record.attempts) for record in records] == [
        ("chore", State.SUCCEEDED, 1),
        ("alarm", State.SUCCEEDED, 1),
    ]


async def test_tasks_that_need_a_label_are_accepted_and_run_wherever_the_test_runs() -> None:
    own = Engine("memory://")

    @own.task(needs=["gpu-host"])
    async def render() -> None: ...

    @render.can_accept
    def all_of_them(candidates: list[Candidate]) -> list[Candidate]:
        return candidates

    async with testing.memory(own) as tester:
        await render.enqueue()
        (record,) = await tester.drain()
    assert record.state is State.SUCCEEDED


async def test_bodies_do_not_see_context_variables_of_the_caller(tester: Tester) -> None:
    user = contextvars.ContextVar("user", default="nobody")

    own = Engine("memory://")

    @own.task
    async def who() -> str:
        return user.get()

    async with testing.memory(own):
        user.set("Ada")
        handle = await who.enqueue()
        assert await handle.result() == "nobody"


async def test_two_drains_at_once_share_the_work(tester: Tester) -> None:
    await greet.enqueue_many([("Ada",), ("Bob",)])
    first, second = await asyncio.gather(tester.drain(), tester.drain())
    assert (len(first), len(second)) == (2, 0)
