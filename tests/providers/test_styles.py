"""Two styles of writing a provider, and how bodies are given their server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import msgspec
import pytest
from tests.conftest import NewEngine
from tests.providers import task_functions as bodies
from tests.support import PATIENCE_SECONDS, until

from synergon import (
    ConfigurationError,
    Context,
    Engine,
    Kind,
    OptionError,
    Provider,
    ProviderTask,
    Rate,
    Reason,
    Resources,
    Retry,
    Server,
    State,
    injected,
)


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


async def test_a_provider_class_gets_arguments_in_the_types_of_its_kinds(engine: Engine) -> None:
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


async def test_invalid_arguments_fail_the_task_and_do_not_count_against_the_server(
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


def test_a_provider_class_with_kinds_needs_handle(engine: Engine) -> None:
    class Idle(Provider):
        kinds: ClassVar[dict[str, Any]] = {"work": Prompt}

    with pytest.raises(ConfigurationError, match=r"provider 'idle' lists kinds but has no `async def handle"):
        Idle(engine)


@pytest.mark.parametrize("kinds", [["work"], "work", None])
def test_kinds_must_be_a_dict(engine: Engine, kinds: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="provider 'gpu': kinds must be a dict of names and types of arguments"
    ):
        type("Gpu", (Gpu,), {"kinds": kinds})(engine)


# ---------------------------------------------------------------- what a class says of its kinds


def gpu_of(engine: Engine, **kinds: Any) -> Gpu:
    """A provider whose class serves these, on one server."""
    return cast(Gpu, type("Gpu", (Gpu,), {"kinds": kinds})(engine, servers={"g": 5}))


def test_kind_takes_the_options_of_a_task(engine: Engine) -> None:
    retry = Retry(attempts=5, first=0.5)
    gpu_of(
        engine,
        complete=Kind(
            Prompt,
            queue="gpu",
            priority=3,
            timeout="2s",
            retry=retry,
            max_running=4,
            max_running_global=7,
            rate=Rate(10),
            cost=Resources(gpu=0.5),
            needs=(label for label in ["zone:eu"]),
            forbids={"spot"},
            preemptible=True,
        ),
        draw=Picture,
    )
    policy, plain = (engine.kinds[kind].policy for kind in ("complete", "draw"))
    assert (policy.queue, policy.priority, policy.timeout, policy.retry) == ("gpu", 3, 2.0, retry)
    assert (policy.max_running, policy.max_running_global, policy.rate) == (4, 7, Rate(10))
    assert (policy.requirements.cost, policy.requirements.needs) == ({"gpu": 500_000}, ("zone:eu",))
    assert (policy.requirements.forbids, policy.preemptible) == (("spot",), True)
    assert (plain.queue, plain.retry.attempts, plain.requirements.cost, plain.preemptible) == ("default", 1, {}, False)


async def test_options_of_a_kind_apply_to_its_tasks(engine: Engine) -> None:
    heard: list[str] = []

    class Picky(Gpu):
        kinds: ClassVar[dict[str, Any]] = {
            "fails": Kind(
                Prompt, retry=Retry(attempts=3, first=0.001), on_failure=lambda task, *_: heard.append(task.kind)
            ),
            "alone": Kind(Prompt, limit_by="{arguments.text}", limit=1),
            "elsewhere": Kind(Prompt, needs={"zone:eu"}),
        }

        async def handle(self, task: ProviderTask[Any], server: Server) -> str:
            if task.kind == "fails":
                raise ValueError(f"attempt {task.attempt}")
            return str(task.kind)

    Picky(engine, servers={"g": 5})
    async with engine, engine.worker():
        failing, first, second, waiting = await engine.enqueue(
            [engine.call(kind, Prompt("hi")) for kind in ("fails", "alone", "alone", "elsewhere")]
        )
        failed = await engine.wait(failing.id, timeout=PATIENCE_SECONDS)
        assert [await handle.result(PATIENCE_SECONDS) for handle in (first, second)] == ["alone", "alone"]
        assert (await second.status()).limit_key == "hi"
        assert "lacks label zone:eu" in (await waiting.explain()).sentence
        await until(lambda: heard == ["fails"])
    assert (failed.attempts, failed.error and failed.error.message) == (3, "attempt 3")


WRONG = {
    "cost": (5, "Kind(Prompt): cost must be Resources, like Resources(cpu=1), got 5"),
    "needs": ({"two words"}, "Kind(Prompt): needs: a label is a word"),
    "retry": ("often", "retry must be a Retry or a number of attempts, got 'often'"),
    "timeout": (-1, "timeout must be longer than zero, got -1"),
    "limit": (2, "Kind(Prompt): limit says how many of each key may run; give limit_by too"),
    "on_start": ("print", "Kind(Prompt): on_start must be a function, got 'print'"),
    "costs": (Resources(cpu=1), "Kind(Prompt) has no option 'costs'; did you mean 'cost'?"),
    "name": ("other", "Kind(Prompt) has no option 'name'; it takes"),
    "runs_in": ("process", "Kind(Prompt) has no option 'runs_in'; it takes"),
}


@pytest.mark.parametrize("option", WRONG)
def test_an_invalid_option_of_a_kind_raises_when_it_is_made(option: str) -> None:
    value, said = WRONG[option]
    wrong: dict[str, Any] = {option: value}
    with pytest.raises(OptionError) as refused:
        Kind(Prompt, **wrong)
    assert str(refused.value).startswith(said)


def test_a_kind_cannot_be_made_of_a_kind() -> None:
    with pytest.raises(OptionError, match=r"Kind takes the type of the arguments, got Kind\(Prompt\)"):
        Kind(Kind(Prompt))


@pytest.mark.parametrize("wrong", [5, [Prompt], Kind(5)])
def test_the_arguments_of_a_kind_must_be_a_type(engine: Engine, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="the annotations of task 'complete' cannot be JSON"):
        gpu_of(engine, complete=wrong)


def test_limit_by_must_name_arguments_of_the_kind(engine: Engine) -> None:
    with pytest.raises(OptionError, match="limit_by of task 'complete' asks for 'customer', which is no argument"):
        gpu_of(engine, complete=Kind(Prompt, limit_by="{customer}", limit=1))


# ---------------------------------------------------------------- the server of a body


@pytest.mark.parametrize("runs_in", ["loop", "thread", "process"])
async def test_task_functions_receive_their_server_wherever_they_run(engine: Engine, runs_in: Any) -> None:
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


async def test_the_server_parameter_may_be_anywhere_in_the_signature(engine: Engine) -> None:
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


async def test_labels_of_a_server_are_kept_for_later_tasks(engine: Engine) -> None:
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
