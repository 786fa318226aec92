"""Operations on all tasks that match a filter, page by page.

Pages go from the newest id down. So a task that is retried, runs and ends again meanwhile is not visited twice, and a
task that is enqueued meanwhile is not visited at all. Each page is one transaction; the whole operation is one entry in
the audit, which is written before the first page and gets its outcome after the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synergon.client.control import current_operator
from synergon.client.operations import ID_FILTERS, query_of
from synergon.errors import OptionError, StoreError
from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.operator_actions import NewAction, Verb
from synergon.model.positions import RANGES
from synergon.model.record import to_datetime
from synergon.model.task_records import BulkFilters, TaskPage, TaskQuery, TaskRecord
from synergon.model.tasks import MAP_SUCCEEDED, NEEDED, Reprioritizing, Rescheduling
from synergon.options.options import reject_unknown

if TYPE_CHECKING:
    from synergon.client.announcer import Announcer
    from synergon.client.connection import Connection
    from synergon.model.tasks import Moved
    from synergon.stores.base import Store

PAGE: Final = 500
"""How many tasks one transaction changes at most."""

OnPage = Callable[[Sequence["Moved"]], object]
"""Called after each transaction, with what became of its tasks."""

OnProgress = Callable[[int], object]
"""Called after each transaction, with the number of tasks visited so far."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition beside the filter, which the engine checks because a store cannot."""

    text: str
    """The condition as text, for the audit."""
    is_met: Callable[[TaskRecord], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOperation:
    """An operation that can be applied to all tasks that match a filter."""

    verb: Verb
    participle: str
    """For messages: `task 7 was ...`."""
    advice: str
    """For the message when a task is in the wrong state."""
    apply: Callable[[Store, Sequence[int]], Awaitable[list[Moved]]]
    allowed_states: frozenset[State]
    """The states in which the operation is allowed."""
    default_states: frozenset[State]
    """The states of the tasks that are selected if the filter names none."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Values that the audit records beside the filter: the reason, the new priority, ..."""

    def check_states(self, states: frozenset[State] | None) -> frozenset[State]:
        """The states of the tasks to select: `states`, or the default ones. Raises OptionError if the operation is not
        allowed in one of them."""
        for state in sorted(states or ()):
            if state not in self.allowed_states:
                allowed = ", ".join(sorted(self.allowed_states))
                raise OptionError(f"a task that is {state} cannot be {self.participle}; state takes {allowed}")
        return states or self.default_states

    def failure_text(self, result: Moved) -> str:
        """Why the operation did not take effect on a task."""
        if result.state is None:
            return f"there is no task {result.id}: it never existed, was deleted, or its history was pruned"
        cannot = f"task {result.id} cannot be {self.participle}"
        if result.key_holder is not None:
            return f"{cannot}: task {result.key_holder} is live and holds its key"
        if result.is_map:
            return f"{cannot}: {MAP_SUCCEEDED}"
        if result.needed_by is not None:
            return f"{cannot}: {NEEDED.format(result.needed_by)}"
        return f"task {result.id} is {result.state} and cannot be {self.participle}; {self.advice}"


def cancel(why: str | None) -> BulkOperation:
    """The operation that cancels tasks: live ones, unless the filter names states."""
    return BulkOperation(
        verb="cancel_all",
        participle="cancelled",
        advice="it has ended",
        apply=lambda store, ids: store.cancel(ids, why),
        allowed_states=LIVE,
        default_states=LIVE,
        details={"why": why},
    )


def retry(why: str | None = None) -> BulkOperation:
    """The operation that runs ended tasks again: failed ones, unless the filter names states."""
    return BulkOperation(
        verb="retry_all",
        participle="retried",
        advice="only an ended task can be",
        apply=lambda store, ids: store.retry(ids),
        allowed_states=FINAL,
        default_states=frozenset({State.FAILED}),
        details=_reason(why),
    )


def delete(why: str | None = None) -> BulkOperation:
    """The operation that deletes tasks: ended ones, unless the filter names states."""
    return BulkOperation(
        verb="delete_all",
        participle="deleted",
        advice="cancel it first",
        apply=lambda store, ids: store.delete(ids),
        allowed_states=frozenset(State) - {State.RUNNING},
        default_states=FINAL,
        details=_reason(why),
    )


def reschedule(delay: int | None, run_at: int | None, why: str | None = None) -> BulkOperation:
    """The operation that changes when scheduled and ready tasks are due."""
    states = frozenset({State.SCHEDULED, State.READY})
    return BulkOperation(
        verb="reschedule_all",
        participle="rescheduled",
        advice="only a scheduled or ready task can be",
        apply=lambda store, ids: store.reschedule(
            [Rescheduling(id=task_id, delay=delay, run_at=run_at) for task_id in ids]
        ),
        allowed_states=states,
        default_states=states,
        details={"delay": delay, "run_at": run_at} | _reason(why),
    )


def set_priority(priority: int, why: str | None = None) -> BulkOperation:
    """The operation that changes the priority of tasks that have not started."""
    states = LIVE - {State.RUNNING}
    return BulkOperation(
        verb="set_priority_all",
        participle="given another priority",
        advice="only a task that waits can be",
        apply=lambda store, ids: store.set_priority([Reprioritizing(id=task_id, priority=priority) for task_id in ids]),
        allowed_states=states,
        default_states=states,
        details={"priority": priority} | _reason(why),
    )


def _reason(why: str | None) -> dict[str, Any]:
    """The reason that the operator gives, for the audit."""
    return {} if why is None else {"why": why}


class Bulk:
    """The part of an engine that changes all tasks that match a filter. Changes are announced."""

    def __init__(self, connection: Connection, announcer: Announcer) -> None:
        self._connection = connection
        self._announcer = announcer

    @property
    def _store(self) -> Store:
        return self._connection.store

    async def apply_to_all(
        self, operation: BulkOperation, filters: BulkFilters, on_progress: OnProgress | None = None
    ) -> int:
        """Apply the operation to all tasks that match the filters of a user. Returns how many were changed."""
        reject_unknown(filters, BulkFilters.__annotations__, f"{operation.verb}()")
        visited = 0

        def count(moves: Sequence[Moved]) -> None:
            nonlocal visited
            visited += len(moves)
            if on_progress is not None:
                on_progress(visited)

        return await self.apply(operation, query_of(filters), count)

    async def apply(
        self, operation: BulkOperation, query: TaskQuery, on_page: OnPage, only: Condition | None = None
    ) -> int:
        """Apply the operation to all tasks that match `query` and `only`. Returns how many were changed."""
        query = _of_page(operation, query)
        action = await self._store.act(
            NewAction(
                verb=operation.verb,
                subject=shown_filter(query) + ("" if only is None else f" {only.text}"),
                value=dict(operation.details),
                who=current_operator(),
            )
        )
        count = 0
        try:
            while True:
                page = await self._store.list_tasks(query)
                ids = [task.id for task in _selected(page, only)]
                if ids:
                    moves = await operation.apply(self._store, ids)
                    count += sum(moved.done for moved in moves)
                    self.announce(moves)
                    on_page(moves)
                if page.next is None:
                    break
                query = msgspec.structs.replace(query, after=page.next)
        except BaseException as error:
            ended = f"stopped by {type(error).__name__} after {_tasks(count)}"
            with suppress(StoreError):  # the database may be away; the entry then remains open
                await self._store.action_done(action.id, ended)
            raise
        await self._store.action_done(action.id, f"{_tasks(count)} {operation.participle}")
        return count

    async def count(self, operation: BulkOperation, query: TaskQuery, only: Condition | None = None) -> int:
        """The number of tasks that match `query` and `only` now."""
        query = _of_page(operation, query)
        if only is None and query == TaskQuery(
            states=query.states, kinds=query.kinds, queue=query.queue, limit=PAGE
        ):  # exact counts
            return sum(
                number
                for (queue, kind, state), number in (await self._store.counts(is_exact=True)).items()
                if (query.kinds is None or kind in query.kinds)
                and query.queue in (None, queue)
                and state in (query.states or State)
            )
        total = 0
        while True:
            page = await self._store.list_tasks(query)
            total += len(_selected(page, only))
            if page.next is None:
                return total
            query = msgspec.structs.replace(query, after=page.next)

    def announce(self, moves: Sequence[Moved]) -> None:
        """Announce the results to the nodes and engines that are concerned."""
        self._announcer.announce_moves(moves)
        later = Counter(moved.kind for moved in moves if moved.kind is not None and moved.state is State.SCHEDULED)
        if later:
            self._announcer.announce_later(later)


def _selected(page: TaskPage, only: Condition | None) -> Sequence[TaskRecord]:
    return page.tasks if only is None else [task for task in page if only.is_met(task)]


def _of_page(operation: BulkOperation, query: TaskQuery) -> TaskQuery:
    return msgspec.structs.replace(query, states=operation.check_states(query.states), limit=PAGE)


def shown_filter(query: TaskQuery) -> str:
    """A filter as text, for the audit."""
    words: list[tuple[str, str | None]] = [
        ("state", ",".join(sorted(query.states or ()))),
        ("kind", ",".join(query.kinds or ())),
    ]
    words += [(name, getattr(query, name)) for name in ("queue", "tag", "key", "title")]
    words += [(name, str(getattr(query, column) or "")) for name, column in ID_FILTERS.items()]
    words.append(("node", ",".join(query.nodes or ())))
    words += [(f"meta.{name}", msgspec.json.encode(value).decode()) for name, value in (query.meta or {}).items()]
    words.append(("search", query.search))
    moments = [f"{name}_{border}" for name in RANGES for border in ("since", "until")]
    words += [(name, to_datetime(moment).isoformat()) for name in moments if (moment := getattr(query, name))]
    return " ".join(f"{name}={value}" for name, value in words if value)


def _tasks(count: int) -> str:
    return f"{count} task{'' if count == 1 else 's'}"
