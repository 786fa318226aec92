"""Operations on many tasks: on given ids, with one line of output each, or on all tasks that match, page by page.

Pages go from the newest id down. So a task that is retried, runs and ends again meanwhile is not visited twice, and a
task that is enqueued meanwhile is not visited at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from synergon.cli.output import new_progress, plural, print_error, print_line, write_json_lines
from synergon.engine import Engine
from synergon.errors import OptionError
from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.task_records import TaskQuery
from synergon.model.tasks import Moved
from synergon.stores.base import Store

PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOperation:
    """An operation that an operator can apply to tasks."""

    participle: str
    """The participle for messages: `task 7 was ...`."""
    advice: str
    """The advice in the message for a task in the wrong state."""
    apply: Callable[[Engine, Sequence[int]], Awaitable[list[Moved]]]
    allowed_states: frozenset[State] = frozenset()
    """The states that `--state` may name."""
    default_states: frozenset[State] = frozenset()
    """The states of the tasks that `--all` selects without `--state`."""

    def check_states(self, states: Sequence[State]) -> frozenset[State] | None:
        """The given states; None if none was given. Raises OptionError if the operation is not allowed in one of
        them."""
        for state in states:
            if state not in self.allowed_states:
                allowed = ", ".join(sorted(self.allowed_states))
                raise OptionError(f"a task that is {state} cannot be {self.participle}; --state takes {allowed}")
        return frozenset(states) or None


RETRY: Final = TaskOperation(
    participle="retried",
    advice="only an ended task can be",
    apply=lambda engine, ids: engine.store.retry(ids),
    allowed_states=FINAL,
    default_states=frozenset({State.FAILED}),
)
DELETE: Final = TaskOperation(
    participle="deleted", advice="cancel it first", apply=lambda engine, ids: engine.store.delete(ids)
)


def cancel_operation(why: str | None) -> TaskOperation:
    """The operation `cancel` with its reason. The audit records the cancellation of each task."""
    return TaskOperation(
        participle="cancelled",
        advice="it has ended",
        apply=partial(_cancel, why),
        allowed_states=LIVE,
        default_states=LIVE,
    )


def _cancel(why: str | None, engine: Engine, ids: Sequence[int]) -> Awaitable[list[Moved]]:
    return engine.control.cancel(ids, why)


async def _apply(engine: Engine, operation: TaskOperation, ids: Sequence[int]) -> list[Moved]:
    """Apply the operation to these tasks, and announce the changes to nodes and peers."""
    results = await operation.apply(engine, ids)
    engine.announcer.announce_moves(results)
    return results


async def apply_to_ids(engine: Engine, operation: TaskOperation, ids: Sequence[int], *, as_json: bool) -> bool:
    """Apply the operation to these tasks, and print the result of each. Returns whether all succeeded."""
    results = await _apply(engine, operation, list(dict.fromkeys(ids)))
    if as_json:
        write_json_lines(results)
        return all(result.done for result in results)
    for result in results:
        if result.done:
            print_line(f"task {result.id} {_success_text(operation, result)}")
        else:
            print_error(_failure_text(operation, result))
    return all(result.done for result in results)


def _success_text(operation: TaskOperation, result: Moved) -> str:
    if result.state is State.RUNNING:  # only a cancel succeeds in this state
        return "is running; its cancel is requested"
    return f"was {operation.participle}"


def _failure_text(operation: TaskOperation, result: Moved) -> str:
    if result.state is None:
        return f"there is no task {result.id}: it never existed, was deleted, or its history was pruned"
    if result.key_holder is not None:
        return f"task {result.id} cannot be {operation.participle}: task {result.key_holder} is live and holds its key"
    return f"task {result.id} is {result.state} and cannot be {operation.participle}; {operation.advice}"


async def apply_to_all(engine: Engine, operation: TaskOperation, query: TaskQuery, *, as_json: bool) -> bool:
    """Apply the operation to all tasks that match, page by page, and print the totals. False if live tasks with the
    keys of some tasks prevented it."""
    query = msgspec.structs.replace(query, states=query.states or operation.default_states, limit=PAGE)
    totals: Counter[str] = Counter()
    with new_progress() as progress:
        bar = progress.add_task(f"{operation.participle}:", total=await _total(engine.store, query))
        while True:
            page = await engine.store.list_tasks(query)
            results = await _apply(engine, operation, [task.id for task in page]) if page.tasks else []
            if as_json:
                write_json_lines(results)
            totals.update(_category(result) for result in results)
            progress.advance(bar, len(results))
            if page.next is None:
                break
            query = msgspec.structs.replace(query, before=page.next)
    return not totals["blocked"] if as_json else _print_totals(operation, totals)


async def _total(store: Store, query: TaskQuery) -> int | None:
    """The number of matching tasks. None if the filters include a tag or key, for which the store has no counts."""
    if query.tag is not None or query.key is not None:
        return None
    return sum(
        number
        for (queue, kind, state), number in (await store.counts()).items()
        if query.kind in (None, kind) and query.queue in (None, queue) and state in (query.states or State)
    )


def _category(result: Moved) -> str:
    if result.done:
        return "requested" if result.state is State.RUNNING else "done"
    return "blocked" if result.key_holder is not None else "skipped"


def _print_totals(operation: TaskOperation, totals: Counter[str]) -> bool:
    print_line(f"{operation.participle} {plural(totals['done'], 'task')}")
    if totals["requested"]:
        print_line(f"requested the cancel of {plural(totals['requested'], 'running task')}")
    if totals["skipped"]:
        print_line(f"skipped {plural(totals['skipped'], 'task')} that had changed state meanwhile")
    if totals["blocked"]:
        print_error(f"{plural(totals['blocked'], 'task')} cannot be {operation.participle}: live tasks hold their keys")
    return not totals["blocked"]
