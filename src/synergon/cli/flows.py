"""`synergon flows`: lists flows, and shows one as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli.command_groups import ListGroup
from synergon.cli.database import AppOption, JsonOption, UrlOption, run_connected
from synergon.cli.output import (
    STATE_STYLES,
    duration,
    new_table,
    plural,
    print_line,
    print_table,
    relative,
    short,
    show_list,
    state_text,
    write_json,
)
from synergon.cli.watch import WatchCommand, WatchOption, run_watched
from synergon.client.operations import check_id
from synergon.engine import Engine
from synergon.flow_run import record_of, steps_of
from synergon.model.flows import FlowPage, FlowRecord, FlowStep
from synergon.model.lifecycle import State
from synergon.model.record import to_datetime

Id = Annotated[int, typer.Argument(metavar="ID", hidden=True)]
NameOption = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only flows with this name.")]
StateOption = Annotated[
    str | None,
    typer.Option("--state", metavar="STATE", help="Only flows that are succeeded, failed, cancelled or open."),
]
BeforeOption = Annotated[int | None, typer.Option("--before", metavar="ID", help="Only flows with a lower id.")]
LimitOption = Annotated[int, typer.Option("--limit", metavar="NUMBER", min=1, max=1000, help="How many to list.")]

ITEMS_SHOWN: Final = 10
"""How many items of a map the tree shows; the others are counted."""

commands: Final = typer.Typer(cls=ListGroup, help="List flows, and show one as a tree. Without a command: list.")


@commands.command("list", cls=WatchCommand)
def list_flows(
    name: NameOption = None,
    state: StateOption = None,
    before: BeforeOption = None,
    limit: LimitOption = 20,
    app: AppOption = None,
    url: UrlOption = None,
    watch: WatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """List flows, newest first.

    With --json one flow per line. The last line on stderr says how to get the next page.
    """

    async def read(engine: Engine) -> tuple[FlowPage, datetime]:
        is_open = True if state == "open" else None
        wanted = None if state == "open" else state
        page = await engine.flows.list(name=name, state=wanted, is_open=is_open, before=before, limit=limit)
        return page, to_datetime(await engine._store.now())

    def show(found: tuple[FlowPage, datetime]) -> None:
        page, now = found
        show_list(page.flows, lambda: _table(page.flows, now), as_json=as_json, nothing="there are no flows")
        if page.next is not None and not as_json:
            print_line(Text(f"more: --before {page.next}", style="dim"))

    run_watched(app, url, read, show, watch, as_json=as_json)


def _table(flows: Sequence[FlowRecord], now: datetime) -> Table:
    headings = ("id", "flow", "state", "tasks", "created", "took")
    table = new_table(*headings, numbers=("id",), elastic=("tasks",), dispensable=("took", "created", "tasks"))
    for flow in flows:
        table.add_row(
            str(flow.id),
            flow.name,
            _state(flow),
            short(_counts(flow)),
            relative(flow.created_at, now),
            duration(((flow.ended_at or now) - flow.created_at).total_seconds()),
        )
    return table


def _state(flow: FlowRecord) -> Text:
    return Text("open", style=STATE_STYLES[State.RUNNING]) if flow.state is None else state_text(flow.state)


def _counts(flow: FlowRecord) -> str:
    return ", ".join(f"{flow.counts[state]} {state}" for state in State if flow.counts.get(state))


@commands.command()
def show(flow_id: Id, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show a flow as a tree: each task below the last one that it depends on.

    With the state of each task, and how long it waited and ran.
    """

    async def read(engine: Engine) -> tuple[FlowRecord, list[FlowStep], datetime]:
        record = await record_of(engine, check_id(flow_id))
        return record, await steps_of(engine, flow_id), to_datetime(await engine._store.now())

    flow, steps, now = run_connected(app, url, read)
    if as_json:
        write_json(flow.as_dict() | {"steps": [step.as_dict() for step in steps]})
        return
    took = duration(((flow.ended_at or now) - flow.created_at).total_seconds())
    print_line(f"flow {flow.id} {flow.name}: {flow.state or 'open'}, {_counts(flow)}, {took}")
    has_titles = any(step.task.title is not None for step in steps)
    table = new_table(
        *("task", "state", "waited", "ran", "also after"),
        elastic=("also after", *(("task",) if has_titles else ())),
        dispensable=("also after", "waited", "ran"),
    )
    for branch, step in _branches(steps):
        _add_row(table, branch, step, now)
    print_table(table)


Branch = tuple[str, FlowStep | int]
"""A line of the tree: the lines of the drawing before it, and the task; or how many items were left out."""


def _branches(steps: Sequence[FlowStep]) -> Iterator[Branch]:
    """The lines of the tree. A task stands below the last step that it depends on; an item of a map below the map."""
    by_id = {step.task.id: step for step in steps}
    maps = {
        need.task_id: _map_of(step, need.position) for step in steps for need in step.needs if need.item is not None
    }
    children: dict[int | None, list[FlowStep]] = {}
    for step in steps:
        needs = [need.task_id for need in step.needs if need.task_id in by_id and need.item is None]
        parent = maps.get(step.task.id, needs[-1] if needs else None)
        children.setdefault(parent, []).append(step)
    to_draw: list[tuple[str, str, FlowStep | int]] = _drawn("", children.get(None, []), is_top=True)
    while to_draw:
        own, below, entry = to_draw.pop()
        yield own, entry
        if isinstance(entry, FlowStep):
            to_draw += _drawn(below, children.get(entry.task.id, []))


def _map_of(step: FlowStep, position: int) -> int:
    """The map that has created the items at this position of a step's dependencies."""
    return next(need.task_id for need in step.needs if need.position == position and need.item is None)


def _drawn(prefix: str, steps: Sequence[FlowStep], *, is_top: bool = False) -> list[tuple[str, str, FlowStep | int]]:
    """The children of a task, the last one first. Each has the lines of the drawing before it, and those before the
    tasks below it."""
    shown: list[FlowStep | int] = list(steps)
    if not is_top and len(steps) > ITEMS_SHOWN + 1:
        shown = [*steps[:ITEMS_SHOWN], len(steps) - ITEMS_SHOWN]
    drawn: list[tuple[str, str, FlowStep | int]] = []
    for index, entry in enumerate(shown):
        is_last = index == len(shown) - 1
        own, below = ("", "") if is_top else ("└ ", "  ") if is_last else ("├ ", "│ ")
        drawn.append((prefix + own, prefix + below, entry))
    return drawn[::-1]


def _add_row(table: Table, branch: str, step: FlowStep | int, now: datetime) -> None:
    if isinstance(step, int):
        table.add_row(short(f"{branch}{plural(step, 'more task')}"), "", "", "", "")
        return
    task = step.task
    others = [need for need in step.needs if need.item is None][:-1]
    started = task.started_at
    ended = task.finished_at or (now if task.state is State.RUNNING else None)
    table.add_row(
        short(f"{branch}{task.id} {task.title or task.kind}"),
        state_text(task.state),
        duration(((started or task.finished_at or now) - task.enqueued_at).total_seconds()),
        "" if started is None or ended is None else duration((ended - started).total_seconds()),
        short(", ".join(str(need.task_id) for need in others)),
    )
