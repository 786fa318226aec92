"""Two styles of writing a provider, and how bodies are given their server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pytest
from tests.conftest import NewEngine
from tests.providers import bodies
from tests.support import PATIENCE_SECONDS, until

from synergon import ConfigurationError, Context, Engine, Provider, ProviderTask, Reason, Server, State, injected


@dataclass
class Prompt:
    text: str
    tokens: int = 10


class Picture(msgspec.Struct):
    width: int


class Gpu(Provider):
    """Serves two kinds with one method."""

    kinds: ClassVar[dict[str, Any]] = {"complete": Prompt, "draw": Picture}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.heard: list[str] = []
        super().__init__(*args, **kwargs)

    async def handle(self, task: ProviderTask[Any], server: Server) -> str:
        assert task.context.server is server
        match task.arguments:
            case Prompt(text, tokens):
                return f"{task.kind} {task.attempt}: {text} {tokens} on {server}"
            case Picture(width=width):
                return f"{task.kind}: {width} on {server}"
        raise AssertionError(task)

    async def on_success(self, task: Any, seconds: float, result: str) -> None:
        self.heard.append(result)


async def test_a_class_serves_its_kinds_with_arguments_in_their_types(engine: Engine) -> None:
    gpu = Gpu(engine, servers={"http://g": 2})
    assert gpu.name == "gpu"
    async with engine.worker():
        handles = await engine.enqueue(
            [engine.call("complete", Prompt("hi")), engine.call("draw", arguments=Picture(width=3))]
        )
        found = [await handle.result(PATIENCE_SECONDS) for handle in handles]
        await until(lambda: len(gpu.heard) == 2)
    assert found == ["complete 1: hi 10 on http://g", "draw: 3 on http://g"]
    assert sorted(gpu.heard) == sorted(found)


async def test_arguments_that_do_not_fit_fail_the_task_clearly_and_not_the_server(
    engine: Engine, new_engine: NewEngine, url: str
) -> None:
    gpu = Gpu(engine, "gpu", servers=["g"])
    producer = new_engine(url)
    async with producer, engine.worker():
        handles = await producer.enqueue(
            [
                producer.call("complete", arguments={"text": 5}),
                producer.call("draw", arguments={}),
                producer.call("draw"),
            ]
        )
        records = [await engine.wait(handle.id, timeout=PATIENCE_SECONDS) for handle in handles]
        (server,) = await gpu.servers()
    assert {(record.state, record.reason) for record in records} == {(State.FAILED, Reason.ERROR)}
    messages = [record.error.message for record in records if record.error is not None]
    assert "Expected `str`, got `int`" in messages[0]
    assert "width" in messages[1]
    assert "arguments" in messages[2]
    assert server.failures == 0


def test_a_class_with_kinds_and_no_handle_is_refused(engine: Engine) -> None:
    class Idle(Provider):
        kinds: ClassVar[dict[str, Any]] = {"work": Prompt}

    with pytest.raises(ConfigurationError, match=r"provider 'idle' lists kinds but has no `async def handle"):
        Idle(engine)


@pytest.mark.parametrize("runs_in", ["loop", "thread", "process"])
async def test_bodies_are_given_their_server_wherever_they_run(engine: Engine, runs_in: Any) -> None:
    pool = engine.provider("pool", servers={"http://a": 2})

    async def on_loop(number: int, server: Server, ctx: Context) -> tuple[str, str, int, int]:
        return bodies.where(number, server, ctx)

    task: Any = pool.task(on_loop) if runs_in == "loop" else bodies.on(pool, runs_in)
    async with engine.worker():
        handles = [await task.enqueue(number) for number in range(3)]
        found = [await handle.result(30) for handle in handles]
    assert [number for _, _, number, _ in found] == [0, 1, 2]
    assert {(address, provider) for address, provider, _, _ in found} == {("http://a", "pool")}
    assert all((pid == os.getpid()) is (runs_in != "process") for *_, pid in found)


async def test_a_server_is_given_at_any_place_of_the_signature(engine: Engine) -> None:
    pool = engine.provider("pool", servers=["a"])

    @pool.task
    async def first(server: Server, number: int) -> str:
        return f"{server} {number}"

    @pool.task
    async def last(number: int, server: Server = injected) -> str:
        return f"{server} {number}"

    @pool.task
    async def named(*, number: int, server: Server, ctx: Context) -> str:
        return f"{server} {number} {ctx.task_id > 0}"

    async with engine.worker():
        assert await (await first.enqueue(1)).result(PATIENCE_SECONDS) == "a 1"
        assert await (await last.enqueue(2)).result(PATIENCE_SECONDS) == "a 2"
        (handle,) = await engine.enqueue([engine.call("named", number=3)])
        assert await handle.result(PATIENCE_SECONDS) == "a 3 True"


async def test_what_a_body_puts_on_a_server_is_there_for_the_next(engine: Engine) -> None:
    pool = engine.provider("pool", servers=["a"])

    @pool.task
    async def count(server: Server) -> int:
        server.labels["count"] = server.labels.get("count", 0) + 1
        found: int = server.labels["count"]
        return found

    async with engine.worker():
        found = [await (await count.enqueue()).result(PATIENCE_SECONDS) for _ in range(3)]
    assert found == [1, 2, 3]


async def test_a_task_without_a_provider_has_no_server(engine: Engine) -> None:
    @engine.task
    async def plain(ctx: Context) -> bool:
        return ctx.server is None

    async with engine.worker():
        assert await (await plain.enqueue()).result(PATIENCE_SECONDS)
