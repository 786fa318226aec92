"""Every public coroutine has a twin for code without an event loop."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import synergon
from synergon import Engine
from synergon.call import Configured
from synergon.client.flows import Flows, Groups
from synergon.client.schedules import Schedules
from synergon.providers.provider import Provider
from synergon.task import TaskType
from synergon.testing import Tester

CLASSES = (
    *(cls for name in synergon.__all__ if isinstance(cls := getattr(synergon, name), type)),
    *(Configured, Flows, Groups, Schedules, Tester),
)
"""Every public class, and those of attributes and results that are public."""

WITHOUT: Final[dict[tuple[type, str], str]] = {
    (Engine, "connect"): "`with engine:`",
    (Engine, "close"): "`with engine:`",
    (Engine, "stop"): "`with engine:`",
    (TaskType, "delay"): "another name of `enqueue`",
    (Configured, "delay"): "another name of `enqueue`",
    (Provider, "handle"): "users implement it",
    (Tester, "note_inserted"): "of the store",
    (Tester, "run_or_join"): "of the waiters",
}


def public_coroutines() -> Iterator[tuple[type, str]]:
    for cls in CLASSES:
        for name, _ in inspect.getmembers(cls, inspect.iscoroutinefunction):
            if not name.startswith("_") and (cls, name) not in WITHOUT:
                yield cls, name


@pytest.mark.parametrize(("cls", "name"), list(public_coroutines()), ids=lambda part: getattr(part, "__name__", part))
def test_a_public_coroutine_has_a_twin_that_is_no_coroutine_function(cls: type, name: str) -> None:
    twin = getattr(cls, f"{name}_sync", None)
    assert twin is not None, f"{cls.__name__}.{name} has no {name}_sync"
    assert not inspect.iscoroutinefunction(twin)
    assert twin.__name__ == f"{name}_sync"
    assert twin.__doc__


@pytest.mark.parametrize(("cls", "name"), list(public_coroutines()), ids=lambda part: getattr(part, "__name__", part))
def test_a_twin_has_the_parameters_of_its_coroutine(cls: type, name: str) -> None:
    def parameters(method: str) -> list[str]:
        return [str(each) for each in inspect.signature(getattr(cls, method)).parameters.values()]

    assert parameters(f"{name}_sync") == parameters(name)


def test_the_reference_names_the_calls_of_an_engine_that_have_no_twin() -> None:
    reference = Path("docs/reference.md").read_text()
    (promise,) = [part for part in reference.split("\n\n") if part.startswith("Every call that is awaited has a twin")]
    for cls, name in WITHOUT:
        if cls is Engine:
            assert f"`engine.{name}`" in promise
            assert WITHOUT[cls, name] in promise, "what replaces it"


def test_the_exceptions_exist() -> None:
    for cls, name in WITHOUT:
        assert inspect.iscoroutinefunction(getattr(cls, name))


def test_a_program_without_an_event_loop_reads_and_changes_tasks(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path / 'app.db'}")

    @engine.task
    async def greet(name: str) -> str:
        return f"hello, {name}"

    with engine:
        handle = greet.with_options(delay=60).enqueue_sync("Ada")
        assert engine.get_sync(handle.id).state == "scheduled"
        assert len(engine.tasks_sync(kind="greet")) == 1
        assert engine.counts_sync(kind="greet")[synergon.State.SCHEDULED] == 1
        engine.set_priority_sync(handle.id, 7)
        engine.reschedule_sync(handle.id, delay=0)
        assert engine.get_sync(handle.id).priority == 7
        assert engine.pause_sync("default")
        assert engine.queues_sync()[0].is_paused
        assert engine.resume_sync("default")
        assert "no live node knows" in str(engine.explain_sync(handle.id))
        assert engine.cancel_sync(handle.id)
        engine.retry_sync(handle.id)
        group = engine.group_sync("both", [greet.call("Bob"), greet.call("Eve")])
        assert group.counts_sync()[synergon.State.READY] == 2
        assert engine.run_sync(drain=True) == 0
        assert group.results_sync() == ["hello, Bob", "hello, Eve"]
        assert engine.wait_sync(handle.id).result == "hello, Ada"
        engine.delete_sync(handle.id)
        assert engine.nodes_sync() == []
