"""Schedules in a test of a user: the clock that the test moves fires them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from synergon import Context, Engine, testing

START = datetime(2026, 3, 28, 12, tzinfo=UTC)

engine = Engine("sqlite:////nonexistent/folder/app.db")  # an attempt to open it fails
ran: list[datetime | None] = []


@engine.cron("30 2 * * *", tz="Europe/Berlin")
@engine.task
async def report(ctx: Context) -> None:
    ran.append(ctx.scheduled_for)


async def test_the_clock_of_a_test_fires_what_the_code_declares() -> None:
    ran.clear()
    async with testing.memory(engine, now=START) as tester:
        assert await tester.drain() == []
        tester.clock.advance("12h")
        assert await tester.drain() == []
        tester.clock.advance("1h")  # on this day 02:30 does not exist, and 03:00 is at 01:00 UTC
        (task,) = await tester.drain()
        assert task.kind == "report"
        assert ran == [START + timedelta(hours=13)]
        tester.clock.advance("1d")
        await tester.drain()
        assert len(ran) == 2


async def test_a_schedule_begins_with_the_block_and_not_with_the_first_drain() -> None:
    ran.clear()
    async with testing.memory(engine, now=START) as tester:
        tester.clock.advance("13h")
        assert len(await tester.drain()) == 1


def test_tests_without_an_event_loop_fire_them_too() -> None:
    ran.clear()
    with testing.memory(engine, now=START) as tester:
        tester.clock.advance("13h")
        assert len(tester.drain_sync()) == 1
        assert engine.schedules.get_sync("report").times_fired == 1


async def test_missed_and_overlap_follow_the_clock_too() -> None:
    ran.clear()
    async with testing.memory(engine, now=START) as tester:
        await engine.schedules.create("often", report.call(), every="1h", missed="all", overlap="queue")
        tester.clock.advance("10h")
        assert len(await tester.drain()) == 10
        await engine.schedules.update("often", missed="one", overlap="skip")
        tester.clock.advance("2h")
        assert len(await tester.drain()) == 1
        record = await engine.schedules.get("often")
        assert (record.times_fired, record.times_missed) == (11, 1)


async def test_one_more_task_runs_at_once_in_a_test_that_runs_all_inline() -> None:
    ran.clear()
    async with testing.inline(engine, now=START):
        handle = await engine.schedules.run_now("report")
        assert handle is not None
        assert ran == [START]
