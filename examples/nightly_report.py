"""A nightly report for each region, in its own time zone. Six nights pass in a moment, on the clock of a test.

In production nothing moves the clock: `synergon worker nightly_report:engine` on any number of machines.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from synergon import Context, Engine, Retry, injected, testing

engine = Engine("sqlite:///reports.db")
REGIONS = {"eu": "Europe/Berlin", "us": "America/New_York"}
delivered: list[tuple[str, str]] = []


@engine.task(retry=Retry(attempts=5, first=60))
async def report(region: str, ctx: Context = injected) -> str:
    """The day of the report is that of the occurrence, also if the task runs late or again."""
    nominal = ctx.scheduled_for or datetime.now(UTC)
    day = nominal.astimezone(ZoneInfo(REGIONS[region])).date() - timedelta(days=1)
    delivered.append((region, f"{day}"))
    return f"{region}: sales of {day}"


for region, zone in REGIONS.items():
    engine.schedule(f"nightly-{region}", report.call(region), cron="30 2 * * *", tz=zone)


async def main() -> None:
    start = datetime(2026, 3, 27, 12, tzinfo=UTC)  # on 29 March Berlin has no 02:30
    async with testing.memory(engine, now=start) as tester:
        for _ in range(4 * 24):
            tester.clock.advance("1h")
            for record in await tester.drain():
                print(f"{tester.clock.now:%a %d %B %H:%M} UTC  {record.result}")

        await engine.schedules.pause("nightly-us")
        tester.clock.advance("2d")  # all workers are off, and one report would be enough
        await tester.drain()
        for schedule in await engine.schedules.list():
            print(
                f"{schedule.name}: {schedule.times_fired} fired, {schedule.times_missed} missed, "
                f"{schedule.times_skipped} skipped ({schedule.reason})"
            )

    nights = ["2026-03-27", "2026-03-28", "2026-03-29", "2026-03-30"]
    assert [day for region, day in delivered if region == "us"] == nights
    assert [day for region, day in delivered if region == "eu"] == [*nights, "2026-04-01"]


if __name__ == "__main__":
    asyncio.run(main())
