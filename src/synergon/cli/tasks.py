"""`synergon tasks`: lists, shows, explains, retries, cancels, deletes, reschedules and reprioritizes tasks."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Final, NamedTuple

import typer
from rich.table import Table

from synergon.cli import exit_codes, task_operations
from synergon.cli.database import AppOption, JsonOption, UrlOption, connected
from synergon.cli.output import (
    console,
    new_table,
    print_line,
    relative,
    short,
    state_text,
    write_json,
    write_json_lines,
)
from synergon.cli.task_details import print_details
from synergon.cli.task_explanation import print_explanation
from synergon.client import bulk
from synergon.client.operations import check_due, check_why
from synergon.errors import OptionError
from synergon.explain.explanation import Explanation
from synergon.model.lifecycle import State
from synergon.model.nodes import NodeRecord
from synergon.model.record import to_datetime
from synergon.model.task_records import TaskPage, TaskQuery, TaskRecord
from synergon.options.options import check_priority

LARGEST_ID: Final = 2**63 - 1

StateOption = Annotated[
    list[State] | None,
    typer.Option("--state", metavar="STATE", help=f"Only tasks in this state; repeatable. One of {', '.join(State)}."),
]
KindOption = Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only tasks of this kind.")]
QueueOption = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only tasks of this queue.")]
TagOption = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Only tasks with this tag.")]
KeyOption = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only tasks with this unique key.")]
TitleOption = Annotated[
    str | None,
    typer.Option("--title", metavar="TEXT", help="Only tasks whose title contains this text, in any case."),
]
AllOption = Annotated[bool, typer.Option("--all", help="All tasks that match the filters, instead of ids.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Allow --all without a filter.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="With --all: only print how many tasks match.")]
Id = Annotated[int, typer.Argument(metavar="ID", min=1, max=LARGEST_ID, hidden=True)]
SomeIds = Annotated[list[int] | None, typer.Argument(metavar="ID", min=1, max=LARGEST_ID, hidden=True)]

commands = typer.Typer(no_args_is_help=True, help="List, explain, retry, cancel and delete tasks.")


@commands.command("list")
def list_tasks(
    state: StateOption = None,
    kind: KindOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    key: KeyOption = None,
    title: TitleOption = None,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=10_000, help="How many to list at most.")] = 50,
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
                state=state or None, kind=kind, queue=queue, tag=tag, key=key, title=title, before=before, limit=limit
            )
            return page, to_datetime(await engine.store.now())

    page, now = asyncio.run(read())
    if as_json:
        write_json_lines(page)
        return
    if not page.tasks:
        print_line("no tasks match")
        return
    console.print(_table(page, now))
    if page.next is not None:
        print_line(f"older tasks: --before {page.next}")


def _table(page: TaskPage, now: datetime) -> Table:
    has_titles = any(task.title is not None for task in page)
    headings = ("id", "state", "kind", *(("title",) if has_titles else ()), "queue", "tries", "when", "")
    table = new_table(*headings, numbers=("id",), elastic=("kind", "title", "queue", ""))
    for task in page:
        table.add_row(
            str(task.id),
            state_text(task.state),
            short(task.kind),
            *((short(task.title or ""),) if has_titles else ()),
            short(task.queue),
            f"{task.attempts}/{task.max_attempts or '?'}",
            relative(_when(task), now),
            short(_note(task)),
        )
    return table


def _when(task: TaskRecord) -> datetime:
    """The time that matters in the task's state: its start, end or due time."""
    if task.state is State.RUNNING:
        return task.started_at or task.enqueued_at
    return task.finished_at or task.run_at


def _note(task: TaskRecord) -> str:
    """Progress, error or reason of the task, or which of its columns are unreadable; at most one line."""
    if task.unreadable:
        return f"unreadable: {', '.join(task.unreadable)}"
    if task.state is State.SUCCEEDED:
        return ""
    if task.state is State.RUNNING:
        overdue = "overdue" if task.overdue else ""
        progress = f"{task.progress.fraction:.0%} {task.progress.message}" if task.progress else ""
        return ", ".join(filter(None, ["cancel requested" if task.cancel_requested else "", overdue, progress.strip()]))
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
    """Explain why a task waits.

    Prints one sentence, and the reasons of each node that has the kind; for other tasks, how they run or ended.
    """

    async def read() -> tuple[Explanation, datetime]:
        async with connected(app, url) as engine:
            return await engine.explain(task_id), to_datetime(await engine.store.now())

    explanation, now = asyncio.run(read())
    if as_json:
        write_json(explanation)
    else:
        print_explanation(explanation, now)


@commands.command("retry")
def retry(
    ids: SomeIds = None,
    every: AllOption = False,
    state: StateOption = None,
    kind: KindOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    key: KeyOption = None,
    title: TitleOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run ended tasks again.

    They keep their id, and their budgets are reset. --all selects failed tasks, unless --state is given.
    """
    filters = TaskQuery(states=frozenset(state or ()) or None, kind=kind, queue=queue, tag=tag, key=key, title=title)
    _apply(
        bulk.retry(),
        lambda engine, ids: engine.control.retry(ids),
        ids or [],
        _Selection(every, filters, yes, dry_run),
        app,
        url,
        as_json=as_json,
    )


@commands.command("cancel")
def cancel(
    ids: SomeIds = None,
    every: AllOption = False,
    state: StateOption = None,
    kind: KindOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    key: KeyOption = None,
    title: TitleOption = None,
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="The reason, stored with the task.")] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel tasks.

    Waiting tasks are cancelled at once, running ones when their function ends. --all selects all tasks that have not
    ended.
    """
    filters = TaskQuery(states=frozenset(state or ()) or None, kind=kind, queue=queue, tag=tag, key=key, title=title)
    _apply(
        bulk.cancel(check_why(why)),
        lambda engine, ids: engine.control.cancel(ids, why),
        ids or [],
        _Selection(every, filters, yes, dry_run),
        app,
        url,
        as_json=as_json,
    )


@commands.command("delete")
def delete(
    ids: SomeIds = None,
    every: AllOption = False,
    state: StateOption = None,
    kind: KindOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    key: KeyOption = None,
    title: TitleOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete tasks and their history; running tasks are rejected.

    --all selects ended tasks, unless --state is given.
    """
    filters = TaskQuery(states=frozenset(state or ()) or None, kind=kind, queue=queue, tag=tag, key=key, title=title)
    _apply(
        bulk.delete(),
        lambda engine, ids: engine.control.delete(ids),
        ids or [],
        _Selection(every, filters, yes, dry_run),
        app,
        url,
        as_json=as_json,
    )


@commands.command("reschedule")
def reschedule(
    ids: SomeIds = None,
    every: AllOption = False,
    state: StateOption = None,
    kind: KindOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    key: KeyOption = None,
    title: TitleOption = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Due after this time, like 30s or 2h.")] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Due at this time, like 2026-12-24T18:00+01:00.")
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change when scheduled and ready tasks are due."""
    filters = TaskQuery(states=frozenset(state or ()) or None, kind=kind, queue=queue, tag=tag, key=key, title=title)
    _apply(
        bulk.reschedule(*check_due(delay, _moment(run_at))),
        None,
        ids or [],
        _Selection(every, filters, yes, dry_run),
        app,
        url,
        as_json=as_json,
    )


@commands.command("priority")
def set_priority(
    ids: SomeIds = None,
    every: AllOption = False,
    state: StateOption = None,
    kind: KindOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    key: KeyOption = None,
    title: TitleOption = None,
    to: Annotated[int | None, typer.Option("--to", metavar="NUMBER", help="The new priority; required.")] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the priority of tasks that have not started; a higher one runs first."""
    if to is None:
        raise OptionError("give the new priority: --to NUMBER")
    filters = TaskQuery(states=frozenset(state or ()) or None, kind=kind, queue=queue, tag=tag, key=key, title=title)
    _apply(
        bulk.set_priority(check_priority(to)),
        None,
        ids or [],
        _Selection(every, filters, yes, dry_run),
        app,
        url,
        as_json=as_json,
    )


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"--run-at takes a time like 2026-12-24T18:00+01:00, got {text!r}") from None


class _Selection(NamedTuple):
    """What `--all` selects, and how."""

    is_all: bool
    query: TaskQuery
    is_confirmed: bool
    is_dry_run: bool


def _apply(
    operation: bulk.BulkOperation,
    apply: task_operations.ApplyToIds | None,
    ids: list[int],
    selection: _Selection,
    app: str | None,
    url: str | None,
    *,
    as_json: bool,
) -> None:
    if selection.is_all and ids:
        raise OptionError("give ids or --all, not both")
    if not selection.is_all and (selection.query != TaskQuery() or selection.is_dry_run):
        raise OptionError("filters and --dry-run need --all, and no ids")
    if not selection.is_all and not ids:
        raise OptionError("give the ids of tasks, or --all with filters")
    operation.check_states(selection.query.states)

    async def run() -> bool:
        async with connected(app, url) as engine:
            if not selection.is_all:
                return await task_operations.apply_to_ids(engine, operation, apply, ids, as_json=as_json)
            return await task_operations.apply_to_all(
                engine,
                operation,
                selection.query,
                is_confirmed=selection.is_confirmed,
                is_dry_run=selection.is_dry_run,
                as_json=as_json,
            )

    if not asyncio.run(run()):
        raise typer.Exit(exit_codes.FAILED)
