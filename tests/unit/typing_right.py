"""What users write, as a type checker must take it: without an error."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, assert_type

from synergon import (
    Call,
    Context,
    Engine,
    Group,
    Handle,
    Health,
    Kind,
    Occurrence,
    Rate,
    Retry,
    ScheduleRecord,
    Server,
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


@engine.task(retry=3)
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


@gpu.command
async def load(model: str, server: Server) -> None: ...


async def providers() -> None:
    assert_type(await (await complete.enqueue("hi", tokens=5)).result(), str)
    assert_type(await (await first_is_the_server.enqueue(3)).result(), int)
    assert_type(first_is_the_server.call(number=3), Call[int])
    assert_type(await complete("hi"), str)
    group = await engine.group("some", [complete.call("a"), first_is_the_server.call(1)], then=greet.call("b"))
    assert_type(group, Group)
    await engine.set_limit("license", None)
    await gpu.set_servers(["http://gpu3"], capacity=2)
    await load.send("llama", to="each")


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
        await send.with_options(on_conflict="replace", key="a", expires_in="1h", conn=None, retry=2).enqueue("a@b.c")
        assert_type(await greet.enqueue_many([("Bob",), {"name": "Eve"}]), list[Handle[str]])
        assert_type(greet.call("x"), Call[str])
        Kind(str, retry=3, timeout="1m", needs={"zone:eu"}, limit_by="{arguments}", limit=2)
        assert_type(greet.call("x").with_options(priority=1), Call[str])
        await engine.enqueue([greet.call("x"), send.call("y"), engine.call("elsewhere", number=1)])

        assert_type(await greet("Ada"), str)
        assert_type(send("a@b.c"), int)
        assert_type((await handle.status()).attempts, int)


def script() -> None:
    with engine:
        handle = greet.enqueue_sync("Ada")
        assert_type(handle, Handle[str])
        assert_type(handle.result_sync(5), str)
        assert_type(send.enqueue_many_sync([("a@b.c",)]), list[Handle[int]])
        assert_type(engine.group_sync("some", [greet.call("Ada")], then=send.call("a@b.c")), Group)
        assert_type(load.enqueue_sync("llama", to="each"), dict[str, Handle[Any]])


if __name__ == "__main__":
    asyncio.run(main())
