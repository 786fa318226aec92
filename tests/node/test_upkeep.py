"""What a node does beside running tasks: it lets old history go and gives back the work of the dead."""

from __future__ import annotations

import logging

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, Gate, a_row, all_tasks, ended, until

from synergon import Engine, Retention, State, TaskDeleted
from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.tasks import Cutoffs


async def fill(engine: Engine) -> None:
    """One ended task for each final state."""

    @engine.task
    async def end(how: str) -> None:
        if how == "failed":
            raise ValueError("as asked")

    async with engine.worker():
        for how in ("succeeded", "failed"):
            await ended(await end.enqueue(how))
    await (await end.with_options(delay=60).enqueue("cancelled")).cancel()


@pytest.mark.parametrize("kept", ["succeeded", "failed", "cancelled"])
async def test_history_is_kept_as_long_as_its_state_says(new_engine: NewEngine, url: str, kept: str) -> None:
    retention = {state: "1h" if state == kept else 0 for state in ("succeeded", "failed", "cancelled")}
    engine = new_engine(url, retention=Retention(**retention))
    async with engine:
        await fill(engine)

        async def only_one_is_left() -> bool:
            return [task.state for task in await all_tasks(engine)] == [State(kept)]

        async with engine.worker():  # a node prunes when it starts
            await until(only_one_is_left)
        assert (await engine.counts())[State(kept)] == 1


async def test_whoever_asks_too_late_for_a_result_is_told_that_it_may_have_been_pruned(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url)

    @engine.task
    async def note() -> str:
        return "ran"

    async with engine, engine.worker():
        handle = await note.enqueue()
        await handle.result(PATIENCE_SECONDS)
        await engine._store.prune(Cutoffs(succeeded=0), 10)
        with pytest.raises(TaskDeleted, match=r"it was deleted, or it has ended and its history was kept no longer"):
            await handle.result(PATIENCE_SECONDS)


async def test_history_without_an_end_is_kept_for_ever(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, retention=Retention(succeeded=None, failed=None, cancelled=None))
    async with engine:
        await fill(engine)
        async with engine.worker():
            pass
        assert len(await all_tasks(engine)) == 3


async def test_a_worker_that_declares_another_retention_changes_it_for_all_and_warns(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    left = new_engine(url, name="left", retention=Retention(succeeded="7d"))
    right = new_engine(url, name="right", retention=Retention(succeeded="1h"))
    without = new_engine(url, name="without")
    for engine in (left, right, without):

        @engine.task(name="note")
        async def note() -> None: ...

    async with left, right, without:
        async with left.worker(), without.worker():
            pass
        assert "retention" not in caplog.text
        async with right.worker():
            assert (await without.retention()).succeeded == 3600
        assert "it was 7 d (succeeded)" in caplog.text
        assert "as left declared" in caplog.text
        assert "as right declares" in caplog.text
        await without.set_retention(Retention(succeeded=None))
        async with right.worker():
            assert (await left.retention()).succeeded is None
        by_operator, by_worker = await left.audit()
        assert (by_operator.verb, by_operator.outcome) == (
            "set_retention",
            "kept: for ever (succeeded), 30 d (failed), 7 d (cancelled), 400 d (statistics) now",
        )
        assert (by_worker.verb, by_worker.who) == ("set_retention", "worker right")


async def test_the_default_of_the_first_worker_is_a_declaration_so_that_another_one_warns(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = new_engine(url, name="first")
    hasty = new_engine(url, name="hasty", retention=Retention(succeeded="1s", failed="1s", cancelled="1s"))
    for engine in (first, hasty):

        @engine.task(name="note")
        async def note() -> None: ...

    async with first, hasty:
        async with first.worker():
            pass
        assert "retention" not in caplog.text
        async with hasty.worker():
            pass
        assert "it was 7 d (succeeded), 30 d (failed), 7 d (cancelled)" in caplog.text
        assert "as first declared, and is 1 s (succeeded)" in caplog.text
        caplog.clear()
        async with first.worker():  # a default replaces nothing
            assert (await first.retention()).succeeded == 1
        assert "retention" not in caplog.text
        (action,) = await first.audit()
        assert action.outcome is not None
        assert action.outcome.startswith("kept: 1 s (succeeded), 1 s (failed)")
        assert ", was 7 d (succeeded), 30 d (failed)" in action.outcome


async def test_the_log_says_how_many_tasks_were_pruned(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    engine = new_engine(url, retention=Retention(succeeded=0, failed=0, cancelled=0))
    async with engine:
        await fill(engine)
        caplog.clear()
        async with engine.worker():
            await until(lambda: "pruned 3 tasks" in caplog.text)


async def test_more_history_than_one_batch_goes_at_once(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, retention=Retention(succeeded=0, failed=0, cancelled=0))

    @engine.task
    async def note() -> None: ...

    async with engine:
        handles = await note.enqueue_many([()] * 2100)
        await engine._store.cancel([handle.id for handle in handles])

        async def is_empty() -> bool:
            return not any((await engine.counts()).values())

        async with engine.worker():
            await until(is_empty)


async def test_work_of_a_node_that_left_no_trace_is_given_back(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url)

    @engine.task
    async def note() -> str:
        return "ran after all"

    async with engine:
        handle = await note.enqueue()
        await engine._store.register(a_row("the-dead-one", "note"))
        await engine._store.claim(
            ClaimRequest(node_id="the-dead-one", kinds=(KindRequest(kind="note", count=1),), limit=1)
        )
        await engine._store.unregister("the-dead-one")
        with caplog.at_level(logging.WARNING, logger="synergon"):
            async with engine.worker():
                assert await handle.result(PATIENCE_SECONDS) == "ran after all"
        record = await handle.status()
    assert (record.attempts, record.crashes, record.owner_deaths) == (1, 0, 1)
    assert "took back 1 task of dead node the-dead-one: 1 ready" in caplog.text


async def test_work_of_a_live_node_is_left_alone(new_engine: NewEngine, url: str) -> None:
    first, second = new_engine(url), new_engine(url, sweep=0.02)
    gate = Gate()
    runs = 0

    def register(engine: Engine) -> None:
        @engine.task
        async def hold() -> None:
            nonlocal runs
            runs += 1
            await gate.hold()

    register(first)
    register(second)
    async with first.worker():
        (handle,) = await first.enqueue([first.call("hold")])
        await gate.until_reached()
        async with second.worker() as other:
            reaped = 0

            async def has_reaped_often() -> bool:
                nonlocal reaped
                await other.reaper.reap()
                reaped += 1
                return reaped > 20

            await until(has_reaped_often)
        gate.open()
        await handle.result(PATIENCE_SECONDS)
    assert runs == 1
