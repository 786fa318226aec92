"""What time and death do: due and expired tasks, dead nodes, old history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice, takewhile

from msgspec.structs import replace

from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord
from synergon.model.tasks import Cutoffs, Reaped, Woken
from synergon.stores.memory.attempts import requeue_or_give_up
from synergon.stores.memory.groups import end_emptied, forget_if_bare
from synergon.stores.memory.key_queues import forget_past_starts
from synergon.stores.memory.row import Row
from synergon.stores.memory.servers import next_backoff_end
from synergon.stores.memory.tables import Tables


def wake(tables: Tables, limit: int, now: int) -> Woken:
    """End what has expired, make ready what is due, and tell when to look again."""
    # Expiry first: a task whose time to start is over must not be announced as ready.
    expired = tables.expiry.due(now, limit)
    for row in expired:
        tables.end(row, State.FAILED, Reason.EXPIRED, now)
    due = tables.due.due(now, limit)
    for row in due:
        tables.requeue(row, row.run_at, now)
    end_emptied(tables, now)
    ready = {row.id: row.task.kind for row in (*due, *tables.promoted) if row.state is State.READY}
    return Woken(
        kinds=dict(Counter(ready.values())),
        expired=tuple(row.id for row in expired),
        next_in=_next_in(tables, now),
    )


def _next_in(tables: Tables, now: int) -> int | None:
    awaited = (tables.due.next_moment(), tables.expiry.next_moment(), next_backoff_end(tables, now))
    moments = [moment for moment in awaited if moment is not None]
    return max(min(moments) - now, 0) if moments else None


def reap(tables: Tables, gone: Sequence[str], limit: int, now: int) -> list[Reaped]:
    """Take running tasks from dead nodes, and forget dead nodes that hold none."""
    known = tables.running.keys() | tables.nodes.keys()
    dead = [node_id for node_id in known if node_id in gone or not tables.is_leased(node_id, now)]
    orphans = (row for node_id in dead for row in tables.running.get(node_id, {}).values())
    reaped = [_reap_one(tables, row, now) for row in list(islice(orphans, limit))]
    for node_id in dead:
        if not tables.running.get(node_id):
            tables.running.pop(node_id, None)
            tables.nodes.pop(node_id, None)
    end_emptied(tables, now)
    own = {entry.id for entry in reaped}
    released = tuple(row.task.kind for row in tables.promoted if row.state is State.READY and row.id not in own)
    return [*reaped[:-1], replace(reaped[-1], released=released)] if released and reaped else reaped


def _reap_one(tables: Tables, row: Row, now: int) -> Reaped:
    node_id = row.node_id
    assert node_id is not None
    node = tables.nodes.get(node_id)
    if node is not None and node.is_stopping and not row.task.is_command:
        row.give_attempt_back()
    else:
        row.charge_crash(_death_of(node_id, row), now)
    if row.cancel_requested:
        tables.end(row, State.CANCELLED, Reason.CANCELLED, now)
    else:
        requeue_or_give_up(tables, row, now)
    return Reaped(id=row.id, kind=row.task.kind, node_id=node_id, state=row.state, crashes=row.crashes)


def _death_of(node_id: str, row: Row) -> ErrorRecord:
    message = f"node {node_id} died while it ran the task"
    return ErrorRecord(attempt=row.attempts, type="Crash", message=message, node_id=node_id)


def prune(tables: Tables, cutoffs: Cutoffs, limit: int, now: int) -> int:
    """Delete ended tasks that are older than the cutoff of their state, oldest first."""
    pruned = 0
    for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED):
        age: int | None = getattr(cutoffs, state)
        if age is not None:
            pruned += _prune_state(tables, state, now - age, limit - pruned)
    forget_past_starts(tables, limit, now)
    return pruned


def _prune_state(tables: Tables, state: State, ended_before: int, limit: int) -> int:
    # In the order in which they ended, and the clock never runs back: the first that is too young ends the search.
    old = takewhile(lambda row: (row.finished_at or 0) < ended_before, tables.ended[state].values())
    rows = list(islice(old, limit))
    for row in rows:
        tables.pruned[state, row.task.kind] = row.ended_no
        tables.remove(row)
        forget_if_bare(tables, row)
    return len(rows)
