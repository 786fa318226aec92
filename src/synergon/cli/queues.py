"""`synergon queues`: lists, pauses and resumes queues."""

from __future__ import annotations

import asyncio
import difflib
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli import exit_codes
from synergon.cli.database import AppOption, JsonOption, UrlOption, connected
from synergon.cli.output import new_table, print_error, print_line, relative, short, show_list, write_json_lines
from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.model.task_records import QueueRecord
from synergon.options.options import check_name

SHOWN: Final = tuple(state for state in State if state is not State.WAITING)

Names = Annotated[list[str], typer.Argument(metavar="QUEUE", hidden=True)]

commands = typer.Typer(no_args_is_help=True, help="List, pause and resume queues.")


@commands.command("list")
def list_queues(app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List the queues.

    Shows the number of tasks in each state; with --json one queue per line.
    """

    async def read() -> tuple[list[QueueRecord], datetime]:
        async with connected(app, url) as engine:
            return await engine.queues(), to_datetime(await engine.store.now())

    queues, now = asyncio.run(read())
    show_list(queues, lambda: _table(queues, now), as_json=as_json, nothing="there are no queues yet")


def _table(queues: list[QueueRecord], now: datetime) -> Table:
    has_waiting = any(queue.counts.get(State.WAITING) for queue in queues)
    states = tuple(State) if has_waiting else SHOWN
    table = new_table("queue", *states, "", numbers=states, elastic=("queue",))
    for queue in queues:
        paused = Text(f"paused {relative(queue.paused_at, now)}", style="yellow") if queue.paused_at else ""
        table.add_row(short(queue.name), *(str(queue.counts.get(state, 0)) for state in states), paused)
    return table


@commands.command()
def pause(names: Names, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Pause queues.

    No node claims their tasks until they are resumed, even after a restart. Running tasks go on.
    """
    checked = [check_name(name, "queue") for name in names]

    async def write() -> tuple[set[str], list[bool]]:
        async with connected(app, url) as engine:
            known = {queue.name for queue in await engine.queues()}
            return known, [await engine.pause(name) for name in checked]

    known, changes = asyncio.run(write())
    if as_json:
        write_json_lines({"name": name, "changed": changed} for name, changed in zip(checked, changes, strict=True))
        return
    for name, changed in zip(checked, changes, strict=True):
        if not changed:
            print_line(f"queue {name} was already paused")
        else:
            print_line(f"queue {name} is paused" + ("" if name in known else "; it has no tasks yet"))


@commands.command()
def resume(names: Names, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Resume paused queues."""

    async def write() -> tuple[list[str], list[bool]]:
        async with connected(app, url) as engine:
            return [queue.name for queue in await engine.queues()], [await engine.resume(name) for name in names]

    known, changes = asyncio.run(write())
    if as_json:
        write_json_lines({"name": name, "changed": changed} for name, changed in zip(names, changes, strict=True))
    else:
        _print_resumed(names, changes, known)
    if not set(names) <= set(known):
        raise typer.Exit(exit_codes.FAILED)


def _print_resumed(names: list[str], changes: list[bool], known: list[str]) -> None:
    for name, changed in zip(names, changes, strict=True):
        if changed:
            print_line(f"queue {name} is resumed")
        elif name in known:
            print_line(f"queue {name} was not paused")
        else:
            close = difflib.get_close_matches(name, known, n=1)
            print_error(f"there is no queue {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
