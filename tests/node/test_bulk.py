"""Operations on all tasks that match: what they reach, what they leave, and their one entry in the audit."""

from __future__ import annotations

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate, all_tasks, until_state

from synergon import Engine, OptionError, State


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergon.client.bulk.PAGE", 3)


async def states(engine: Engine, kind: str) -> list[State]:
    return [record.state for record in await all_tasks(engine) if record.kind == kind]


async def test_every_verb_reaches_what_matches_and_nothing_else(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)

    @engine.task
    async def mine(number: int) -> None: ...

    @engine.task
    async def other() -> None: ...

    async with engine:
        await mine.enqueue_many([(number,) for number in range(8)])
        await other.enqueue()
        visited: list[int] = []
        assert await engine.set_priority_all(7, why="urgent", kind="mine", on_progress=visited.append) == 8
        assert visited == [3, 6, 8]
        assert await engine.reschedule_all(kind="mine", delay=3600, why="later") == 8
        assert await states(engine, "mine") == [State.SCHEDULED] * 8
        assert await engine.cancel_all("enough", kind="mine", state="scheduled") == 8
        assert await engine.cancel_all(kind="mine") == 0
        assert await engine.retry_all(kind="mine") == 0, "only failed ones, unless told"
        assert await engine.retry_all(kind="mine", state=State.CANCELLED, why="mended") == 8
        assert {record.priority for record in await all_tasks(engine) if record.kind == "mine"} == {7}
        assert await engine.delete_all(kind="mine") == 0, "only ended ones, unless told"
        assert await engine.delete_all(kind="mine", state=["ready", "failed"], why="useless") == 8
        assert await states(engine, "mine") == []
        assert await states(engine, "other") == [State.READY]
        entries = await engine.audit()
    assert [(entry.verb, entry.subject, entry.outcome) for entry in entries] == [
        ("delete_all", "state=failed,ready kind=mine", "8 tasks deleted"),
        ("delete_all", "state=cancelled,failed,succeeded kind=mine", "0 tasks deleted"),
        ("retry_all", "state=cancelled kind=mine", "8 tasks retried"),
        ("retry_all", "state=failed kind=mine", "0 tasks retried"),
        ("cancel_all", "state=ready,running,scheduled,waiting kind=mine", "0 tasks cancelled"),
        ("cancel_all", "state=scheduled kind=mine", "8 tasks cancelled"),
        ("reschedule_all", "state=ready,scheduled kind=mine", "8 tasks rescheduled"),
        ("set_priority_all", "state=ready,scheduled,waiting kind=mine", "8 tasks given another priority"),
    ]
    assert entries[5].value == {"why": "enough"}
    assert entries[7].value == {"priority": 7, "why": "urgent"}
    assert [entry.why for entry in entries] == [
        *("useless", None, "mended", None, None, "enough", "later", "urgent"),
    ]
    assert all("@" in entry.who for entry in entries)


async def test_running_tasks_are_asked_to_end(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    gate = Gate()

    @engine.task
    async def hold() -> None:
        await gate.hold()

    async with engine.worker():
        handle = await hold.enqueue()
        await gate.until_reached()
        assert await engine.cancel_all(kind="hold") == 1
        await until_state(handle, State.CANCELLED)


async def test_tasks_that_become_ready_run_at_once(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=60)

    @engine.task
    async def note(number: int) -> int:
        return number

    async with engine.worker():
        handles = await note.with_options(delay=3600).enqueue_many([(number,) for number in range(5)])
        assert await engine.reschedule_all(kind="note", delay=0) == 5
        assert [await handle.result(PATIENCE_SECONDS) for handle in handles] == [0, 1, 2, 3, 4]


async def test_an_operation_that_breaks_off_says_how_far_it_came(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)

    @engine.task
    async def note(number: int) -> None: ...

    def stop(visited: int) -> None:
        raise KeyError(visited)

    async with engine:
        await note.enqueue_many([(number,) for number in range(5)])
        with pytest.raises(KeyError):
            await engine.cancel_all(kind="note", on_progress=stop)
        assert (await engine.audit())[0].outcome == "stopped by KeyError after 3 tasks"
        assert sorted(await states(engine, "note")) == [State.CANCELLED] * 3 + [State.READY] * 2


async def test_wrong_filters_are_told_and_change_nothing(engine: Engine) -> None:
    async with engine:
        with pytest.raises(OptionError, match="a task that is failed cannot be cancelled; state takes ready"):
            await engine.cancel_all(state="failed")
        with pytest.raises(OptionError, match="limit"):
            await engine.delete_all(limit=3)  # type: ignore[call-arg]
        with pytest.raises(OptionError, match="exactly one"):
            await engine.reschedule_all(kind="x")
        with pytest.raises(OptionError, match="kind must be text"):
            await engine.retry_all(kind=3)  # type: ignore[arg-type]
        assert await engine.audit() == []


def test_code_without_a_loop_has_its_twins(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)

    @engine.task
    async def note() -> None: ...

    with engine:
        note.enqueue_many_sync([()] * 4)
        assert engine.set_priority_all_sync(2, kind="note") == 4
        assert engine.reschedule_all_sync(kind="note", delay=60) == 4
        assert engine.cancel_all_sync("enough", kind="note") == 4
        assert engine.retry_all_sync(kind="note", state="cancelled") == 4
        assert engine.delete_all_sync(kind="note", state="ready") == 4
