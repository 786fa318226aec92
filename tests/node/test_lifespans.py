"""What an application sets up around its workers and child processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.node import lifespan_app
from tests.support import PATIENCE_SECONDS, ended

from synergon import ConfigurationError, Engine, OptionError, State, testing


async def test_a_lifespan_surrounds_the_tasks_of_a_worker(engine: Engine) -> None:
    order: list[str] = []

    @engine.lifespan
    async def outer() -> AsyncIterator[None]:
        order.append("outer begins")
        yield
        order.append("outer ends")

    @engine.lifespan
    @asynccontextmanager
    async def inner() -> AsyncIterator[None]:
        order.append("inner begins")
        yield
        order.append("inner ends")

    @engine.task
    async def note() -> None:
        order.append("task")

    async with engine:
        await note.enqueue()
        assert order == []
        async with engine.worker(drain=True):
            pass
        assert order == ["outer begins", "inner begins", "task", "inner ends", "outer ends"]


async def test_a_lifespan_that_fails_starts_no_worker_and_undoes_those_before_it(engine: Engine) -> None:
    order: list[str] = []

    @engine.lifespan
    async def first() -> AsyncIterator[None]:
        try:
            yield
        finally:
            order.append("first ends")

    @engine.lifespan
    async def broken() -> AsyncIterator[None]:
        raise ConnectionError("no such host")
        yield

    with pytest.raises(ConnectionError, match="no such host"):
        async with engine.worker():
            pass
    assert order == ["first ends"]
    assert engine._node is None
    async with engine:
        assert await engine.nodes() == []


async def test_a_lifespan_ends_when_the_block_of_its_worker_raises(engine: Engine) -> None:
    ended_with: list[str] = []

    @engine.lifespan
    async def client() -> AsyncIterator[None]:
        try:
            yield
        finally:
            ended_with.append("ended")

    with pytest.raises(ZeroDivisionError):
        async with engine.worker():
            raise ZeroDivisionError
    assert ended_with == ["ended"]


async def test_a_process_lifespan_runs_once_in_each_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "ended"
    monkeypatch.setenv("LIFESPAN_LOG", str(log))
    engine = Engine("memory://", child_processes=1)
    use_pool = engine.task(runs_in="process")(lifespan_app.use_pool.function)
    async with engine.worker():
        answers = [await (await use_pool.enqueue()).result(PATIENCE_SECONDS) for _ in range(3)]
    assert len(set(answers)) == 1
    pid, entered = answers[0]
    assert (pid != os.getpid(), entered) == (True, 1)
    assert log.read_text() == f"{pid}\n"  # a child that ends in order runs the rest of its lifespan


async def test_a_tester_runs_lifespans_around_each_drain() -> None:
    async with testing.memory(lifespan_app.engine) as tester:
        handle = await lifespan_app.use_client.enqueue()
        await tester.drain()
        assert await handle.result() == os.getpid()
    assert "client" not in lifespan_app.shared


@pytest.mark.parametrize("name", ["lifespan", "process_lifespan"])
def test_what_is_no_lifespan_is_rejected(name: str) -> None:
    engine = Engine("memory://")

    async def coroutine() -> None: ...

    with pytest.raises(OptionError, match=f"@engine.{name} decorates"):
        getattr(engine, name)(coroutine)
    with pytest.raises(OptionError, match=f"@engine.{name} decorates"):
        getattr(engine, name)(7)


def test_a_plain_generator_is_no_lifespan_of_a_worker() -> None:
    engine = Engine("memory://")

    def plain() -> Iterator[None]:
        yield

    async def asynchronous() -> AsyncIterator[None]:
        yield

    with pytest.raises(OptionError, match="an `async def` with one `yield`"):
        engine.lifespan(plain)  # type: ignore[type-var]
    with pytest.raises(OptionError, match="a child process has an event loop only while"):
        engine.process_lifespan(asynchronous)  # type: ignore[type-var]


async def test_a_function_that_returns_no_context_manager_is_named(engine: Engine) -> None:
    engine.lifespan(lambda: 7)  # type: ignore[type-var]
    with pytest.raises(OptionError, match="must have one `yield` or return an async context manager, got 7"):
        async with engine.worker():
            pass


async def test_a_worker_imports_the_modules_that_its_engine_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_app.py").write_text(
        'from synergon import Engine\nengine = Engine("memory://", imports=["shop_mail"])\n'
    )
    (tmp_path / "shop_mail.py").write_text(
        "from shop_app import engine\n\n@engine.task\nasync def send() -> str:\n    return 'sent'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import shop_app  # type: ignore[import-not-found]

    engine: Engine = shop_app.engine
    async with engine.worker(drain=True):
        (handle,) = await engine.enqueue([engine.call("send")])
        assert (await ended(handle)).state is State.SUCCEEDED


def test_imports_are_checked() -> None:
    for wrong in ("shop.mail", [7], ["shop/mail.py"], [""]):
        with pytest.raises(OptionError, match="imports must be a list of modules"):
            Engine("memory://", imports=wrong)  # type: ignore[arg-type]


async def test_a_module_that_does_not_exist_is_named() -> None:
    engine = Engine("memory://", imports=["no_such_module"])
    with pytest.raises(ConfigurationError, match="imports names 'no_such_module', but there is no module"):
        async with engine.worker():
            pass
