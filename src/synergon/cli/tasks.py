"""`synergon tasks`: lists, shows, explains, retries, cancels, deletes, reschedules and reprioritizes tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple, cast

import typer
from rich.table import Table

from synergon.cli import exit_codes, task_operations
from synergon.cli.command_groups import ListGroup
from synergon.cli.database import AppOption, JsonOption, UrlOption, run_connected
from synergon.cli.output import (
    new_table,
    print_line,
    relative,
    short,
    show_list,
    state_text,
    write_json,
)
from synergon.cli.task_details import print_details
from synergon.cli.task_explanation import print_explanation
from synergon.cli.task_filters import with_filters
from synergon.cli.watch import WatchCommand, WatchOption, run_watched
from synergon.client import bulk
from synergon.client.operations import check_due, check_why, query_of
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.explain.explanation import Explanation
from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.model.task_records import SEARCHED_TASKS, Sort, TaskFilters, TaskPage, TaskQuery, TaskRecord
from synergon.options.options import check_priority

LARGEST_ID: Final = 2**63 - 1

SortOption = Annotated[
    str, typer.Option("--sort", metavar="ORDER", help="By id, due (scheduled tasks) or end (final ones).")
]
AllOption = Annotated[bool, typer.Option("--all", help="All tasks that match the filters, instead of ids.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Allow --all without a filter.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="With --all: only print how many tasks match.")]
Id = Annotated[int, typer.Argument(metavar="ID", min=1, max=LARGEST_ID, hidden=True)]
SomeIds = Annotated[list[int] | None, typer.Argument(metavar="ID", min=1, max=LARGEST_ID, hidden=True)]

commands: Final = typer.Typer(
    cls=ListGroup, help="List, explain, retry, cancel and delete tasks. Without a command: list."
)


@commands.command("list", cls=WatchCommand)
@with_filters
def list_tasks(
    filters: dict[str, Any],
    sort: SortOption = "id",
    ascending: Annotated[bool, typer.Option("--ascending", help="The first ones first.")] = False,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=10_000, help="How many to list at most.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on after the page before.")] = None,
    app: AppOption = None,
    url: UrlOption = None,
    watch: WatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """List tasks, newest first.

    With --json, prints one task per line. A search reads at most 10000 tasks that match the other filters. If there are
    more, the output says how to continue.
    """

    async def read(engine: Engine) -> tuple[TaskPage, datetime]:
        order: TaskFilters = {"sort": cast(Sort, sort), "ascending": ascending, "limit": limit, "after": after}
        page = await engine.tasks(**filters, **order)
        return page, to_datetime(await engine._store.now())

    def show(found: tuple[TaskPage, datetime]) -> None:
        page, now = found
        show_list(page.tasks, lambda: _table(page, now), as_json=as_json, nothing="no tasks match")
        if not as_json:
            _print_next(page)

    run_watched(app, url, read, show, watch, as_json=as_json)


def _print_next(page: TaskPage) -> None:
    if page.is_cut:
        print_line(f"searched {SEARCHED_TASKS} tasks; to go on: --after {page.next}")
    elif page.next is not None:
        print_line(f"more tasks: --after {page.next}")


def _table(page: TaskPage, now: datetime) -> Table:
    has_titles = any(task.title is not None for task in page)
    headings = ("id", "state", "kind", *(("title",) if has_titles else ()), "queue", "tries", "when", "")
    table = new_table(
        *headings, numbers=("id",), elastic=("title", ""), dispensable=("tries", "queue", "title", "", "when")
    )
    for task in page:
        table.add_row(
            str(task.id),
            state_text(task.state),
            task.kind,
            *((short(task.title or ""),) if has_titles else ()),
            task.queue,
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

    async def read(engine: Engine) -> tuple[TaskRecord, datetime]:
        return await engine.get(task_id), to_datetime(await engine._store.now())

    task, now = run_connected(app, url, read)
    if as_json:
        write_json(task)
    else:
        print_details(task, now)


@commands.command()
def explain(task_id: Id, app: AppOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Explain why a task waits.

    Prints one sentence, and the reasons of each node that has the kind; for other tasks, how they run or ended.
    """

    async def read(engine: Engine) -> tuple[Explanation, datetime]:
        return await engine.explain(task_id), to_datetime(await engine._store.now())

    explanation, now = run_connected(app, url, read)
    if as_json:
        write_json(explanation)
    else:
        print_explanation(explanation, now)


class Selection(NamedTuple):
    """The tasks that an operation is for: those with the ids, or all that match the filters."""

    ids: list[int]
    is_all: bool
    query: TaskQuery
    is_confirmed: bool
    is_dry_run: bool

    def check(self) -> None:
        """Raise OptionError unless either ids or --all are given."""
        if self.is_all and self.ids:
            raise OptionError("give ids or --all, not both")
        if not self.is_all and (self.query != TaskQuery() or self.is_dry_run):
            raise OptionError("filters and --dry-run need --all, and no ids")
        if not self.is_all and not self.ids:
            raise OptionError("give the ids of tasks, or --all with filters")


def selection(
    filters: dict[str, Any],
    ids: SomeIds = None,
    every: AllOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> Selection:
    """Make the selection from these options and filters, which every operation takes."""
    return Selection(ids or [], every, query_of(filters), yes, dry_run)


def apply(
    operation: bulk.BulkOperation,
    apply_to_ids: task_operations.ApplyToIds,
    chosen: Selection,
    app: AppOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Apply the operation to the selected tasks. Its last options are options of every operation."""
    chosen.check()
    if not chosen.is_all and operation.verb != "cancel_all" and "why" in operation.details:
        raise OptionError("--why needs --all: the audit has a reason for a bulk operation, and for a cancel")
    operation.check_states(chosen.query.states)

    async def run(engine: Engine) -> bool:
        if not chosen.is_all:
            return await task_operations.apply_to_ids(engine, operation, apply_to_ids, chosen.ids, as_json=as_json)
        return await task_operations.apply_to_all(
            engine,
            operation,
            chosen.query,
            is_confirmed=chosen.is_confirmed,
            is_dry_run=chosen.is_dry_run,
            as_json=as_json,
        )

    if not run_connected(app, url, run):
        raise typer.Exit(exit_codes.FAILED)


WhyOption = Annotated[str | None, typer.Option(metavar="TEXT", help="The reason, for the audit; needs --all.")]

Operation = tuple[bulk.BulkOperation, task_operations.ApplyToIds]
"""An operation on all tasks that match, and what applies it to single tasks. The audit records every task."""


def operation_command(name: str) -> Callable[[Callable[..., Operation]], None]:
    """Add a command that applies an operation. The function makes the operation from options of its own; those of
    `selection` and `apply` are added to them."""

    def add(make: Callable[..., Operation]) -> None:
        own, chosen, common = (
            {option.name: option for option in inspect.signature(function, eval_str=True).parameters.values()}
            for function in (make, selection, apply)
        )
        for taken in ("operation", "apply_to_ids", "chosen"):
            del common[taken]

        def command(filters: dict[str, Any], **given: Any) -> None:
            operation, apply_to_ids = make(**{option: given[option] for option in own})
            options = {option: given[option] for option in common}
            selected = selection(filters, **{option: given[option] for option in chosen if option != "filters"})
            apply(operation, apply_to_ids, selected, **options)

        options = [*chosen.values(), *own.values(), *common.values()]
        command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # `with_filters` reads it
        commands.command(name, help=make.__doc__)(with_filters(command))

    return add


@operation_command("retry")
def retry(why: WhyOption = None) -> Operation:
    """Run ended tasks again.

    They keep their id, and their budgets are reset. --all selects failed tasks, unless --state is given.
    """
    return bulk.retry(check_why(why)), lambda engine, ids: engine._control.retry(ids)


@operation_command("cancel")
def cancel(
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="The reason, stored with the task.")] = None,
) -> Operation:
    """Cancel tasks.

    Waiting tasks are cancelled at once, running ones when their function ends. --all selects all tasks that have not
    ended.
    """
    return bulk.cancel(check_why(why)), lambda engine, ids: engine._control.cancel(ids, why)


@operation_command("delete")
def delete(why: WhyOption = None) -> Operation:
    """Delete tasks and their history; running tasks are rejected.

    --all selects ended tasks, unless --state is given.
    """
    return bulk.delete(check_why(why)), lambda engine, ids: engine._control.delete(ids)


@operation_command("reschedule")
def reschedule(
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Due after this time, like 30s or 2h.")] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Due at this time, like 2026-12-24T18:00+01:00.")
    ] = None,
    why: WhyOption = None,
) -> Operation:
    """Change when scheduled and ready tasks are due."""
    due_delay, due_at = check_due(delay, _moment(run_at))
    return bulk.reschedule(due_delay, due_at, check_why(why)), lambda engine, ids: engine._control.reschedule(
        ids, delay=due_delay, run_at=due_at
    )


@operation_command("priority")
def set_priority(
    to: Annotated[int | None, typer.Option("--to", metavar="NUMBER", help="The new priority; required.")] = None,
    why: WhyOption = None,
) -> Operation:
    """Change the priority of tasks that have not started; a higher one runs first."""
    if to is None:
        raise OptionError("give the new priority: --to NUMBER")
    priority = check_priority(to)
    return bulk.set_priority(priority, check_why(why)), lambda engine, ids: engine._control.set_priority(ids, priority)


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"--run-at takes a time like 2026-12-24T18:00+01:00, got {text!r}") from None
