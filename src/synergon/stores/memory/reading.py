"""Looking at the tables without changing them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from synergon.lifecycle import State
from synergon.records import NodeRecord, QueueRecord, TaskPage, TaskQuery, to_datetime
from synergon.stores.memory.entries import Node
from synergon.stores.memory.row import Row, record_of
from synergon.stores.memory.tables import Tables


def list_tasks(tables: Tables, query: TaskQuery) -> TaskPage:
    """One page of the tasks that match, newest id first."""
    matching = (row for row in _newest_first(tables, query.before) if _matches(row, query))
    found = list(islice(matching, query.limit + 1))
    page = found[: query.limit]
    has_more = len(found) > len(page)
    return TaskPage(tasks=tuple(record_of(row) for row in page), next=page[-1].id if has_more and page else None)


def _newest_first(tables: Tables, before: int | None) -> Iterator[Row]:
    if before is None:
        return reversed(tables.rows.values())
    ids = list(tables.rows)
    return (tables.rows[ids[index]] for index in range(bisect_left(ids, before) - 1, -1, -1))


def _matches(row: Row, query: TaskQuery) -> bool:
    task = row.task
    return (
        (query.states is None or row.state in query.states)
        and (query.kind is None or task.kind == query.kind)
        and (query.queue is None or task.queue == query.queue)
        and (query.key is None or task.key == query.key)
        and (query.tag is None or query.tag in task.tags)
    )


def counts(tables: Tables) -> dict[tuple[str, str, State], int]:
    """How many tasks are in each state, by queue and kind."""
    return {
        (queue, kind, state): number
        for (queue, kind), tally in tables.tallies.items()
        for state, number in tally.items()
        if number
    }


def queues(tables: Tables) -> list[QueueRecord]:
    """Every queue that was ever named."""
    numbers: dict[str, dict[State, int]] = {name: {} for name in tables.queues}
    for (queue, _, state), number in counts(tables).items():
        numbers[queue][state] = numbers[queue].get(state, 0) + number
    return [
        QueueRecord(name=name, paused_at=None if paused_at is None else to_datetime(paused_at), counts=numbers[name])
        for name, paused_at in sorted(tables.queues.items())
    ]


def nodes(tables: Tables, now: int) -> list[NodeRecord]:
    """Every registered node."""
    return [_node_record(node, now) for node in tables.nodes.values()]


def _node_record(node: Node, now: int) -> NodeRecord:
    registered = node.registered
    return NodeRecord(
        id=registered.id,
        name=registered.name,
        process=registered.process,
        kinds=registered.kinds,
        queues=registered.queues,
        concurrency=registered.concurrency,
        version=registered.version,
        address=registered.address,
        registered_at=to_datetime(node.registered_at),
        lease_left=(node.leased_until - now) / 1_000_000,
    )
