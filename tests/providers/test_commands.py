"""Commands: they run ahead of every task, in their order, once, and their results come back."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.providers.crowd import Crowd
from tests.support import PATIENCE_SECONDS, ended, until, until_state

from synergon import CommandsFailed, Engine, OptionError, Reason, Server, State, TaskCancelled, TaskFailed, injected


async def test_a_command_runs_next_on_a_server_with_a_hundred_tasks_before_it(engine: Engine) -> None:
    order: list[str] = []
    gate, reached = asyncio.Event(), asyncio.Event()
    gpu = engine.provider("gpu", servers=["g"])

    @gpu.task
    async def work(number: int) -> None:
        order.append(f"task {number}")
        reached.set()
        if number == 0:
            await gate.wait()

    @gpu.command
    async def load(server: Server, model: str) -> str:
        order.append(f"load {model}")
        return f"{model} on {server}"

    async with engine.worker():
        handles = await work.enqueue_many([(number,) for number in range(100)])
        await reached.wait()
        sending = asyncio.ensure_future(load.send("llama"))
        await until(lambda: _is_stored(engine, "gpu.load"))
        gate.set()
        assert await asyncio.wait_for(sending, PATIENCE_SECONDS) == "llama on g"
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
    assert order[:3] == ["task 0", "load llama", "task 1"]


async def _is_stored(engine: Engine, kind: str, number: int = 1) -> bool:
    return sum((await engine.counts(kind=kind)).values()) >= number


async def test_ten_commands_run_in_the_order_in_which_they_were_sent(engine: Engine) -> None:
    order: list[int] = []
    gpu = engine.provider("gpu", servers=["g"])

    @gpu.command
    async def note(number: int) -> int:
        order.append(number)
        await asyncio.sleep(0.002)
        return number

    async with engine:
        handles = [(await note.enqueue(number, to="g"))["g"] for number in range(10)]
        async with engine.worker():
            assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == list(range(10))
    assert order == list(range(10))


async def test_a_failed_command_is_never_run_again(engine: Engine) -> None:
    runs: list[str] = []
    gpu = engine.provider("gpu", servers=["g"], health=None)

    @gpu.command
    async def burn(server: Server) -> None:
        runs.append(server.address)
        raise ConnectionError("smoke")

    async with engine.worker():
        with pytest.raises(TaskFailed, match="smoke"):
            await asyncio.wait_for(burn.send(), PATIENCE_SECONDS)
        (handle,) = (await burn.enqueue()).values()
        record = await ended(handle)
    assert runs == ["g", "g"]
    assert (record.state, record.attempts, record.max_attempts, record.is_command) == (State.FAILED, 1, 1, True)


async def test_a_slow_command_does_not_stop_other_servers(engine: Engine) -> None:
    gate = asyncio.Event()
    gpu = engine.provider("gpu", servers={"slow": 1, "quick": 1})

    @gpu.command
    async def reload() -> None:
        await gate.wait()

    @gpu.task
    async def work(server: Server) -> str:
        return server.address

    async with engine.worker():
        (command,) = (await reload.enqueue(to="slow")).values()
        await until_state(command, State.RUNNING)
        handles = await work.enqueue_many([() for _ in range(20)])
        assert {await handle.result(PATIENCE_SECONDS) for handle in handles} == {"quick"}
        gate.set()
        await command.result(PATIENCE_SECONDS)


async def test_a_command_can_be_sent_to_any_server_to_each_or_to_one_address(engine: Engine) -> None:
    gpu = engine.provider("gpu", servers={"http://a": 2, "http://b": None, "http://c": 1})

    @gpu.command
    async def name(suffix: str, server: Server = injected) -> str:
        return server.address + suffix

    async with engine.worker():
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await name.send("!", to="each") == {
                "http://a": "http://a!",
                "http://b": "http://b!",
                "http://c": "http://c!",
            }
            assert await name.send("!") in {"http://a!", "http://b!", "http://c!"}
            assert await name.send("!", to="HTTP://B/") == "http://b!"


async def test_commands_failed_has_the_results_of_the_other_servers(engine: Engine) -> None:
    gpu = engine.provider("gpu", servers=["a", "b"])

    @gpu.command
    async def warm(server: Server) -> str:
        if server.address == "a":
            raise OSError("cold")
        return "warm"

    async with engine.worker():
        with pytest.raises(CommandsFailed, match=r"failed on 1 of 2 servers: a: .*cold") as caught:
            await asyncio.wait_for(warm.send(to="each"), PATIENCE_SECONDS)
    assert caught.value.results == {"b": "warm"}
    assert list(caught.value.errors) == ["a"]


async def test_a_command_for_an_unknown_server_is_rejected_and_not_stored(engine: Engine) -> None:
    gpu, bare = engine.provider("gpu", servers=["a"]), engine.provider("bare")

    @gpu.command
    async def warm() -> None: ...

    @bare.command
    async def cool() -> None: ...

    async with engine.worker():
        with pytest.raises(OptionError, match="provider 'gpu' has no server 'b'; it has a"):
            await warm.send(to="b")
        with pytest.raises(OptionError, match=r"provider 'bare' has no servers to send bare\.cool to"):
            await cool.send(to="each")
        with pytest.raises(OptionError, match="to must be"):
            await warm.send(to="two words")
        assert sum((await engine.counts()).values()) == 0


async def test_a_command_that_waits_can_be_cancelled(engine: Engine) -> None:
    crowd = Crowd()
    gpu = engine.provider("gpu", servers=["g"])

    @gpu.task
    async def work() -> None:
        await crowd.hold("g")

    @gpu.command
    async def never() -> None:
        raise AssertionError

    async with engine.worker():
        busy = await work.enqueue()
        await crowd.until_inside("g", 1)
        (handle,) = (await never.enqueue()).values()
        assert await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(PATIENCE_SECONDS)
        crowd.open()
        await busy.result(PATIENCE_SECONDS)


async def test_a_full_node_still_runs_commands_and_does_not_spin(new_engine: NewEngine, url: str) -> None:
    crowd, claims = Crowd(), Counter[str]()
    engine = new_engine(url, concurrency=2)
    gpu = engine.provider("gpu", servers={"g": 9})

    @gpu.task
    async def work() -> None:
        await crowd.hold("g")

    @gpu.command
    async def ask() -> str:
        return "answered"

    async with engine.worker():
        _count_claims(engine, claims)
        handles = await work.enqueue_many([() for _ in range(5)])
        await crowd.until_inside("g", 2)
        assert await asyncio.wait_for(ask.send(), PATIENCE_SECONDS) == "answered"
        before = claims["claim"]
        await asyncio.sleep(0.3)
        assert claims["claim"] - before < 5
        crowd.open()
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)
    assert crowd.most["g"] == 2


async def test_a_command_in_a_thread_runs_although_all_task_threads_are_busy(new_engine: NewEngine) -> None:
    is_open = threading.Event()
    engine = new_engine("memory://", concurrency=2)
    gpu = engine.provider("gpu", servers={"g": 9})

    @gpu.task
    def work() -> None:
        is_open.wait(PATIENCE_SECONDS)

    @gpu.command
    def ask() -> str:
        return threading.current_thread().name

    async with engine.worker():
        handles = await work.enqueue_many([() for _ in range(2)])
        await until_state(handles[1], State.RUNNING)
        try:
            name = await asyncio.wait_for(ask.send(), PATIENCE_SECONDS)
        finally:
            is_open.set()
        assert name.startswith("synergon-command")
        for handle in handles:
            await handle.result(PATIENCE_SECONDS)


def _count_claims(engine: Engine, claims: Counter[str]) -> None:
    claim = engine._store.claim

    async def counted(request: Any) -> Any:
        claims["claim"] += 1
        return await claim(request)

    engine._store.claim = counted  # type: ignore[method-assign]  # put in its place


async def test_a_command_for_a_server_that_leaves_the_pool_fails_instead_of_waiting_for_ever(engine: Engine) -> None:
    crowd = Crowd()
    gpu = engine.provider("gpu", servers=["old"])

    @gpu.task
    async def work() -> None:
        await crowd.hold("old")

    @gpu.command
    async def ask() -> None: ...

    async with engine.worker():
        busy = await work.enqueue()
        await crowd.until_inside("old", 1)
        (handle,) = (await ask.enqueue(to="old")).values()
        await gpu.set_servers(["new"])
        record = await ended(handle)
        crowd.open()
        await busy.result(PATIENCE_SECONDS)
    assert record.state is State.FAILED
    assert record.reason is Reason.ERROR
    assert record.error is not None
    assert "old" in record.error.message


async def test_commands_appear_in_the_history_with_their_providers_name(engine: Engine) -> None:
    gpu = engine.provider("gpu", servers=["g"])

    @gpu.command(name="version")
    async def ask_version(server: Server) -> str:
        return "1"

    async with engine.worker():
        await asyncio.wait_for(ask_version.send(), PATIENCE_SECONDS)
        (record,) = await engine.tasks()
    assert ask_version.kind == "gpu.version"
    assert (record.kind, record.is_command, record.server) == ("gpu.version", True, "g")


async def test_a_command_stays_a_plain_function(engine: Engine) -> None:
    gpu = engine.provider("gpu", servers=["g"])

    @gpu.command
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8


async def test_a_command_accepts_only_options_that_apply_to_it(engine: Engine) -> None:
    gpu = engine.provider("gpu", servers=["g"])
    with pytest.raises(
        OptionError, match="@command 'ask' of provider 'gpu' has no option 'retry'; it takes name, timeout"
    ):

        @gpu.command(retry=3)  # type: ignore[call-overload, untyped-decorator]  # wrong on purpose
        async def ask() -> None: ...

    with pytest.raises(ValueError, match="has an argument `to`"):

        @gpu.command
        async def send(to: str) -> None: ...
