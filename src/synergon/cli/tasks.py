"""`synergon tasks`: look at tasks, and move them."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.table import Table

from synergon.cli import exit_codes, task_operations
from synergon.cli.database import AppOption, JsonOption, UrlOption, connected
from synergon.cli.output import console, new_table, relative, say, short, state_text, write_json, write_json_lines
from synergon.cli.task_details import print_details
from synergon.cli.task_explanation import print_explanation
from synergon.errors import OptionError
from synergon.explain.explanation import Explanation
from synergon.model.lifecycle import State
from synergon.model.nodes import NodeRecord
from synergon.model.record import to_datetime
from synergon.model.task_records import TaskPage, TaskQuery, TaskRecord

LARGEST_ID: Final = 2**63 - 1

StateOption = Annotated[
    list[State] | None,
    typer.Option("--state", metavar="STATE", help=f"Only tasks in this state; repeatable. One of {', '.join(State)}."),
]
KindOption = Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only tasks of this kind.")]
QueueOption = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only tasks of this queue.")]
TagOption = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Only tasks with this tag.")]
KeyOption = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only tasks with this unique key.")]
AllOption = Annotated[bool, typer.Option("--all", help="All tasks that match, instead of ids.")]
Id = Annotated[int, typer.Argument(metavar="ID", min=1, max=LARGEST_ID, hidden=True)]
Ids = Annotated[list[int], typer.Argument(metavar="ID", min=1, max=LARGEST_ID, hidden=True)]
SomeIds = Annotated[list[int] | None, typer.Argument(metavar="ID", min=1, max=LARGEST_ID, hidden=True)]

commands = typer.Typer(no_args_is_help=True, help="Look at tasks, and retry, cancel or delete them.")


@commands.command("list")
def list_tasks(
    state: StateOption = None,
    kind: KindOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    key: KeyOption = None,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=10_000, help="How many at the most.")] = 50,
    before: Annotated[int | None, typer.Option(metavar="ID", min=1, help="Only ids below this one.")] = None,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List tasks, newest first.

    With --json one task per line.
    """

    async def read() -> tuple[TaskPage, datetime]:
        async with connected(app, url) as engine:
            page = await engine.tasks(
                state=state or None, kind=kind, queue=queue, tag=tag, key=key, before=before, limit=limit
            )
            return page, to_datetime(await engine.store.now())

    page, now = asyncio.run(read())
    if as_json:
        write_json_lines(page)
        return
    if not page.tasks:
        say("no tasks match")
        return
    console.print(_table(page, now))
    if page.next is not None:
        say(f"there are older ones: --before {page.next}")


def _table(page: TaskPage, now: datetime) -> Table:
    headings = ("id", "state", "kind", "queue", "tries", "when", "")
    table = new_table(*headings, numbers=("id",), elastic=("kind", "queue", ""))
    for task in page:
        table.add_row(
            str(task.id),
            state_text(task.state),
            short(task.kind),
            short(task.queue),
            f"{task.attempts}/{task.max_attempts or '?'}",
            relative(_when(task), now),
            short(_note(task)),
        )
    return table


def _when(task: TaskRecord) -> datetime:
    """The moment that matters in this state."""
    if task.state is State.RUNNING:
        return task.started_at or task.enqueued_at
    return task.finished_at or task.run_at


def _note(task: TaskRecord) -> str:
    """What to know about it at a glance; at most a line."""
    if task.state is State.SUCCEEDED:
        return ""
    if task.state is State.RUNNING:
        overdue = "overdue" if task.overdue else ""
        progress = f"{task.progress.fraction:.0%} {task.progress.message}" if task.progress else ""
        return ", ".join(filter(None, ["cancel asked" if task.cancel_requested else "", overdue, progress.strip()]))
    error = f"{task.error.type}: {task.error.message}".partition("\n")[0] if task.error is not None else ""
    return error or (task.reason or "")


@commands.command()
def show(task_id: Id, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show one task.

    Its times, arguments and result, and each error with its traceback.
    """

    async def read() -> tuple[TaskRecord, list[NodeRecord], datetime]:
        async with connected(app, url) as engine:
            return await engine.get(task_id), await engine.nodes(), to_datetime(await engine.store.now())

    task, nodes, now = asyncio.run(read())
    if as_json:
        write_json(task)
    else:
        print_details(task, nodes, now)


@commands.command()
def explain(task_id: Id, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Say why a task waits.

    In one sentence, and for each node that knows its kind; or how it runs, or what became of it.
    """

    async def read() -> tuple[Explanation, datetime]:
        async with connected(app, url) as engine:
            return await engine.explain(task_id), to_datetime(await engine.store.now())

    explanation, now = asyncio.run(read())
    if as_json:
        write_json(explanation)
    else:
        print_explanation(explanation, now)


@commands.command()
def retry(
    ids: SomeIds = None,
    every: AllOption = False,
    state: StateOption = None,
    kind: KindOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    key: KeyOption = None,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run ended tasks again.

    Under the same id, with their budgets reset. --all takes those that failed, unless --state says otherwise.
    """
    move = task_operations.RETRY
    query = TaskQuery(states=move.check_states(state or ()), kind=kind, queue=queue, tag=tag, key=key)
    _move(move, ids or [], query, app, url, every=every, as_json=as_json)


@commands.command()
def cancel(
    ids: SomeIds = None,
    every: AllOption = False,
    state: StateOption = None,
    kind: KindOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    key: KeyOption = None,
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="Kept with the task.")] = None,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel tasks.

    At once if they wait, as soon as the body ends if they run. --all takes every task that has not ended.
    """
    move = task_operations.cancelling(why)
    query = TaskQuery(states=move.check_states(state or ()), kind=kind, queue=queue, tag=tag, key=key)
    _move(move, ids or [], query, app, url, every=every, as_json=as_json)


@commands.command()
def delete(ids: Ids, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Remove tasks without a trace; running ones are refused."""
    _move(task_operations.DELETE, ids, TaskQuery(), app, url, as_json=as_json)


def _move(
    move: task_operations.Move,
    ids: list[int],
    query: TaskQuery,
    app: str | None,
    url: str | None,
    *,
    every: bool = False,
    as_json: bool,
) -> None:
    if every and ids:
        raise OptionError("give ids or --all, not both")
    if not every and query != TaskQuery():
        raise OptionError("filters choose among all tasks; give --all with them, and no ids")
    if not every and not ids:
        raise OptionError("give the ids of tasks, or --all with filters")

    async def run() -> bool:
        async with connected(app, url) as engine:
            if every:
                return await task_operations.move_all(engine, move, query, as_json=as_json)
            return await task_operations.move_some(engine, move, ids, as_json=as_json)

    if not asyncio.run(run()):
        raise typer.Exit(exit_codes.FAILED)
