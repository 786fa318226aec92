"""Finds the causes that prevent one node from starting a ready task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from synergon.explain.explanation import Cause, Why
from synergon.explain.node_view import NodeView
from synergon.explain.requirement_text import natural
from synergon.model.claims import KindRequest
from synergon.model.node_status import free_slots_on
from synergon.model.requirements import (
    PROCESS,
    PROVIDER,
    QUEUE,
    THREAD,
    WHOLE_NODE,
    Requirements,
    forbidden_labels,
    missing_labels,
    oversized,
)
from synergon.model.task_records import TaskRecord
from synergon.node.claims.ledger import COMMANDS_AT_ONCE
from synergon.stores.rules.node_capacity import Fit, NodeCapacity, requirements_of


def causes_on(node: NodeView, task: TaskRecord, now: datetime) -> list[Cause]:
    """The causes on the node itself. If there are none, the node can start the task, provided that limits, servers and
    other tasks allow it."""
    if node.is_silent:
        return [Cause(why=Why.SILENT, since=now - timedelta(seconds=max(node.age, 0.0)))]
    if not node.state.is_published:
        return [Cause(why=Why.NO_STATUS)]
    kind_request = node.kind_request(task.kind)
    requirements = requirements_of(kind_request, task.requirements, task.queue)
    full = [*_free_slots(node, task), *_scarce(node, task, kind_request, requirements)]
    causes = [
        *_closed(node),
        *([] if node.serves(task.queue, task.kind) else [Cause(why=Why.OTHER_QUEUES, subject=task.queue)]),
        *_refused(node, task, requirements),
        *_unsuitable(node, requirements),
        *full,
        *(_unyielding(node, task.kind, now) if full else ()),
        *_not_accepted(node, task, now),
    ]
    return list(dict.fromkeys(causes))


def _closed(node: NodeView) -> Iterator[Cause]:
    if node.state.is_stopping:
        yield Cause(why=Why.STOPPING)
    elif node.is_cordoned:
        yield Cause(why=Why.CORDONED, subject=node.state.departure or "", since=node.record.cordoned_at)


def _refused(node: NodeView, task: TaskRecord, requirements: Requirements) -> Iterator[Cause]:
    """The cause REFUSED, with the error of the last refusal, if the node has refused the task."""
    if node.record.id in requirements.refused_by:
        errors = [error.message for error in task.errors if error.node_id == node.record.id]
        yield Cause(why=Why.REFUSED, subject=errors[-1] if errors else "its arguments do not fit")


def _unsuitable(node: NodeView, requirements: Requirements) -> Iterator[Cause]:
    labels, totals = frozenset(node.state.labels), node.state.totals
    for label in missing_labels(requirements, labels):
        yield Cause(why=Why.LABEL_MISSING, subject=label)
    for label in forbidden_labels(requirements, labels):
        yield Cause(why=Why.LABEL_FORBIDDEN, subject=label)
    for name in oversized(requirements, totals):
        needed, total = natural(name, requirements.cost[name]), natural(name, totals.get(name, 0))
        yield Cause(why=Why.TOO_SMALL, subject=name, of=total, needed=needed)


def _free_slots(node: NodeView, task: TaskRecord) -> Iterator[Cause]:
    kind, state = task.kind, node.state
    free_slots, said = free_slots_on(state, kind), state.kind(kind)
    if free_slots.slots <= 0:
        most = COMMANDS_AT_ONCE if said.is_command else node.record.concurrency
        yield Cause(why=Why.SLOTS, in_use=most - max(free_slots.slots, 0), of=most)
    if free_slots.of_kind is not None and free_slots.of_kind <= 0:
        yield Cause(why=Why.MAX_RUNNING, subject=kind, in_use=state.running.get(kind, 0), of=said.max_running)
    if free_slots.of_kind == 1 and state.reserved_kind == kind and state.reserved_task != task.id:
        yield Cause(why=Why.RESERVED, subject=str(state.reserved_task))


def _scarce(node: NodeView, task: TaskRecord, kind_request: KindRequest, requirements: Requirements) -> Iterator[Cause]:
    """The causes for scarce resources, child processes, threads and bounds: the node has enough in total, but not
    enough free."""
    capacity, state = NodeCapacity(node.request([task.kind])), node.state
    if capacity.fit(kind_request, requirements, task.id) is Fit.NEVER:
        return
    left = capacity.remaining(kind_request)
    is_held_back = False
    for name in capacity.short_of(kind_request, requirements, task.id):
        if requirements.cost.get(name, 0) <= left[name]:
            is_held_back = True
            continue
        if name == WHOLE_NODE:
            yield Cause(why=Why.OCCUPIED)
            continue
        total = state.totals[name]
        why, subject = _scarcity(name)
        yield Cause(
            why=why,
            subject=subject,
            in_use=natural(name, total - max(state.free.get(name, 0), 0)),
            of=natural(name, total),
            needed=natural(name, requirements.cost[name]),
            tasks=state.holders.get(name, ()),
        )
    if is_held_back:
        yield Cause(why=Why.RESERVED, subject=str(state.reserved_task))


def _scarcity(name: str) -> tuple[Why, str]:
    """The `why` and the `subject` of the cause for a shortage of this resource."""
    for prefix, why in ((QUEUE, Why.QUEUE_BOUND), (PROVIDER, Why.PROVIDER_BOUND)):
        if name.startswith(prefix):
            return why, name.removeprefix(prefix)
    return {PROCESS: Why.PROCESSES, THREAD: Why.THREADS}.get(name, Why.RESOURCE), name


def _unyielding(node: NodeView, kind: str, now: datetime) -> Iterator[Cause]:
    """The cause UNYIELDING, if the kind is in a back-off of preemption, because running tasks did not yield to it."""
    seconds = node.state.backed_off.get(kind)
    if seconds is not None:
        yield Cause(why=Why.UNYIELDING, subject=kind, until=now + timedelta(seconds=seconds))


def _not_accepted(node: NodeView, task: TaskRecord, now: datetime) -> Iterator[Cause]:
    """The cause REJECTED if `can_accept` has rejected the task, or NOT_YET_ACCEPTED if it has not accepted the task
    yet."""
    if not node.state.kind(task.kind).has_can_accept:
        return
    acceptance = node.acceptance
    seconds = None if acceptance is None else acceptance.rejected_for(task.kind, task.id)
    if seconds is not None:
        yield Cause(why=Why.REJECTED, until=now + timedelta(seconds=seconds))
    elif acceptance is None or not acceptance.is_accepted(task.kind, task.id):
        yield Cause(why=Why.NOT_YET_ACCEPTED)
