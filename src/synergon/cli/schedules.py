"""`synergon schedules`: lists, explains, pauses, resumes, runs, changes and deletes schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from synergon.cli import completion, exit_codes
from synergon.cli.command_groups import ListGroup
from synergon.cli.database import AppOption, JsonOption, UrlOption, run_connected
from synergon.cli.output import (
    absolute,
    duration,
    new_facts,
    new_table,
    print_error,
    print_line,
    print_table,
    relative,
    short,
    show_list,
    write_json,
    write_json_lines,
)
from synergon.cli.watch import WatchCommand, WatchOption, run_watched
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.explain.explanation import ScheduleExplanation
from synergon.model.record import to_datetime
from synergon.model.schedules import Missed, Occurrence, Overlap, ScheduleRecord, ScheduleRun
from synergon.options.timetable import zone

_ARGUMENT: Final = typer.Argument(metavar="NAME", hidden=True, autocompletion=completion.schedules)
Name = Annotated[str, _ARGUMENT]
Names = Annotated[list[str], _ARGUMENT]
SomeName = Annotated[str | None, _ARGUMENT]
CronOption = Annotated[str | None, typer.Option(metavar="CRON", help="Five fields, like '0 3 * * *'.")]
EveryOption = Annotated[str | None, typer.Option(metavar="DURATION", help="The interval, like 2h.")]
ZoneOption = Annotated[str | None, typer.Option(metavar="ZONE", help="The time zone of --cron.")]
MissedOption = Annotated[Missed | None, typer.Option(help="What happens to occurrences that no worker fired in time.")]
OverlapOption = Annotated[Overlap | None, typer.Option(help="What happens while the task before has not ended.")]
JitterOption = Annotated[str | None, typer.Option(metavar="DURATION", help="How much later an occurrence may be.")]
StartOption = Annotated[str | None, typer.Option(metavar="MOMENT", help="No occurrence is earlier.")]
EndOption = Annotated[str | None, typer.Option(metavar="MOMENT", help="No occurrence is later.")]
NumberOption = Annotated[int, typer.Option(metavar="NUMBER", min=1, max=10_000, help="How many occurrences to list.")]

STYLES: Final = {"active": "", "paused": "yellow", "ended": "dim", "undeclared": "red"}

commands: Final = typer.Typer(
    cls=ListGroup, help="List, pause, resume, run, change and delete schedules. Without a command: list."
)


@commands.command("list", cls=WatchCommand)
def list_schedules(
    app: AppOption = None, url: UrlOption = None, watch: WatchOption = None, as_json: JsonOption = False
) -> None:
    """List the schedules.

    Shows when each fires next, and how many of its occurrences were fired, missed and skipped. `undeclared` means that
    no live worker has the code that declares it, so it does not fire. With --json one schedule per line.
    """

    async def read(engine: Engine) -> tuple[list[ScheduleRecord], datetime]:
        return await engine.schedules.list(), to_datetime(await engine._store.now())

    def show(found: tuple[list[ScheduleRecord], datetime]) -> None:
        show_list(found[0], lambda: _table(*found), as_json=as_json, nothing="there are no schedules")

    run_watched(app, url, read, show, watch, as_json=as_json)


def _table(found: list[ScheduleRecord], now: datetime) -> Table:
    numbers = ("fired", "missed", "skipped")
    headings = ("schedule", "when", "next", *numbers, "")
    table = new_table(*headings, numbers=numbers, elastic=("when",), dispensable=(*numbers, "when"))
    for schedule in found:
        is_awaited = schedule.due_at is not None and schedule.state == "active"
        counts = (schedule.times_fired, schedule.times_missed, schedule.times_skipped)
        table.add_row(
            schedule.name,
            short(_timing(schedule)),
            relative(schedule.due_at, now) if is_awaited and schedule.due_at is not None else "",
            *map(str, counts),
            "" if schedule.state == "active" else Text(schedule.state, style=STYLES[schedule.state]),
        )
    return table


def _timing(schedule: ScheduleRecord) -> str:
    if schedule.every is not None:
        return f"every {duration(schedule.every.total_seconds())}"
    return f"{schedule.cron} {'' if schedule.tz == 'UTC' else schedule.tz}".strip()


@commands.command()
def show(name: Name, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show one schedule, and explain it: when it fires next, or why it does not."""

    async def read(engine: Engine) -> tuple[ScheduleRecord, ScheduleExplanation, datetime]:
        record = await engine.schedules.get(name)
        return record, await engine.schedules.explain(name), to_datetime(await engine._store.now())

    schedule, explanation, now = run_connected(app, url, read)
    if as_json:
        write_json(msgspec.to_builtins(schedule) | {"explanation": explanation.sentence})
        return
    print_line(explanation.sentence)
    print_line()
    facts = new_facts()
    for heading, value in _facts(schedule, now):
        facts.add_row(heading, value)
    print_table(facts)


def _facts(schedule: ScheduleRecord, now: datetime) -> Iterator[tuple[str, str]]:
    yield "schedule", schedule.name
    yield "state", schedule.state
    yield "made", "declared in code" if schedule.is_declared else "at run time"
    yield "when", _timing(schedule)
    if schedule.jitter:
        yield "jitter", f"up to {duration(schedule.jitter.total_seconds())}"
    yield "missed", schedule.missed
    yield "overlap", schedule.overlap
    yield "kind", schedule.kind
    yield "queue", schedule.queue
    yield "arguments", msgspec.json.encode(schedule.arguments).decode()
    moments = {
        "starts": schedule.starts_at,
        "ends": schedule.ends_at,
        "created": schedule.created_at,
        "paused": schedule.paused_at,
        "next": schedule.next_at,
        "last": schedule.last_at,
    }
    yield from ((heading, absolute(moment, now)) for heading, moment in moments.items() if moment is not None)
    if schedule.last_task_id is not None:
        yield "last task", str(schedule.last_task_id)
    yield "fired", str(schedule.times_fired)
    yield "not fired", f"{schedule.times_missed} missed, {schedule.times_skipped} skipped"
    if schedule.reason is not None and schedule.reason_at is not None:
        yield "last reason", f"{schedule.reason} ({relative(schedule.reason_at, now)})"


@commands.command("next")
def next_occurrences(
    name: SomeName = None,
    number: NumberOption = 10,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the next occurrences of all active schedules, or of one.

    Times are in the zone of each schedule, without its jitter.
    """

    async def read(engine: Engine) -> tuple[list[Occurrence], dict[str, str], datetime]:
        zones = {schedule.name: schedule.tz for schedule in await engine.schedules.list()}
        return await engine.schedules.upcoming(number, name=name), zones, to_datetime(await engine._store.now())

    found, zones, now = run_connected(app, url, read)

    def table() -> Table:
        table = new_table("at", "zone", "", "schedule", elastic=("zone",), dispensable=("",))
        for occurrence in found:
            tz = zones.get(occurrence.name, "UTC")
            at = occurrence.at.astimezone(zone(tz))
            table.add_row(f"{at:%Y-%m-%d %H:%M:%S}", short(tz), relative(occurrence.at, now), occurrence.name)
        return table

    show_list(found, table, as_json=as_json, nothing="no schedule fires")


@commands.command()
def pause(names: Names, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Pause schedules: their occurrences are skipped until they are resumed, even after a restart."""
    _change(names, app, url, lambda engine: engine.schedules.pause, "is paused", "was already paused", as_json=as_json)


@commands.command()
def resume(names: Names, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Resume schedules, from their next occurrence on."""
    _change(names, app, url, lambda engine: engine.schedules.resume, "is resumed", "was not paused", as_json=as_json)


@commands.command()
def update(
    name: Name,
    cron: CronOption = None,
    every: EveryOption = None,
    tz: ZoneOption = None,
    missed: MissedOption = None,
    overlap: OverlapOption = None,
    jitter: JitterOption = None,
    starts_at: StartOption = None,
    ends_at: EndOption = None,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change when and how a schedule fires that was made at run time.

    What is not given remains. A schedule that is declared in code is changed there.
    """
    moments = {"starts_at": starts_at, "ends_at": ends_at}
    given: dict[str, Any] = {
        "cron": cron,
        "every": every,
        "tz": tz,
        "missed": missed,
        "overlap": overlap,
        "jitter": jitter,
        **{option: None if value is None else _moment(value, option) for option, value in moments.items()},
    }

    async def write(engine: Engine) -> tuple[ScheduleRecord, datetime]:
        options: Any = {option: value for option, value in given.items() if value is not None}
        return await engine.schedules._update_as_operator(name, **options), to_datetime(await engine._store.now())

    changed, now = run_connected(app, url, write)
    if as_json:
        write_json(changed)
    elif changed.due_at is not None:
        print_line(
            f"schedule {name} is changed: {_timing(changed)}; its next occurrence is {relative(changed.due_at, now)}"
        )


def _moment(text: str, option: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        flag = f"--{option.replace('_', '-')}"
        raise OptionError(f"{flag} takes a time like 2026-12-24T18:00+01:00, got {text!r}") from None


@commands.command()
def delete(names: Names, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Delete schedules; their tasks remain.

    One that is declared in code returns when a worker with that code starts.
    """

    def deletion(engine: Engine) -> Callable[[str], Awaitable[bool]]:
        async def delete_one(name: str) -> bool:
            await engine.schedules.delete(name)
            return True

        return delete_one

    _change(names, app, url, deletion, "is deleted", "", as_json=as_json)


def _change(
    names: list[str],
    app: str | None,
    url: str | None,
    change_of: Callable[[Engine], Callable[[str], Awaitable[bool]]],
    changed: str,
    unchanged: str,
    *,
    as_json: bool,
) -> None:
    async def write(engine: Engine) -> list[bool]:
        for name in names:  # none is changed if one does not exist
            await engine.schedules.get(name)
        change = change_of(engine)
        return [await change(name) for name in names]

    found = list(zip(names, run_connected(app, url, write), strict=True))
    if as_json:
        write_json_lines({"name": name, "changed": is_changed} for name, is_changed in found)
        return
    for name, is_changed in found:
        print_line(f"schedule {name} {changed if is_changed else unchanged}")


@commands.command()
def run(name: Name, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Create one more task of a schedule now.

    It obeys the schedule's `overlap`: with "skip" there is none while the task before has not ended.
    """

    async def write(engine: Engine) -> ScheduleRun:
        return await engine.schedules.run_once(name)

    found = run_connected(app, url, write)
    task_id = None if found.task is None else found.task.id
    if as_json:
        write_json({"name": name, "task_id": task_id, "reason": found.reason})
    elif task_id is not None:
        print_line(f"schedule {name} has created task {task_id}")
    else:
        print_error(f"schedule {name} has created no task: {found.reason}")
    if task_id is None:
        raise typer.Exit(exit_codes.FAILED)
