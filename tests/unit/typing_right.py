"""What users write, as a type checker must take it: without an error."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, assert_type

from synergon import (
    Batch,
    BatchErrors,
    Call,
    Context,
    Engine,
    FlowRun,
    Group,
    Handle,
    Health,
    Kind,
    MapStep,
    Occurrence,
    Rate,
    Retry,
    ScheduleRecord,
    Server,
    Step,
    injected,
)

engine = Engine("memory://", concurrency=4, lease="10s", grace=None, queues=["mail"])


@engine.task
async def greet(name: str, *, loud: bool = False) -> str:
    return f"hello {name}"


@engine.task(queue="mail", priority=10, timeout=30, retry=Retry(attempts=5, first=1, factor=2, cap=600, jitter=0.25))
def send(to: str, ctx: Context = injected) -> int:
    ctx.progress(0.5, "half way")
    return len(to)


@engine.task
async def first_is_the_context(ctx: Context, number: int, text: str = "") -> list[int]:
    assert_type(await ctx.still_owned(), bool)
    ctx.enqueue(greet.call("x"), send.call("y"))
    await ctx.enqueue(greet.call("x"))
    return [number]


@engine.task(
    retry=Retry(first="1s", cap=timedelta(minutes=5), on=(ConnectionError,), never=(ValueError,)),
    api=True,
    redact=["iban"],
)
def only_the_context(ctx: Context) -> None:
    with ctx.transaction() as connection:
        connection.execute("SELECT 1")


@engine.task(runs_in="thread", max_running=2, name="other")
def nothing() -> None: ...


@engine.cron("0 9 * * mon-fri", tz="Europe/Berlin", missed="skip", jitter="1m")
@engine.every("30s", name="often", overlap="queue", missed="all")
@engine.task
async def recurring(region: str = "eu", *, ctx: Context = injected) -> int:
    assert_type(ctx.scheduled_for, datetime | None)
    return len(region)


engine.schedule("nightly", recurring.call("us"), cron="@daily", tz="UTC", ends_at=None)


async def schedules() -> None:
    assert_type(await recurring.enqueue("eu"), Handle[int])
    record = await engine.schedules.create("one", recurring.call(), every=timedelta(hours=1), overlap="skip")
    assert_type(record, ScheduleRecord)
    assert_type(await engine.schedules.run_now("one"), Handle[Any] | None)
    assert_type(await engine.schedules.upcoming(3), list[Occurrence])
    assert_type(engine.schedules.pause_sync("one"), bool)


gpu = engine.provider("gpu", servers={"http://gpu1": 2, "http://gpu2": None}, health=Health(failures=3), timeout="1m")


@gpu.task
async def complete(prompt: str, *, tokens: int = 100, server: Server = injected) -> str:
    return f"{prompt} {server.address}"


@gpu.task(rate=Rate(10, per="1m", burst=5), limit_by="{number}", limit=2, max_running_global=None, limits=["license"])
def first_is_the_server(server: Server, number: int) -> int:
    return server.slot + number


@gpu.task
async def server_and_context(server: Server, ctx: Context, number: int) -> int:
    return number


@gpu.task(priority=1)
def context_and_server(ctx: Context, server: Server, *, text: str) -> str:
    return text


@gpu.command
async def load(server: Server, model: str) -> int:
    return len(model)


@gpu.command(timeout=5)
def unload(model: str, *, server: Server = injected, ctx: Context = injected) -> str:
    return model


async def commands() -> None:
    assert_type(await load.send("llama"), int)
    assert_type(await load.send("llama", to="each"), dict[str, int])
    assert_type(await load.send("llama", to="http://gpu1"), int)
    assert_type(await unload.send(model="llama"), str)
    assert_type(await load.enqueue("llama"), dict[str, Handle[int]])
    assert_type(unload.enqueue_sync("llama", to="each"), dict[str, Handle[str]])
    assert_type(unload.send_sync("llama", to="each"), dict[str, str])
    assert_type(unload.send_sync("llama"), str)
    assert_type(unload("llama"), str)


async def providers() -> None:
    assert_type(await (await complete.enqueue("hi", tokens=5)).result(), str)
    assert_type(await (await first_is_the_server.enqueue(3)).result(), int)
    assert_type(first_is_the_server.call(number=3), Call[int])
    assert_type(await complete("hi"), str)
    assert_type(await (await server_and_context.enqueue(3)).result(), int)
    assert_type(await (await context_and_server.enqueue(text="a")).result(), str)
    mixed = await engine.group("some", [complete.call("a"), first_is_the_server.call(1)], then=greet.call("b"))
    assert_type(mixed.then, Handle[Any] | None)
    group = await engine.group("some", [complete.call("a"), complete.call("b")])
    assert_type(group, Group[str])
    assert_type(await group.results(timeout="1m"), list[str])
    assert_type(group.results_sync(), list[str])
    assert_type(group.handles, list[Handle[str]])
    assert_type(await engine.groups.get(1), Group[Any])
    await engine.set_limit("license", None)
    await engine.set_limit("license", rate=Rate(600, per="1m", by="starts"))
    await engine.tasks(kind=["a", "b"], meta={"customer": 42}, sort="end", ascending=True, after=None)
    await gpu.set_servers(["http://gpu3"], capacity=2)


@engine.task(batch=Batch(size=100, wait="2s", by="{item}"), retry=3)
async def count_words(texts: list[str], ctx: Context) -> list[int]:
    return [len(text.split()) for text in texts]


@engine.task(batch=Batch(size=10))
def store_all(ctx: Context, numbers: list[int]) -> None:
    raise BatchErrors({0: ValueError()})


async def batches() -> None:
    handle = await count_words.enqueue("one item")
    assert_type(await handle.result(), int | None)
    await count_words.with_options(priority=1).enqueue("another")
    assert_type(await (await store_all.enqueue(1)).result(), None)


async def main() -> None:
    async with engine, engine.worker(concurrency=1, drain=True, queues=None):
        handle = await greet.enqueue("Ada", loud=True)
        assert_type(handle, Handle[str])
        assert_type(await handle.result(timeout=5), str)
        assert_type(await (await send.enqueue("a@b.c")).result(), int)
        assert_type(await (await first_is_the_context.enqueue(1, text="x")).result(), list[int])
        assert_type(await (await only_the_context.enqueue()).result(), None)
        assert_type(await (await nothing.delay()).result(), None)

        later = send.with_options(
            delay=timedelta(minutes=1), key="welcome-42", tags=["onboarding"], meta={"a": 1}, title="Mail"
        )
        assert_type(await later.enqueue("a@b.c"), Handle[int])
        await send.with_options(
            on_conflict="replace", key="a", unique_for="1h", expires_in="1h", conn=None, retry=2
        ).enqueue("a@b.c")
        assert_type(await greet.enqueue_many([("Bob",), {"name": "Eve"}]), list[Handle[str]])
        assert_type(greet.call("x"), Call[str])
        Kind(str, retry=3, timeout="1m", needs={"zone:eu"}, limit_by="{arguments}", limit=2)
        assert_type(greet.call("x").with_options(priority=1), Call[str])
        await engine.enqueue([greet.call("x"), send.call("y"), engine.call("elsewhere", number=1)])
        assert_type(await engine.enqueue(greet.call(name) for name in ("Ada", "Bob")), list[Handle[str]])
        assert_type(engine.enqueue_sync([send.call("a@b.c")]), list[Handle[int]])

        assert_type(await greet("Ada"), str)
        assert_type(send("a@b.c"), int)
        assert_type((await handle.status()).attempts, int)


async def flows() -> None:
    flow = engine.flow("import")
    numbers = flow.add(first_is_the_context.call(1))
    assert_type(numbers, Step[list[int]])
    assert_type(numbers.result, list[int])
    name = flow.add(greet.call("Ada"))
    assert_type(flow.add(send.call(name.result), after=[numbers, 17], if_dependency_fails="run"), Step[int])
    mails = flow.map(send, over=name, after=[numbers])
    assert_type(mails, MapStep[int])
    assert_type(mails.results, list[int])
    run = await flow.enqueue(conn=None)
    assert_type(run, FlowRun)
    handle = await greet.enqueue("Ada")
    assert_type(await send.with_options(after=[handle, 17], if_dependency_fails="run").enqueue("a@b.c"), Handle[int])


def script() -> None:
    with engine:
        handle = greet.enqueue_sync("Ada")
        assert_type(handle, Handle[str])
        assert_type(handle.result_sync(5), str)
        assert_type(send.enqueue_many_sync([("a@b.c",)]), list[Handle[int]])
        assert_type(engine.group_sync("some", [greet.call("Ada")], then=send.call("a@b.c")), Group[str])


if __name__ == "__main__":
    asyncio.run(main())
