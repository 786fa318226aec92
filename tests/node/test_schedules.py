"""Schedules of an engine: declared in code, made at run time, and fired by any worker."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.support import PATIENCE_SECONDS, Gate, all_tasks, ended, until

from synergon import (
    ConfigurationError,
    Context,
    Engine,
    KindError,
    OptionError,
    PayloadError,
    Retry,
    ScheduleExists,
    ScheduleNotFound,
)

SECOND = timedelta(seconds=1)


class Notes:
    """A kind that notes for which moments it ran."""

    def __init__(self, engine: Engine, kind: str = "note") -> None:
        self.moments: list[datetime | None] = []
        self._came = asyncio.Event()

        @engine.task(name=kind)
        async def note(ctx: Context) -> None:
            self.moments.append(ctx.scheduled_for)
            self._came.set()

        self.task = note

    async def until(self, number: int) -> list[datetime]:
        """Return when it has run that often."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.moments) < number:
                self._came.clear()
                await self._came.wait()
        assert all(moment is not None for moment in self.moments)
        return [moment for moment in self.moments if moment is not None]


# ---------------------------------------------------------------- declared in code


async def test_an_interval_fires_on_its_grid_and_the_function_sees_the_nominal_moment(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url)
    notes = Notes(engine)
    engine.every("200ms", overlap="queue", missed="all")(notes.task)
    async with engine.worker():
        moments = await notes.until(4)
        record = await engine.schedules.get("note")
    assert {after - before for before, after in itertools.pairwise(moments)} == {SECOND / 5}
    assert moments[0] - record.created_at == SECOND / 5
    assert (record.is_declared, record.every, record.state) == (True, SECOND / 5, "active")


async def test_a_task_that_no_schedule_created_has_no_nominal_moment(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    notes = Notes(engine)
    async with engine.worker():
        await (await notes.task.enqueue()).result(PATIENCE_SECONDS)
    assert notes.moments == [None]


async def test_a_child_process_sees_the_nominal_moment(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url, child_processes=1)
    task = process_bodies.on(engine, process_bodies.scheduled_for)
    async with engine.worker():
        await engine.schedules.create("report", task.call(), every="1h")
        handle = await engine.schedules.run_now("report")
        assert handle is not None
        told = datetime.fromisoformat(await handle.result(PATIENCE_SECONDS))
    assert abs(datetime.now(UTC) - told) < timedelta(minutes=5)


async def test_a_schedule_with_arguments_and_options_creates_such_tasks(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)

    @engine.task(retry=Retry(attempts=3), title="Report for {region}")
    async def report(region: str, pages: int = 1) -> str:
        return region * pages

    call = report.with_options(queue="slow", priority=7, tags=["nightly"]).call("eu", pages=2)
    engine.schedule("nightly", call, cron="0 3 * * *", tz="Europe/Berlin")
    async with engine.worker():
        handle = await engine.schedules.run_now("nightly")
        assert handle is not None
        assert await handle.result(PATIENCE_SECONDS) == "eueu"
        task = await handle.status()
        record = await engine.schedules.get("nightly")
    assert (task.queue, task.priority, task.tags, task.title) == ("slow", 7, ("nightly",), "Report for eu")
    assert task.max_attempts == 3
    assert (record.arguments, record.cron, record.tz) == ({"region": "eu", "pages": 2}, "0 3 * * *", "Europe/Berlin")
    assert record.next_at is not None
    assert record.next_at.hour in (1, 2)


async def test_a_worker_that_starts_reconciles_what_its_code_declares(new_engine: NewEngine, url: str) -> None:
    holder = new_engine(url)  # a memory store lives as long as somebody uses it
    async with holder:
        for interval, state in (("1h", "active"), ("2h", "paused")):
            engine = new_engine(url)
            engine.every(interval)(Notes(engine).task)
            async with engine.worker():
                record = await engine.schedules.get("note")
                assert (record.every, record.state) == (timedelta(hours=int(interval[0])), state)
                await engine.schedules.pause("note")
            assert (await holder.schedules.get("note")).state == "paused"
        await holder.schedules.resume("note")
        assert (await holder.schedules.get("note")).state == "undeclared"
        assert "no live worker has that code" in str(await holder.schedules.explain("note"))
        assert await holder.schedules.upcoming() == []


async def test_what_no_live_worker_declares_does_not_fire_and_what_was_made_at_run_time_does(
    new_engine: NewEngine, url: str
) -> None:
    holder, coded, other = new_engine(url), new_engine(url), new_engine(url)
    notes, others = Notes(coded), Notes(other, "other")
    coded.every("100ms", name="coded")(notes.task)
    async with holder:
        async with coded.worker():
            await notes.until(1)
        created = (await holder.schedules.get("coded")).times_fired
        await holder.schedules.create("made", holder.call("other"), every="100ms")
        async with other.worker():
            await others.until(3)
        assert (await holder.schedules.get("coded")).times_fired == created


async def test_old_and_new_code_side_by_side_create_one_task_for_each_occurrence(
    new_engine: NewEngine, sqlite_url: str
) -> None:
    old, new = new_engine(sqlite_url), new_engine(sqlite_url)
    notes = [Notes(engine) for engine in (old, new)]
    old.every("300ms", overlap="queue", missed="all")(notes[0].task)
    new.every("100ms", overlap="queue", missed="all")(notes[1].task)
    async with old.worker(), new.worker():
        await until(lambda: len(notes[0].moments) + len(notes[1].moments) >= 12)
    moments = [moment for note in notes for moment in note.moments]
    assert len(moments) == len(set(moments))


async def test_code_that_uses_the_name_of_a_schedule_made_at_run_time_is_told(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url)
    notes = Notes(engine)
    engine.every("100ms", name="mine")(notes.task)
    async with engine:
        before = await engine.schedules.create("mine", notes.task.call(), every="1h")
        async with engine.worker():
            assert "one of that name was made at run time" in caplog.text
            assert await engine.schedules.get("mine") == before


# ---------------------------------------------------------------- made at run time


async def test_one_that_is_made_at_run_time_fires_without_a_sweep(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    notes = Notes(engine)
    async with engine.worker():
        await engine.schedules.create("customer-42", notes.task.call(), every="100ms", jitter="50ms")
        await notes.until(2)
        await engine.schedules.update("customer-42", every="1h", jitter=0)
        (occurrence,) = await engine.schedules.upcoming(1)
        assert timedelta(minutes=59) < occurrence.at - datetime.now(UTC) < timedelta(minutes=61)
        await engine.schedules.delete("customer-42")
        assert await engine.schedules.list() == []
        with pytest.raises(ScheduleNotFound, match="customer-42"):
            await engine.schedules.get("customer-42")


async def test_one_that_another_process_makes_is_announced_to_the_workers(
    new_engine: NewEngine, sqlite_url: str
) -> None:
    worker, producer = new_engine(sqlite_url), new_engine(sqlite_url)
    notes = Notes(worker)
    async with worker.worker(), producer:
        await producer.schedules.create("announced", producer.call("note"), every="100ms")
        await notes.until(1)


async def test_a_name_is_taken_once(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    notes = Notes(engine)
    async with engine:
        made = await asyncio.gather(
            *(engine.schedules.create("one", notes.task.call(), every="1h") for _ in range(5)), return_exceptions=True
        )
        errors = [found for found in made if isinstance(found, ScheduleExists)]
        assert len(errors) == 4
        assert errors[0].name == "one"
        assert "update it" in str(errors[0])


async def test_one_more_task_is_rejected_while_the_one_before_runs(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    gate = Gate()

    @engine.task
    async def slow() -> None:
        await gate.hold()

    async with engine.worker():
        await engine.schedules.create("slow", slow.call(), every="1h")
        handle = await engine.schedules.run_now("slow")
        assert handle is not None
        await gate.until_reached()
        assert await engine.schedules.run_now("slow") is None
        gate.open()
        await ended(handle)
        again = await engine.schedules.run_now("slow")
        assert again is not None
        await ended(again)


async def test_upcoming_merges_all_active_schedules(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    notes = Notes(engine)
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    async with engine:
        for name, interval in (("a", "10m"), ("b", "15m"), ("c", "1m")):
            await engine.schedules.create(
                name, notes.task.call(), every=interval, starts_at=start, ends_at=start + timedelta(minutes=25)
            )
        await engine.schedules.pause("c")
        minute = timedelta(minutes=1)
        assert [(found.name, (found.at - start) // minute) for found in await engine.schedules.upcoming(9)] == [
            *(("a", 0), ("b", 0), ("a", 10), ("b", 15), ("a", 20))
        ]
        assert len(await engine.schedules.upcoming(1, name="b")) == 1


async def test_a_kind_that_no_live_worker_knows_fires_and_warns(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url)
    Notes(engine)
    async with engine.worker():
        await engine.schedules.create("lost", engine.call("nobody", number=1), every="100ms", overlap="queue")
        await until(lambda: "which no live node knows" in caplog.text)
        assert "no live node knows the kind 'nobody'" in str(await engine.schedules.explain("lost"))
        assert any(task.kind == "nobody" for task in await all_tasks(engine))
        fired = (await engine.schedules.get("lost")).times_fired
        await until(lambda: _has_fired(engine, "lost", fired + 2))
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


async def _has_fired(engine: Engine, name: str, times: int) -> bool:
    return (await engine.schedules.get(name)).times_fired >= times


async def test_an_explanation_says_why_occurrences_were_skipped(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    gate = Gate()

    @engine.task
    async def slow() -> None:
        await gate.hold()

    async with engine.worker():
        await engine.schedules.create("slow", slow.call(), every="100ms")
        await until(lambda: _has_skipped(engine, 3))
        record = await engine.schedules.get("slow")
        text = str(await engine.schedules.explain("slow"))
        gate.open()
    assert f"task {record.last_task_id} still runs" in text
    assert "skipped" in text
    assert "next at" in text


async def _has_skipped(engine: Engine, times: int) -> bool:
    return (await engine.schedules.get("slow")).times_skipped >= times


def test_code_without_an_event_loop_has_twins(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)

    @engine.task
    def note() -> int:
        return 1

    with engine:
        assert engine.schedules.create_sync("one", note.call(), every="1h").name == "one"
        assert engine.schedules.update_sync("one", every="2h").every == timedelta(hours=2)
        assert engine.schedules.pause_sync("one")
        assert not engine.schedules.pause_sync("one")
        assert engine.schedules.resume_sync("one")
        assert engine.schedules.run_now_sync("one") is not None
        assert [record.name for record in engine.schedules.list_sync()] == ["one"]
        assert engine.schedules.get_sync("one").last_task_id is not None
        assert len(engine.schedules.upcoming_sync(3)) == 3
        assert "next at" in str(engine.schedules.explain_sync("one"))
        engine.schedules.delete_sync("one")
        assert engine.schedules.list_sync() == []
        with pytest.raises(ConfigurationError, match="create_sync"):
            _ = engine.schedules.create("one", note.call(), every="1h")


# ---------------------------------------------------------------- mistakes, where they are made


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda engine: engine.cron("0 0 30 2 *"), "never occurs"),
        (lambda engine: engine.cron("0 9 * * *", tz="Mars/Base"), "no time zone 'Mars/Base'"),
        (lambda engine: engine.cron("0 9 * * *", tz=1), "tz must be the name"),
        (lambda engine: engine.every(0), "longer than zero"),
        (lambda engine: engine.every("99ms")(engine.kinds["note"]), "at least 100 ms"),
        (lambda engine: engine.every("1h", missed="never"), "missed must be one of"),
        (lambda engine: engine.every("1h", overlap="kill"), "overlap must be one of"),
        (lambda engine: engine.every("1h", missed="all")(engine.kinds["note"]), "overlap"),
        (lambda engine: engine.every("1h", jitter="2h")(engine.kinds["note"]), "jitter must be shorter"),
        (lambda engine: engine.every("1h", tzz="UTC"), "did you mean 'tz'"),
        (lambda engine: engine.every("1h", starts_at=datetime(2030, 1, 1)), "time zone"),  # noqa: DTZ001
        (lambda engine: engine.every("1h")(print), "stands above @engine.task"),
        (lambda engine: engine.every("1h")(engine.kinds["add"]), r"engine.schedule\(name, add.call"),
        (lambda engine: engine.schedule("x", engine.kinds["note"].call()), 'give cron="0 3'),
        (lambda engine: engine.schedule("x", engine.kinds["note"].call(), cron="@daily", every=1), "not both"),
        (lambda engine: engine.schedule("x", engine.kinds["note"].call(), tz="Asia/Tokyo", every=1), "tz is for cron"),
        (lambda engine: engine.schedule("", engine.kinds["note"].call(), every=1), "a schedule's name"),
        (lambda engine: engine.schedule("x", engine.kinds["note"], every=1), "takes a call"),
        (lambda engine: engine.schedule("x", engine.kinds["add"].call("a"), every=1), "add"),
        (lambda engine: engine.schedule("x", _delayed(engine), every=1), "option 'delay'"),
        (lambda engine: engine.schedule("x", _replacing(engine), every=1), "on_conflict='replace'"),
        (lambda engine: engine.schedule("x", _after(engine), every=1), "option 'after', but .* enqueues this one"),
        (lambda engine: engine.schedule("x", _in_any_case(engine), every=1), "option 'if_dependency_fails'"),
    ],
)
def test_a_mistake_is_an_error_in_its_line_and_nothing_is_declared(
    mistake: Callable[[Engine], Any], words: str
) -> None:
    engine = Engine("memory://")

    @engine.task
    async def note() -> None: ...

    @engine.task
    async def add(left: int, right: int) -> None: ...

    with pytest.raises((OptionError, ConfigurationError, PayloadError), match=words):
        mistake(engine)
    assert engine._declared_schedules == {}


def _delayed(engine: Engine) -> Any:
    return engine.kinds["note"].with_options(delay=1).call()


def _after(engine: Engine) -> Any:
    return engine.kinds["note"].with_options(after=[7]).call()


def _in_any_case(engine: Engine) -> Any:
    return engine.kinds["note"].with_options(if_dependency_fails="run").call()


def _replacing(engine: Engine) -> Any:
    return engine.kinds["note"].with_options(key="k", on_conflict="replace").call()


def test_two_declarations_of_one_name_are_an_error() -> None:
    engine = Engine("memory://")

    @engine.cron("0 9 * * *")
    @engine.task
    async def note() -> None: ...

    with pytest.raises(OptionError, match="two schedules are declared under the name 'note'"):
        engine.every("1h")(note)
    engine.every("1h", name="hourly")(note)
    assert list(engine._declared_schedules) == ["note", "hourly"]


async def test_a_declaration_after_the_start_of_the_worker_is_an_error(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    notes = Notes(engine)
    async with engine.worker():
        with pytest.raises(KindError, match=r"engine\.schedules\.create"):
            engine.every("1h")(notes.task)


async def test_a_mistake_at_run_time_stores_nothing(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    notes = Notes(engine)
    call = notes.task.call()
    async with engine:
        for options in (
            {"cron": "0 0 30 2 *"},
            {"every": 0},
            {"every": "1h", "ends_at": datetime(2020, 1, 1, tzinfo=UTC)},
        ):
            with pytest.raises(OptionError):
                await engine.schedules.create("bad", call, **options)
        with pytest.raises(OptionError, match="option 'after'"):
            await engine.schedules.create("bad", _after(engine), every="1h")
        assert await engine.schedules.list() == []
        await engine.schedules.create("good", call, every="1h")
        before = await engine.schedules.get("good")
        for options in ({}, {"every": "1ms"}, {"missed": "all"}, {"tz": "Asia/Tokyo"}, {"jitter": "1h"}):
            with pytest.raises(OptionError):
                await engine.schedules.update("good", **options)  # type: ignore[arg-type]  # wrong on purpose
        assert await engine.schedules.get("good") == before
        with pytest.raises(ScheduleNotFound, match="did you mean 'good'"):
            await engine.schedules.pause("god")
        with pytest.raises(ScheduleNotFound):
            await engine.schedules.update("bad", every="1h")
        with pytest.raises(ScheduleNotFound):
            await engine.schedules.run_now("bad")


async def test_a_changed_zone_applies_to_the_expression(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    notes = Notes(engine)
    async with engine:
        await engine.schedules.create("daily", notes.task.call(), cron="0 12 * * *")
        changed = await engine.schedules.update("daily", tz="Asia/Tokyo")
        assert changed.next_at is not None
        assert changed.next_at.hour == 3
        changed = await engine.schedules.update("daily", every="1h")
        assert (changed.cron, changed.tz) == (None, "UTC")
