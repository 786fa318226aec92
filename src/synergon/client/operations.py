"""Reads and changes stored tasks for users."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Unpack, get_args

import msgspec
from msgspec.structs import replace

from synergon.errors import IllegalMove, KeyConflict, OptionError, StoreError, TaskError, TaskNotFound
from synergon.model.cluster_status import ClusterStatus, WorkerStatus
from synergon.model.lifecycle import State
from synergon.model.positions import RANGES, check_cursor
from synergon.model.process_identity import is_gone
from synergon.model.record import is_storable, storable
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.task_records import SORTED_STATES, Counts, Sort, TaskFilters, TaskPage, TaskQuery, TaskRecord
from synergon.model.task_statistics import Statistics, StatisticsQuery
from synergon.model.tasks import MAP_SUCCEEDED, NEEDED, Extension, MetaChange, Moved, Reprioritizing, Rescheduling
from synergon.options.durations import Duration, microseconds, seconds
from synergon.options.options import check_choice, check_meta, check_moment, check_priority, reject_unknown
from synergon.options.store_urls import shown
from synergon.policies import Retention, cutoffs_of

if TYPE_CHECKING:
    from synergon.client.announcer import Announcer
    from synergon.client.connection import Connection
    from synergon.explain.explanation import Explanation
    from synergon.model.nodes import NodeRecord
    from synergon.stores.base import Store

EXPLAIN_TRIES: Final = 3
"""How often an explanation is made at most, if the state of the task changes meanwhile. The last one is returned."""

ID_FILTERS: Final = {"flow": "group_id", "parent": "parent_id"}
"""The columns of the filters that take an id."""

PRUNED_AT_ONCE: Final = 1000
"""How many final tasks one transaction deletes at most."""


class Operations:
    """The part of an engine that reads and changes stored tasks. The store decides about each change, and the change is
    announced to the nodes."""

    def __init__(self, connection: Connection, announcer: Announcer) -> None:
        self._connection = connection
        self._announcer = announcer

    @property
    def _store(self) -> Store:
        return self._connection.store

    # ------------------------------------------------------------ reading

    async def get(self, task_id: int) -> TaskRecord:
        """The task with this id, live or final. Raises TaskNotFound if there is none."""
        (record,) = await self._store.get([check_id(task_id)])
        if record is None:
            raise _not_found(task_id)
        if record.node_id is None:
            return record
        node = (await self._store.node_names([record.node_id])).get(record.node_id)
        if node is None:
            return record
        return replace(record, node_name=node.name, host=None if node.process is None else node.process.host)

    async def explain(self, task_id: int) -> Explanation:
        """Explain why a task waits, how it runs, or how it ended."""
        from synergon.explain.explainer import explain  # imports the node, which a producer never needs

        record = await self.get(task_id)
        for _ in range(EXPLAIN_TRIES):
            explanation = await explain(self._store, self._connection.node, record)
            before, record = record, await self.get(task_id)
            if (before.state, before.claim_no) == (record.state, record.claim_no):
                break  # otherwise its state has changed meanwhile, and the explanation mixes two moments
        return explanation

    async def tasks(self, **filters: Unpack[TaskFilters]) -> TaskPage:
        """One page of the tasks that match, newest first unless another order is given."""
        reject_unknown(filters, TaskFilters.__annotations__, "tasks()")
        return await self._store.list_tasks(listing_of(filters))

    async def counts(self, *, kind: str | None = None, queue: str | None = None, exact: bool = False) -> Counts[State]:
        """The number of tasks in each state, of this kind and queue, or of all. Up to 5000 live tasks are counted for
        this answer; if there are more, their numbers may be those of the last count, whose moment is `counted_at`.
        `exact` counts them all, which takes a while."""
        found = await self._store.counts(is_exact=exact)
        totals: Counts[State] = Counts(dict.fromkeys(State, 0))
        totals.counted_at = found.counted_at
        for (its_queue, its_kind, state), number in found.items():
            if kind in (None, its_kind) and queue in (None, its_queue):
                totals[state] += number
        return totals

    async def nodes(self) -> list[NodeRecord]:
        """All registered nodes, including dead ones that are not reaped yet. Producers are left out."""
        # Engines that only wait for results have rows too, with no slots.
        return [node for node in await self._store.nodes() if node.concurrency]

    # ------------------------------------------------------------ operations

    async def cancel(self, task_id: int, why: str | None = None) -> bool:
        """Cancel a task in any state. False if it had ended already. Raises TaskNotFound if there is none."""
        (moved,) = await self._store.cancel([check_id(task_id)], check_why(why))
        if moved.state is None:
            raise _not_found(task_id)
        self._announcer.announce_moves([moved])
        return moved.done

    async def cancel_group(self, group_id: int, why: str | None = None) -> int:
        """Cancel the live tasks of a group. Returns how many there were."""
        moves = await self._store.cancel_group(group_id, check_why(why))
        self._announcer.announce_moves(moves)
        return sum(moved.done for moved in moves)

    async def retry(self, task_id: int) -> None:
        """Run a final task again, under its id, with attempts and crashes reset. Raises KeyConflict if a live task
        holds its key, and IllegalMove if it is not final, or is a map that has succeeded."""
        (moved,) = await self._store.retry([check_id(task_id)])
        if moved.key_holder is not None:
            raise KeyConflict(
                f"task {task_id} cannot be retried: task {moved.key_holder} is live and holds its key", moved.key_holder
            )
        if moved.is_map:
            raise IllegalMove(f"task {task_id} cannot be retried: {MAP_SUCCEEDED}", task_id)
        self._check(moved, "retried", "only an ended task can be")
        self._announcer.announce_moves([moved])

    async def delete(self, task_id: int) -> None:
        """Delete a task that is not running, live or final. Raises IllegalMove if it runs."""
        (moved,) = await self._store.delete([check_id(task_id)])
        if moved.needed_by is not None:
            raise IllegalMove(f"task {task_id} cannot be deleted: {NEEDED.format(moved.needed_by)}", task_id)
        if not moved.done:
            self._check(moved, "deleted", "cancel it first")
        self._announcer.announce_moves([moved])

    async def reschedule(self, task_id: int, *, delay: Duration | None = None, run_at: datetime | None = None) -> None:
        """Change when a scheduled or ready task is due."""
        its_delay, moment = check_due(delay, run_at)
        change = Rescheduling(id=check_id(task_id), delay=its_delay, run_at=moment)
        (moved,) = await self._store.reschedule([change])
        self._check(moved, "rescheduled", "only a scheduled or ready task can be")
        if moved.kind is not None:
            self._announcer.announce_later([moved.kind])
            if moved.state is State.READY:
                self._announcer.announce_ready({(moved.kind, None, KIND_DEFAULT): 1})
            self._announcer.announce_key_queues([moved])

    async def set_priority(self, task_id: int, priority: int) -> None:
        """Change the priority of a live task that is not running and not a command."""
        (moved,) = await self._store.set_priority(
            [Reprioritizing(id=check_id(task_id), priority=check_priority(priority))]
        )
        self._check(moved, "given another priority", "only a task that waits can be")
        self._announcer.announce_key_queues([moved])

    async def extend_timeout(self, task_id: int, duration: Duration) -> None:
        """Give the running attempt of a task more time."""
        extra = microseconds(seconds(duration, "extend_timeout", positive=True))
        (moved,) = await self._store.extend_timeout([Extension(id=check_id(task_id), extra=extra)])
        self._check(moved, "given more time", "only a running task can be")
        self._announcer.announce_moves([moved])

    async def update_meta(self, task_id: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change the given names in the metadata of a task. Returns the complete new metadata."""
        plain: dict[str, Any] = msgspec.json.decode(check_meta(values))
        (meta,) = await self._store.update_meta([MetaChange(id=check_id(task_id), values=plain)])
        if meta is None:
            raise _not_found(task_id)
        return meta

    async def status(self, url: str) -> ClusterStatus:
        """The status of the cluster. Nodes without kinds are no workers: they wait for results."""
        found = await self._store.status()
        running = await self._store.running_by_node()
        workers = [_worker(node, running.get(node.id, 0)) for node in await self._store.nodes() if node.kinds]
        fields = {name: getattr(found, name) for name in found.__struct_fields__}
        return ClusterStatus(**fields, store=shown(url), workers=tuple(sorted(workers, key=lambda worker: worker.name)))

    async def statistics(self, kind: str | None, queue: str | None, since: Duration | datetime) -> list[Statistics]:
        """The statistics of each kind and queue since `since`: a moment, or a duration before now. They include all
        that this engine has counted."""
        if isinstance(since, datetime):
            age = await self._store.now() - check_moment(since, "since")
            if age < 0:
                raise OptionError(f"since must not be in the future, got {since!r}")
        else:
            age = microseconds(seconds(since, "since", positive=True))
        for name, value in (("kind", kind), ("queue", queue)):
            if value is not None and not (isinstance(value, str) and is_storable(value)):
                raise OptionError(f"{name} must be a text, got {value!r}")
        if self._connection.statistics is not None:
            with contextlib.suppress(StoreError):  # what this engine could not write is missing, and is written later
                await self._connection.statistics.write()
        return await self._store.statistics(StatisticsQuery(age=age, kind=kind, queue=queue))

    async def retention(self) -> Retention | None:
        """The retention of the store. None if no worker has declared and no operator has set one."""
        stored = await self._store.retention()
        if stored is None:
            return None
        return Retention(
            succeeded=_seconds(stored.succeeded),
            failed=_seconds(stored.failed),
            cancelled=_seconds(stored.cancelled),
            statistics=_seconds(stored.statistics),
        )

    async def prune(self, retention: Retention) -> int:
        """Delete final tasks that are older than `retention` says, in bounded transactions. Returns how many there
        were. Workers prune statistics."""
        cutoffs = msgspec.structs.replace(cutoffs_of(retention), statistics=None)
        total = pruned = await self._store.prune(cutoffs, PRUNED_AT_ONCE)
        while pruned >= PRUNED_AT_ONCE:
            pruned = await self._store.prune(cutoffs, PRUNED_AT_ONCE)
            total += pruned
        return total

    @staticmethod
    def _check(moved: Moved, what: str, advice: str) -> None:
        if moved.done:
            return
        if moved.state is None:
            raise _not_found(moved.id)
        raise IllegalMove(f"task {moved.id} is {moved.state} and cannot be {what}; {advice}", moved.id)


def listing_of(filters: Mapping[str, Any]) -> TaskQuery:
    """Make the query of a listing from its filters and order. Raises OptionError if they are invalid."""
    given = dict(filters)
    limit, after = given.pop("limit", 100), given.pop("after", None)
    sort, ascending = given.pop("sort", "id"), given.pop("ascending", False)
    query = query_of(given)
    check_page_limit(limit)
    check_choice(sort, get_args(Sort), "sort")
    if not isinstance(ascending, bool):
        raise OptionError(f"ascending must be True or False, got {ascending!r}")
    wrong = sorted((query.states or frozenset()) - SORTED_STATES[sort])
    if wrong:
        states = ", ".join(sorted(SORTED_STATES[sort]))
        raise OptionError(f'sort="{sort}" lists tasks that are {states}, and not {wrong[0]}; leave state out')
    query = replace(query, sort=sort, ascending=ascending, limit=limit, after=after)
    if after is not None and (not isinstance(after, str) or not check_cursor(query)):
        raise OptionError(f'after must be the `next` of a page with sort="{sort}", got {after!r}')
    return query


def check_page_limit(limit: Any) -> int:
    """Check how many entries a page may have."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
        raise OptionError(f"limit must be a whole number from 1 to 10000, got {limit!r}")
    return limit


def query_of(filters: Mapping[str, Any]) -> TaskQuery:
    """Make the query of a listing from its filters. Raises OptionError if they are invalid."""
    given = {name: value for name, value in filters.items() if value is not None}
    states, kinds = _states(given.pop("state", None)), _names("kind", given.pop("kind", None))
    meta = _meta(given.pop("meta", None))
    ids: dict[str, Any] = {
        column: check_whole(name, given.pop(name)) for name, column in ID_FILTERS.items() if name in given
    }
    nodes = _names("node", given.pop("node", None))
    moments: dict[str, Any] = {
        name: check_moment(given.pop(name), name)
        for column in RANGES
        for name in (f"{column}_since", f"{column}_until")
        if name in given
    }
    for name, value in given.items():
        check_text(name, value)
    if given.get("search") == "":
        raise OptionError("search must be text that is not empty")
    return TaskQuery(states=states, kinds=kinds, meta=meta, nodes=nodes, **ids, **moments, **given)


def check_whole(name: str, value: Any) -> int:
    """Check an id that restricts a listing."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**63:
        raise OptionError(f"{name} must be an id, a whole number above 0, got {value!r}")
    return value


def check_text(name: str, value: Any) -> str:
    """Check a text that restricts a listing."""
    if not isinstance(value, str):
        raise OptionError(f"{name} must be text, got {value!r}")
    if not is_storable(value):
        raise OptionError(f"{name} must be text that a database can hold, got {value!r}")
    return value


def _names(filter_name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if not names:
        what = "the name of a kind or a list of names" if filter_name == "kind" else "the id of a node or a list of ids"
        raise OptionError(f"{filter_name} must be {what}, got an empty list")
    return tuple(dict.fromkeys(check_text(filter_name, one) for one in names))


def _meta(meta: Any) -> dict[str, Any] | None:
    if meta is None:
        return None
    if not isinstance(meta, Mapping) or not meta:
        raise OptionError(f'meta must be a dict like {{"customer": 42}}, got {meta!r}')
    for name, value in meta.items():
        check_text("a name in meta", name)
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, str | int | float | None) or not is_finite:
            raise OptionError(f"meta is compared with texts, numbers, True, False and None; {name!r} is {value!r}")
        if isinstance(value, str):
            check_text(f"meta {name!r}", value)
    return dict(meta)


def _states(state: State | str | Iterable[State | str] | None) -> frozenset[State] | None:
    if state is None:
        return None
    words = [state] if isinstance(state, str) or not isinstance(state, Iterable) else list(state)
    try:
        return frozenset(State(word) for word in words)
    except ValueError as error:
        raise OptionError(f"{error}; a task's state is one of {', '.join(State)}") from None


def check_due(delay: Duration | None, run_at: datetime | None) -> tuple[int | None, int | None]:
    """Check the new due time of a task. Returns the delay and the moment in microseconds; the one that was not given is
    None."""
    if (delay is None) == (run_at is None):
        raise OptionError("reschedule takes delay or run_at, and exactly one of them")
    return (
        microseconds(seconds(delay, "delay")) if delay is not None else None,
        check_moment(run_at, "run_at") if run_at is not None else None,
    )


def check_id(task_id: Any) -> int:
    """Return the id if a store could have assigned it. Raises OptionError or TaskNotFound otherwise."""
    if isinstance(task_id, bool) or not isinstance(task_id, int):
        raise OptionError(f"a task's id is a whole number, got {task_id!r}")
    if not 0 < task_id < 2**63:
        raise _not_found(task_id)
    return task_id


def check_why(why: Any) -> str | None:
    """The reason that an operator gives, as it can be stored. Raises OptionError if it is not text."""
    if why is None:
        return None
    if not isinstance(why, str):
        raise OptionError(f"why must be text, got {why!r}")
    return storable(why)


def _not_found(task_id: int) -> TaskError:
    return TaskNotFound(
        f"there is no task {task_id}: it never existed, was deleted, or its history was pruned", task_id
    )


def _seconds(age: int | None) -> float | None:
    return None if age is None else age / 1_000_000


def _worker(node: NodeRecord, running: int) -> WorkerStatus:
    lease_seconds = node.state.lease_seconds
    return WorkerStatus(
        id=node.id,
        name=node.name,
        host=node.process.host,
        is_alive=node.lease_remaining > 0 and not is_gone(node.process),
        is_cordoned=node.is_cordoned,
        running=running,
        concurrency=node.concurrency,
        silent_seconds=max(lease_seconds - node.lease_remaining, 0.0) if lease_seconds else 0.0,
        lease_seconds=lease_seconds,
    )
