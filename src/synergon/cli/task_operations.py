"""Operations on many tasks: on given ids with one line of output each, or on all that match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from synergon.cli.output import new_progress, plural, print_error, print_line, write_json, write_json_lines
from synergon.client.bulk import BulkOperation
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.model.lifecycle import State
from synergon.model.task_records import TaskQuery
from synergon.model.tasks import Moved

ApplyToIds = Callable[[Engine, Sequence[int]], Awaitable[list[Moved]]]


async def apply_to_ids(
    engine: Engine, operation: BulkOperation, apply: ApplyToIds, ids: Sequence[int], *, as_json: bool
) -> bool:
    """Apply the operation to these tasks and print the result of each; return whether all succeeded. `apply` records
    each task in the audit."""
    unique = list(dict.fromkeys(ids))
    results = await apply(engine, unique)
    engine._bulk.announce(results)
    if as_json:
        write_json_lines(results)
        return all(result.done for result in results)
    for result in results:
        if result.done:
            print_line(f"task {result.id} {_success_text(operation, result)}")
        else:
            print_error(operation.failure_text(result))
    return all(result.done for result in results)


def _success_text(operation: BulkOperation, result: Moved) -> str:
    if result.state is State.RUNNING:  # only a cancel succeeds in this state
        return "is running; its cancel is requested"
    return f"was {operation.participle}"


async def apply_to_all(
    engine: Engine, operation: BulkOperation, query: TaskQuery, *, is_confirmed: bool, is_dry_run: bool, as_json: bool
) -> bool:
    """Print how many tasks match, then apply the operation to all of them, in pages; return whether none was blocked by
    a live task with its key."""
    if query == TaskQuery() and not (is_confirmed or is_dry_run):
        raise OptionError("--all needs a filter (--kind, --state, ...), or --yes for all tasks")
    total = await engine._bulk.count(operation, query)
    if is_dry_run:
        if as_json:
            write_json({"matching": total})
        else:
            print_line(f"{_matching(total)}; nothing was changed")
        return True
    if not as_json:
        print_line(_matching(total))
    totals: Counter[str] = Counter()
    with new_progress() as progress:
        bar = progress.add_task(f"{operation.participle}:", total=total)

        def on_page(results: Sequence[Moved]) -> None:
            if as_json:
                write_json_lines(results)
            totals.update(_category(result) for result in results)
            progress.advance(bar, len(results))

        await engine._bulk.apply(operation, query, on_page)
    return not totals["blocked"] if as_json else _print_totals(operation, totals)


def _matching(total: int) -> str:
    return f"{plural(total, 'task')} {'matches' if total == 1 else 'match'}"


def _category(result: Moved) -> str:
    if result.done:
        return "requested" if result.state is State.RUNNING else "done"
    if result.key_holder is not None:
        return "blocked"
    return "skipped" if result.needed_by is None else "needed"


def _print_totals(operation: BulkOperation, totals: Counter[str]) -> bool:
    print_line(f"{operation.participle}: {plural(totals['done'], 'task')}")
    if totals["requested"]:
        print_line(f"requested the cancel of {plural(totals['requested'], 'running task')}")
    if totals["skipped"]:
        print_line(f"skipped {plural(totals['skipped'], 'task')} that had changed state meanwhile")
    if totals["needed"]:
        print_line(f"kept {plural(totals['needed'], 'task')} that live tasks depend on")
    if totals["blocked"]:
        print_error(f"{plural(totals['blocked'], 'task')} cannot be {operation.participle}: live tasks hold their keys")
    return not totals["blocked"]
