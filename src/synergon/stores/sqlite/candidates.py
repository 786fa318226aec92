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
from synergon.stores.sqlite.ready_rows import ready_groups
from synergon.stores.sqlite.transaction import SQL, Transaction

_OF_GROUP: Final = (
    f"{SQL['live_records']} WHERE state = 'ready' AND kind = ? AND queue = ? AND requirements = ? "
    "AND (expires_at IS NULL OR expires_at > ?) {behind} ORDER BY priority DESC, fair_tag, id LIMIT ?"
)
_ALL: Final = _OF_GROUP.format(behind="")
_SAME_TURN: Final = _OF_GROUP.format(behind="AND priority = ? AND fair_tag = ? AND id > ?")
_LATER_TURN: Final = _OF_GROUP.format(behind="AND priority = ? AND fair_tag > ?")
_LOWER_PRIORITY: Final = _OF_GROUP.format(behind="AND priority < ?")


def read_candidates(transaction: Transaction, query: CandidateQuery) -> list[TaskRecord]:
    """Ready tasks of a kind in claim order, except expired ones, those of paused queues, and those whose requirements
    the node can never meet."""
    lists = [
        _behind(transaction, group, query)
        for group in ready_groups(transaction, [query.kind_request], query.queues)
        if is_suitable(requirements_of(query.kind_request, group[2]), query.labels, query.totals, query.node_id)
    ]
    return list(islice(merge(*lists, key=_order), query.limit))


def _order(record: TaskRecord) -> tuple[int, int, int]:
    return -record.priority, record.fair_tag, record.id


def _behind(transaction: Transaction, group: ReadyGroupName, query: CandidateQuery) -> list[TaskRecord]:
    """The first tasks of a ready group after the position of the query. Takes up to three statements: if one statement
    compared several columns with the position, SQLite would read all tasks before it."""
    where = (*group, transaction.now)
    if query.after is None:
        return transaction.typed_select(TaskRecord, _ALL, (*where, query.limit))
    priority, fair_tag, task_id = query.after
    found: list[TaskRecord] = []
    for statement, position in (
        (_SAME_TURN, (priority, fair_tag, task_id)),
        (_LATER_TURN, (priority, fair_tag)),
        (_LOWER_PRIORITY, (priority,)),
    ):
        if len(found) < query.limit:
            found += transaction.typed_select(TaskRecord, statement, (*where, *position, query.limit - len(found)))
    return found


def ahead(transaction: Transaction, task_id: int, limit: int) -> int | None:
    """How many tasks with this task's kind, state and key queue precede it, at most `limit`. None if the task is
    neither `ready` nor `waiting`."""
    row = transaction.row("position", task_id)
    if row is None:
        return None
    kind, state, priority, fair_tag, limit_key, is_dependent = row
    position = {"priority": priority, "id": task_id, "limit": limit}
    if limit_key is not None and not is_dependent:
        (before,) = transaction.row("ahead_in_key_queue", kind=kind, state=state, limit_key=limit_key, **position)
    elif state == State.WAITING:
        (before,) = transaction.row("ahead_of_waiting", kind=kind, **position)
    else:
        before = 0
        for queue, requirements in transaction.rows("groups_of_kind", kind=kind):
            before += transaction.row(
                "ahead_in_ready_group",
                kind=kind,
                queue=queue,
                requirements=requirements,
                fair_tag=fair_tag,
                **position,
            )[0]
    return min(int(before), limit)


def next_start(transaction: Transaction, kind: str, limit_key: str) -> int | None:
    """The moment from which the next start of a key queue is within its rate, as stored. None if no value is stored."""
    row = transaction.row("next_start", kind, limit_key)
    return None if row is None else int(row[0])
