"""Lanes: ready tasks of the same kind, queue and requirements, which stand together in the index.

The groups are found by jumping from one set of requirements to the next, so that the number of tasks in each costs
nothing. Groups that a node cannot run are not read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from synergon.model.claims import CandidateQuery, ClaimRequest
from synergon.model.lifecycle import State
from synergon.model.requirements import is_suitable
from synergon.model.task_records import TaskRecord
from synergon.stores.postgres.claim_fast import queues_of, shut_out
from synergon.stores.postgres.queries import record_of
from synergon.stores.postgres.session import Session
from synergon.stores.rules.node_capacity import requirements_of

BEFORE_ALL: Final = (2**63 - 1, 0)
"""A place that nobody has a better one than."""


class ReadyGroups(NamedTuple):
    """What there is to take."""

    requirement_texts: dict[str, list[str]]
    """The demands of ready tasks, by kind."""

    def rest(self, request: ClaimRequest) -> ClaimRequest:
        """What is left of the request without kinds that have no ready task; nothing is locked for those. The task
        that room is kept for is looked at even if there is room for none of its kind. Commands of a pool that is
        locked anyway are looked for once more when it is: one that came after this look goes before all tasks, too."""
        least = 1 if request.reserved_task is None else 0
        kind_requests = [kind_request for kind_request in request.kinds if kind_request.count >= least]
        locked = {
            kind_request.provider for kind_request in kind_requests if kind_request.kind in self.requirement_texts
        } - {None}
        return replace(
            request,
            kinds=tuple(
                kind_request
                for kind_request in kind_requests
                if kind_request.kind in self.requirement_texts
                or (kind_request.is_command and kind_request.provider in locked)
            ),
        )


async def find_ready_groups(session: Session, request: ClaimRequest) -> ReadyGroups | None:
    """What the ready tasks of the request's kinds requirements; None: the node is cordoned."""
    rows = await session.rows(
        "ready_groups",
        request.node_id,
        [kind_request.kind for kind_request in request.kinds],
        [kind_request.is_command for kind_request in request.kinds],
        queues_of(request),
    )
    is_cordoned = rows[0]["is_cordoned"]
    if is_cordoned or is_cordoned is None:
        shut_out(request.node_id, is_leased=is_cordoned is not None)
        return None
    requirement_texts: dict[str, list[str]] = {}
    for _, kind, requirements in rows:
        if kind is not None:
            requirement_texts.setdefault(kind, []).append(requirements)
    return ReadyGroups(requirement_texts)


async def look(session: Session, look: CandidateQuery) -> list[TaskRecord]:
    """Ready tasks that a claim might take, in order."""
    kind_request = look.kind_request
    queues = sorted(look.queues) if look.queues is not None else None
    found = [row["requirements"] for row in await session.rows("requirement_texts", kind_request.kind, queues)]
    requirement_texts = [
        text for text in found if is_suitable(requirements_of(kind_request, text), look.labels, look.totals)
    ]
    if not requirement_texts:
        return []
    after = look.after or BEFORE_ALL
    passed_over = [queue for queue, _ in look.without], [text for _, text in look.without]
    rows = await session.rows(
        "first_in_ready_groups", kind_request.kind, requirement_texts, queues, *after, look.limit, *passed_over
    )
    records = [record_of(row) for row in rows]
    return sorted(records, key=lambda record: (-record.priority, record.id))


async def ahead(session: Session, task_id: int, limit: int) -> int | None:
    """How many of its kind and state go before it, in its line if it is in one."""
    row = await session.row("position_of", task_id)
    if row is None:
        return None
    kind, state, priority, limit_key, after_group = row
    if limit_key is None and state == State.READY:
        found = await session.value("ahead_ready", kind, priority, task_id, limit)
    elif limit_key is None or after_group is not None:
        found = await session.value("ahead_after_groups", kind, limit_key, priority, task_id, limit)
    else:
        found = await session.value("ahead_in_key_queue", kind, limit_key, state, priority, task_id, limit)
    count: int = found
    return count


async def next_start(session: Session, kind: str, limit_key: str) -> int | None:
    """What the rate of a line remembers."""
    row = await session.row("next_start", kind, limit_key)
    return None if row is None else int(row["next_at"])
