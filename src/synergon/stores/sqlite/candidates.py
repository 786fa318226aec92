"""Queries over ready and waiting tasks: the candidates of a claim, and the tasks that precede a task. They change
nothing."""

from __future__ import annotations

from heapq import merge
from itertools import islice
from typing import Final

from synergon.model.claims import CandidateQuery
from synergon.model.lifecycle import State
from synergon.model.requirements import is_suitable
from synergon.model.task_records import TaskRecord
from synergon.stores.rules.claim_plan import ReadyGroupName
from synergon.stores.rules.node_capacity import requirements_of
from synergon.stores.sqlite.queries import LIVE_RECORDS
from synergon.stores.sqlite.ready_rows import ready_groups
from synergon.stores.sqlite.transaction import Transaction

_OF_GROUP: Final = (
    f"{LIVE_RECORDS} WHERE state = 'ready' AND kind = ? AND queue = ? AND requirements = ? "
    "AND (expires_at IS NULL OR expires_at > ?) {behind} ORDER BY priority DESC, id LIMIT ?"
)
_ALL: Final = _OF_GROUP.format(behind="")
_SAME_PRIORITY: Final = _OF_GROUP.format(behind="AND priority = ? AND id > ?")
_LOWER_PRIORITY: Final = _OF_GROUP.format(behind="AND priority < ?")


def read_candidates(transaction: Transaction, query: CandidateQuery) -> list[TaskRecord]:
    """Ready tasks in claim order, without claiming them. Ready groups that can never run on the node are not read."""
    lists = [
        _behind(transaction, group, query)
        for group in ready_groups(transaction, [query.kind_request], query.queues)
        if is_suitable(requirements_of(query.kind_request, group[2]), query.labels, query.totals)
    ]
    return list(islice(merge(*lists, key=_order), query.limit))


def _order(record: TaskRecord) -> tuple[int, int]:
    return -record.priority, record.id


def _behind(transaction: Transaction, group: ReadyGroupName, query: CandidateQuery) -> list[TaskRecord]:
    """The rows of a ready group behind a position: the index skips those before it, however many they are."""
    where = (*group, transaction.now)
    if query.after is None:
        return transaction.typed_select(TaskRecord, _ALL, (*where, query.limit))
    priority, task_id = query.after
    same = transaction.typed_select(TaskRecord, _SAME_PRIORITY, (*where, priority, task_id, query.limit))
    return same + transaction.typed_select(TaskRecord, _LOWER_PRIORITY, (*where, priority, query.limit - len(same)))


def ahead(transaction: Transaction, task_id: int, limit: int) -> int | None:
    """How many tasks of its kind precede this one. The count stops at the limit."""
    row = transaction.row("position", task_id)
    if row is None:
        return None
    kind, state, priority, limit_key, after_group = row
    position = {"priority": priority, "id": task_id, "limit": limit}
    if limit_key is not None and after_group is None:
        (before,) = transaction.row("ahead_in_key_queue", kind=kind, state=state, limit_key=limit_key, **position)
    elif state == State.WAITING:
        (before,) = transaction.row("ahead_of_waiting", kind=kind, **position)
    else:
        before = 0
        for queue, requirements in transaction.rows("groups_of_kind", kind=kind):
            before += transaction.row(
                "ahead_in_ready_group", kind=kind, queue=queue, requirements=requirements, **position
            )[0]
    return min(int(before), limit)


def next_start(transaction: Transaction, kind: str, limit_key: str) -> int | None:
    """The stored value of a key queue's rate."""
    row = transaction.row("next_start", kind, limit_key)
    return None if row is None else int(row[0])
