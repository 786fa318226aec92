"""`synergon queues`: lists, pauses and resumes queues."""

from __future__ import annotations

import difflib
from datetime import datetime
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from synergon.cli import completion, exit_codes
from synergon.cli.command_groups import ListGroup
from synergon.cli.database import AppOption, JsonOption, UrlOption, run_connected
from synergon.cli.output import new_table, print_error, print_line, relative, short, show_list, write_json_lines
from synergon.cli.watch import WatchCommand, WatchOption, run_watched
from synergon.engine import Engine
from synergon.model.cluster_status import QueueStatus
from synergon.model.lifecycle import State
from synergon.model.task_records import QueueRecord
from synergon.options.durations import rough
from synergon.options.options import check_name

SHOWN: Final = tuple(state for state in State if state is not State.WAITING)

Names = Annotated[list[str], typer.Argument(metavar="QUEUE", hidden=True, autocompletion=completion.queues)]

commands: Final = typer.Typer(cls=ListGroup, help="List, pause and resume queues. Without a command: list.")


@commands.command("list", cls=WatchCommand)
def list_queues(
    app: AppOption = None, url: UrlOption = None, watch: WatchOption = None, as_json: JsonOption = False
) -> None:
    """List the queues.

    Shows the number of tasks in each state, and how long the oldest ready task has been due, with its kind; with --json
    one queue per line.
    """

    async def read(engine: Engine) -> tuple[list[QueueRecord], dict[str, QueueStatus], datetime]:
        status = await engine._store.status()
        return await engine.queues(), {queue.name: queue for queue in status.queues}, status.now

    def show(found: tuple[list[QueueRecord], dict[str, QueueStatus], datetime]) -> None:
        queues, ages, now = found
        if as_json:
            write_json_lines(_with_age(queue, ages) for queue in queues)
            return
        show_list(queues, lambda: _table(queues, ages, now), as_json=False, nothing="there are no queues yet")
        counted_at = next((queue.counted_at for queue in queues if queue.counted_at is not None), None)
        if counted_at is not None:
            print_line(f"tasks that have not ended were counted {relative(counted_at, now)}")

    run_watched(app, url, read, show, watch, as_json=as_json)


def _with_age(queue: QueueRecord, ages: dict[str, QueueStatus]) -> dict[str, Any]:
    found = ages.get(queue.name)
    return {
        **queue.as_dict(),
        "oldest_ready_seconds": None if found is None else found.oldest_ready_seconds,
        "kinds": [] if found is None else [age.as_dict() for age in found.kinds],
    }


def _age(queue: QueueRecord, ages: dict[str, QueueStatus], now: datetime) -> Text:
    if queue.paused_at is not None:
        return Text(f"paused {relative(queue.paused_at, now)}", style="yellow", no_wrap=True, overflow="ellipsis")
    return short(age_of(ages.get(queue.name)))


def age_of(queue: QueueStatus | None) -> str:
    """The age of the oldest ready task and its kind, as text. Empty without ready tasks."""
    if queue is None or not queue.kinds:
        return ""
    return f"{rough(queue.kinds[0].oldest_ready_seconds)} ({queue.kinds[0].kind})"


def _table(queues: list[QueueRecord], ages: dict[str, QueueStatus], now: datetime) -> Table:
    has_waiting = any(queue.counts.get(State.WAITING) for queue in queues)
    states = tuple(State) if has_waiting else SHOWN
    table = new_table(
        *("queue", *states, "oldest ready"),
        numbers=states,
        elastic=("oldest ready",),
        dispensable=("cancelled", "succeeded", "scheduled", "failed"),
    )
    for queue in queues:
        numbers = (str(queue.counts.get(state, 0)) for state in states)
        table.add_row(queue.name, *numbers, _age(queue, ages, now))
    return table


@commands.command()
def pause(names: Names, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Pause queues.

    No node claims their tasks until they are resumed, even after a restart. Running tasks go on.
    """
    checked = [check_name(name, "queue") for name in names]

    async def write(engine: Engine) -> tuple[set[str], list[bool]]:
        known = {queue.name for queue in await engine.queues()}
        return known, [await engine.pause(name) for name in checked]

    known, changes = run_connected(app, url, write)
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

    async def write(engine: Engine) -> tuple[list[str], list[bool]]:
        return [queue.name for queue in await engine.queues()], [await engine.resume(name) for name in names]

    known, changes = run_connected(app, url, write)
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
